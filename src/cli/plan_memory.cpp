// trireme plan --ranks: what a run would hold in memory, and whether it fits.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include <unistd.h>

#include "trireme/core/text.hpp"
#include "trireme/data_parallel/memory.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/ranks.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

using Memory = std::map<device::Use, std::int64_t>;

/// Of the computing device and of the host, which on CPUs are one: all is `device`.
struct Sums {
  std::int64_t device = 0, host = 0;
  auto operator<=>(const Sums&) const = default;  // NOLINT(modernize-use-nullptr)
};

Sums sums_of(const Memory& memory, bool on_host) {
  Sums sums;
  for (const auto& [use, bytes] : memory) {
    (!on_host && device::in_host_memory(use) ? sums.host : sums.device) += bytes;
  }
  return sums;
}

/// A column of the table: the fullest rank of a pipeline stage, or the fullest server.
struct Column {
  std::string name;
  std::int64_t layers = 0;
  Memory memory;
  Sums sums;
  std::int64_t most_host = 0;  // host bytes of any rank of the stage, beside a GPU's
};

/// The job as it is planned.
struct Plan {
  std::int64_t parameters = 0;
  comm::GridShape shape;  // of all ranks but servers
  int threads = 1;
  bool on_host = true;
  std::vector<Column> columns;
  std::int64_t ranks_of_node = 1;
};

/// What a server holds grows with the elements of its shards alone.
Column fullest_server(const model::Transformer& model, const train::RunConfig& config,
                      const train::LayoutFacts& facts, data_parallel::ServerPlace place) {
  parallel::StageOptions options =
      train::stage_options(config, train::grid_shape(config, facts), facts);
  options.place = {.data = place.workers};
  const parallel::Stage worker(model, options);
  const state::ShardMap shards(worker.layout(), place.servers, 0);
  std::int64_t most = 0;
  for (int server = 0; server < place.servers; ++server) {
    const std::int64_t elements = shards.of_rank(server).elements();
    if (elements > most) most = elements, place.index = server;
  }
  Column column{.name = "server",
                .memory = data_parallel::predict_server_memory(worker, place, config)};
  column.sums = sums_of(column.memory, true);
  if (!facts.host) std::swap(column.sums.device, column.sums.host);
  column.most_host = column.sums.host;
  return column;
}

/// Every column, in the order of the pipeline.
class Columns {
 public:
  Columns(const train::RunConfig& config, const train::LayoutFacts& facts, const Plan& plan)
      : config_(config),
        facts_(facts),
        on_host_(plan.on_host),
        workers_(plan.shape),
        // Where no worker waits for another, each is a grid of its own.
        shape_(train::waits_for_none(config) ? comm::GridShape{{1, 1, 1, 1}} : workers_),
        model_(config.model) {
    const bool served = train::server_ranks(config) > 0;
    // As Trainer: what a checkpoint holds is copied first where it is a GPU's.
    const bool on_gpu = !on_host_ && config.zero.offload == "none";
    question_ = {.optim = config.optim,
                 .threads = plan.threads,
                 .host = on_host_,
                 .cuda = on_host_ ? std::nullopt : std::optional(train::cuda_work(config)),
                 .shape = shape_,
                 .backends = backends(),
                 .bucket_elements = train::bucket_elements(config),
                 .snapshots = !served && (config.checkpoint.in_background() || on_gpu)};
    place_ = {.workers = workers_.of(comm::Axis::data),
              .servers = train::server_ranks(config),
              .gradients = dtype_from_name(config.data_parallel.gradients)};
  }

  std::vector<Column> all() const {
    parallel::StageOptions options = train::stage_options(config_, workers_, facts_);
    options.place = place(0);
    const parallel::Pipeline pipeline(model_, options);
    const std::vector<int> tensor = plan::distinct_tensor_ranks(model_, options);
    const int stages = shape_.of(comm::Axis::pipeline);
    std::vector<Column> columns;
    report::ProgressLine line(stderr);
    report::PhaseProgress progress(&line, "plan");
    for (int stage = 0; stage < stages; ++stage) {
      Column fullest{.name = std::to_string(stage)};
      for (const int rank : tensor) {
        for (int context = 0; context < shape_.of(comm::Axis::context); ++context) {
          options.place = place(shape_.rank({rank, context, 0, stage}));
          parallel::Stage own(model_, options, pipeline);
          fill(own, rank, fullest);
        }
      }
      columns.push_back(std::move(fullest));
      progress.show(static_cast<double>(stage + 1) / stages,
                    fmt::format("{} of {} stages", stage + 1, stages));
    }
    if (place_.servers > 0) columns.push_back(fullest_server(model_, config_, facts_, place_));
    return columns;
  }

  std::int64_t parameters() const { return model_.table().elements(); }

 private:
  comm::Backends backends() const {
    if (!on_host_) return {};
    std::vector<int> nodes = facts_.node_of;  // servers, the last ranks, are in no group
    if (!nodes.empty()) nodes.resize(static_cast<std::size_t>(shape_.size()));
    return comm::choose_backends(config_.comm, shape_, {.node_of = nodes});
  }
  parallel::Place place(int rank) const {
    return parallel::place_of(shape_, rank, train::trains_alone(config_));
  }

  /// The stage's column, if a data rank of `stage` holds more than it.
  void fill(parallel::Stage& stage, int tensor, Column& column) const {
    const int number = stage.options().place.stage, context = shape_.of(comm::Axis::context);
    for (const int rank : plan::fullest_data_ranks(stage, shape_.copies(), question_.snapshots)) {
      if (!train::trains_alone(config_)) stage.move_to(rank);
      plan::MemoryQuestion question = question_;
      question.rank = shape_.rank({tensor, rank % context, rank / context, number});
      data_parallel::add_method_memory(question, config_, stage, place_);
      Memory memory = plan::predict_memory(stage, question);
      const Sums sums = sums_of(memory, on_host_);
      column.most_host = std::max(column.most_host, sums.host);
      if (column.memory.empty() || sums > column.sums)
        column.memory = std::move(memory), column.sums = sums;
    }
    column.layers = 0;
    for (int unit = 1; unit < stage.last_unit(); ++unit)
      column.layers += stage.layout().has_unit(unit);
  }

  const train::RunConfig& config_;
  const train::LayoutFacts& facts_;
  bool on_host_;
  comm::GridShape workers_, shape_;
  model::Transformer model_;
  plan::MemoryQuestion question_;
  data_parallel::ServerPlace place_;
};

/// Memory that a run may fill, and what it needs of it.
struct Capacity {
  std::int64_t available = 0;  // bytes; 0: not known
  std::string source;
  std::int64_t needed = 0;
  bool exceeded() const { return available > 0 && needed > available; }
};

/// Of a GPU for one rank, and of a node for what all its ranks hold on the host. On CPUs all is
/// `node`'s.
struct Capacities {
  Capacity gpu, node;
  bool fits() const { return !gpu.exceeded() && !node.exceeded(); }
};

/// At most so many host bytes are on the fullest node: as if each rank held as much as the fullest
/// of its stage. Consecutive ranks share a node, and those of a stage are consecutive.
std::int64_t node_bytes(const Plan& plan, const train::LayoutFacts& facts) {
  const std::int64_t of_stage = plan.shape.size() / plan.shape.of(comm::Axis::pipeline);
  std::int64_t most = 0;
  for (std::int64_t first = 0; first < facts.world; first += plan.ranks_of_node) {
    const std::int64_t end = std::min<std::int64_t>(facts.world, first + plan.ranks_of_node);
    std::int64_t bytes = 0;
    for (std::int64_t at = first; at < end;) {
      const std::int64_t number =
          std::min<std::int64_t>(at / of_stage, static_cast<std::int64_t>(plan.columns.size()) - 1);
      const bool last = number + 1 == static_cast<std::int64_t>(plan.columns.size());
      const std::int64_t next = last ? end : std::min(end, (number + 1) * of_stage);
      const Column& column = plan.columns[static_cast<std::size_t>(number)];
      bytes += (next - at) * (plan.on_host ? column.sums.device : column.most_host);
      at = next;
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// `given`: bytes of a GPU, or on CPUs of a node, as `source` has it; 0: this machine's.
Capacities capacities_of(const Plan& plan, const train::LayoutFacts& facts, std::int64_t given,
                         const std::string& source) {
  const std::int64_t physical = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  Capacities result;
  result.node = {physical, "this machine's memory", node_bytes(plan, facts)};
  if (plan.on_host) {
    if (given > 0) result.node.available = given, result.node.source = source;
    return result;
  }
  const int gpus = device::cuda_device_count();
  if (plan.ranks_of_node > gpus) result.node.available = 0;  // this machine is no such node
  result.gpu = {.available = given, .source = source};
  for (const Column& column : plan.columns) {
    result.gpu.needed = std::max(result.gpu.needed, column.sums.device);
  }
  if (given > 0 || gpus == 0) return result;
  const auto gpu = device::make_cuda_device(0);
  result.gpu.available = dynamic_cast<const device::CudaDevice&>(*gpu).free_bytes();
  result.gpu.source = "free on this machine's GPU";
  return result;
}

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string row(const std::string& name, const std::vector<std::string>& cells) {
  std::string text = fmt::format("{:<14}", name);
  for (const std::string& cell : cells) text += fmt::format(" | {:>12}", cell);
  return text + "\n";
}

/// "a rank's GPU: 1.0 of 2.0 MiB (--memory), 1.0 left"; without the rest where that is not known.
std::string use_text(const std::string& whose, const Capacity& capacity) {
  const std::string needed = fmt::format("{}: {:.1f}", whose, mebibytes(capacity.needed));
  if (capacity.available == 0) return needed + " MiB\n";
  const std::int64_t left = capacity.available - capacity.needed;
  return fmt::format("{} of {:.1f} MiB ({}), {:.1f} {}\n", needed, mebibytes(capacity.available),
                     capacity.source, mebibytes(std::abs(left)), left >= 0 ? "left" : "too many");
}

std::string fit_text(const Plan& plan, const Capacities& capacities) {
  const std::string ranks = fmt::format("the {} of a node", counted(plan.ranks_of_node, "rank"));
  const Capacity& main = plan.on_host ? capacities.node : capacities.gpu;
  const std::string fits = capacities.fits() ? "fits: yes; " : "fits: no; ";
  std::string text = fits + use_text(plan.on_host ? ranks : "a rank's GPU", main);
  if (main.available == 0) {
    text = fmt::format("fits: not known; name the memory of {}: --memory 80GiB\n",
                       plan.on_host ? "a node" : "a GPU");
  }
  if (plan.on_host) return text;
  return text + "host: at most, " + use_text(ranks, capacities.node);
}

std::string table(const Plan& plan) {
  const auto cells = [&](const auto& cell) {
    std::vector<std::string> result;
    for (const Column& column : plan.columns) result.push_back(cell(column));
    return result;
  };
  const auto bytes_row = [&](const std::string& name, const auto& bytes) {
    return row(name, cells([&](const Column& column) {
                 return fmt::format("{:.1f}", mebibytes(bytes(column)));
               }));
  };
  std::string text = row("stage", cells([](const Column& column) { return column.name; })) +
                     row("layers", cells([](const Column& column) {
                           return column.name == "server" ? "-" : std::to_string(column.layers);
                         }));
  for (const auto& [use, unused] : plan.columns.front().memory) {
    text += bytes_row(std::string(device::name_of(use)), [use = use](const Column& column) {
      const auto found = column.memory.find(use);
      return found == column.memory.end() ? 0 : found->second;
    });
  }
  if (plan.on_host) {
    return text + bytes_row("total", [](const Column& column) { return column.sums.device; });
  }
  return text + bytes_row("on the GPU", [](const Column& column) { return column.sums.device; }) +
         bytes_row("on the host", [](const Column& column) { return column.sums.host; });
}

/// As parallel.recompute has it.
std::string key_of(model::Recompute policy) {
  switch (policy) {
    case model::Recompute::none:
      return "none";
    case model::Recompute::cheap:
      return "cheap";
    case model::Recompute::selective:
      return "selective";
    case model::Recompute::full:
      return "full";
  }
  no_case_for(policy);
}

std::string to_text(const Plan& plan, const Capacities& capacities, const train::RunConfig& config,
                    const train::LayoutFacts& facts, bool automatic) {
  std::string text = fmt::format(
      "{} parameters on {}: {}; batch {} sequences of {}, micro-batch {}\n"
      "planned for: {}, {}, recomputation {}, {} a rank\n",
      grouped(plan.parameters), counted(facts.world, "rank"), plan.shape.to_string(),
      config.train.batch, config.model.sequence, config.train.micro_batch,
      plan.on_host ? "CPUs" : "GPUs", config.precision.compute, config.parallel.recompute,
      counted(plan.threads, "thread"));
  if (automatic && plan.on_host) {
    text +=
        "note: device.type = auto, and this machine (a login node?) shows no GPU; --device.type "
        "cuda plans for GPUs\n";
  }
  return text + "memory of the fullest rank of each pipeline stage, MiB\n\n" + table(plan) + "\n" +
         fit_text(plan, capacities);
}

std::string to_json(const Plan& plan, const Capacities& capacities, const train::RunConfig& config,
                    const train::LayoutFacts& facts, const nlohmann::ordered_json& step) {
  nlohmann::ordered_json json{{"parameters", plan.parameters}, {"ranks", facts.world}};
  for (const comm::Axis axis : comm::settable_axes) {
    json["layout"][comm::name_of(axis)] = plan.shape.of(axis);
  }
  json.update({{"batch", config.train.batch},
               {"sequence", config.model.sequence},
               {"micro_batch", config.train.micro_batch},
               {"device", plan.on_host ? "cpu" : "cuda"},
               {"precision", config.precision.compute},
               {"recompute", config.parallel.recompute},
               {"threads", plan.threads}});
  for (const Column& column : plan.columns) {
    nlohmann::ordered_json memory;
    for (const auto& [use, bytes] : column.memory) memory[device::name_of(use)] = bytes;
    json["columns"].push_back(
        {{"stage", column.name},
         {"layers", column.layers},
         {"bytes", memory},
         {"device_bytes", plan.on_host ? 0 : column.sums.device},
         {"host_bytes", plan.on_host ? column.sums.device : column.sums.host}});
  }
  const auto entry = [](const Capacity& capacity) {
    nlohmann::ordered_json values{{"needed_bytes", capacity.needed}};
    if (capacity.available > 0) {
      values.update({{"available_bytes", capacity.available}, {"source", capacity.source}});
    }
    return values;
  };
  const Capacity& main = plan.on_host ? capacities.node : capacities.gpu;
  json["fit"] = {{"of", plan.on_host ? "node" : "gpu"}};
  json["fit"].update(entry(main));
  if (main.available > 0) json["fit"]["fits"] = capacities.fits();
  if (!plan.on_host) json["fit"]["host_of_node"] = entry(capacities.node);
  if (!step.is_null()) json["step"] = step;
  return json.dump(2) + "\n";
}

}  // namespace

std::string plan_memory(train::RunConfig& config, train::LayoutFacts facts,
                        const PlanMemoryOptions& options) {
  std::optional<plan::Machine> machine;
  if (!options.machine.empty()) {
    machine = machine_for(config, facts, options.machine, options.ranks_per_node);
  }
  const std::int64_t per_node = options.ranks_per_node > 0 ? options.ranks_per_node
                                : machine                  ? machine->ranks_per_node
                                                           : facts.world;
  const bool automatic = config.device.type == "auto";
  if (automatic) config.device.type = device::cuda_device_count() > 0 ? "cuda" : "cpu";
  facts.host = config.device.type != "cuda";
  facts.planned = true;
  train::validate_layout(config, facts);
  const comm::GridShape shape = train::grid_shape(config, facts);
  config.parallel.recompute = key_of(train::stage_options(config, shape, facts).recompute);
  Plan plan{.shape = shape,
            .threads = static_cast<int>(std::max<std::int64_t>(1, config.parallel.threads)),
            .on_host = facts.host,
            .ranks_of_node = std::min<std::int64_t>(per_node, facts.world)};
  const Columns columns(config, facts, plan);
  plan.parameters = columns.parameters();
  plan.columns = columns.all();
  std::int64_t memory = options.memory;
  StepPlan step;
  if (machine) {
    if (memory == 0) memory = static_cast<std::int64_t>(machine->device.memory_gib * (1 << 30));
    step = plan_step(config, facts, shape, *machine, options);
  }
  const Capacities capacities =
      capacities_of(plan, facts, memory, options.memory > 0 ? "--memory" : options.machine);
  return options.json ? to_json(plan, capacities, config, facts, step.json)
                      : to_text(plan, capacities, config, facts, automatic) + step.text;
}

}  // namespace trireme::cli
