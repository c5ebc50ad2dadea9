// trireme plan --ranks: what a run would hold in memory.
#include <algorithm>

#include "trireme/data_parallel/memory.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

using Memory = std::map<device::Use, std::int64_t>;

std::int64_t total(const Memory& memory, bool host_alone = false) {
  std::int64_t sum = 0;
  for (const auto& [use, bytes] : memory) {
    if (!host_alone || device::in_host_memory(use)) sum += bytes;
  }
  return sum;
}

std::string row(const std::string& name, const std::vector<std::int64_t>& stages) {
  std::string text = fmt::format("{:<14}", name);
  for (const std::int64_t bytes : stages) {
    text += fmt::format(" | {:>12.1f}", static_cast<double>(bytes) / (1 << 20));
  }
  return text + "\n";
}

Memory fullest_server(const model::Transformer& model, const train::RunConfig& config,
                      const train::LayoutFacts& facts, data_parallel::ServerPlace place) {
  parallel::StageOptions options =
      train::stage_options(config, train::grid_shape(config, facts), facts);
  options.place = {.data = place.workers};
  const parallel::Stage worker(model, options);
  Memory most;
  for (; place.index < place.servers; ++place.index) {
    Memory memory = data_parallel::predict_server_memory(worker, place, config);
    if (total(memory) > total(most)) most = std::move(memory);
  }
  return most;
}

}  // namespace

std::string plan_memory(train::RunConfig& config, const train::LayoutFacts& facts) {
  train::validate_layout(config, facts);
  const comm::GridShape workers = train::grid_shape(config, facts);
  const int shard = train::shard_ranks(config, workers, facts);
  // Where no worker waits for another, each is a grid of its own.
  const bool alone = train::waits_for_none(config);
  const comm::GridShape shape = alone ? comm::GridShape{{1, 1, 1, 1}} : workers;
  const bool on_host = config.device.type != "cuda";
  std::vector<int> nodes = facts.node_of;  // servers, the last ranks, are in no group
  if (!nodes.empty()) nodes.resize(static_cast<std::size_t>(shape.size()));
  const comm::Backends backends =
      on_host ? comm::choose_backends(config.comm, shape, alone ? 1 : shard, {.node_of = nodes})
              : comm::Backends{};
  const model::Transformer model(config.model);
  const auto threads = static_cast<int>(std::max<std::int64_t>(1, config.parallel.threads));
  // As Trainer: what a checkpoint holds is copied first where it is a GPU's.
  const bool on_gpu = !on_host && config.zero.offload == "none";
  const bool served = train::server_ranks(config) > 0;
  const bool snapshots = !served && (config.checkpoint.in_background() || on_gpu);
  // Data ranks that differ: they hold shards, or write shares of what all of them hold.
  const int different = config.parallel.zero > 0 ? shard
                        : snapshots              ? shape.of(comm::Axis::data)
                                                 : 1;
  const data_parallel::ServerPlace place{
      .workers = workers.of(comm::Axis::data),
      .servers = train::server_ranks(config),
      .gradients = dtype_from_name(config.data_parallel.gradients)};
  std::vector<Memory> stages;
  for (int stage = 0; stage < shape.of(comm::Axis::pipeline); ++stage) {
    Memory most;
    for (int tensor = 0; tensor < shape.of(comm::Axis::tensor); ++tensor) {
      for (int data = 0; data < different; ++data) {
        parallel::StageOptions options = train::stage_options(config, workers, facts);
        const int rank = shape.rank({tensor, 0, data, stage});
        options.place =
            parallel::place_of(shape, alone ? 1 : shard, rank, train::trains_alone(config));
        const parallel::Stage own(model, options);
        plan::MemoryQuestion question{
            .optim = config.optim,
            .threads = threads,
            .host = on_host,
            .cuda = on_host ? std::nullopt : std::optional(train::cuda_work(config)),
            .shape = shape,
            .rank = rank,
            .backends = backends,
            .bucket_elements = train::bucket_elements(config),
            .snapshots = snapshots};
        data_parallel::add_method_memory(question, config, own, place);
        const Memory memory = plan::predict_memory(own, question);
        if (total(memory) > total(most)) most = memory;
      }
    }
    stages.push_back(most);
  }
  if (served) stages.push_back(fullest_server(model, config, facts, place));
  std::string text = fmt::format(
      "{} parameters on {} ranks: {}; batch {} sequences of {}, micro-batch {}\n"
      "memory of the fullest rank of each pipeline stage, MiB, with {} threads "
      "(parallel.threads)\n\n"
      "{:<14}",
      grouped(model.table().elements()), facts.world, workers.to_string(), config.train.batch,
      config.model.sequence, config.train.micro_batch, threads, "stage");
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const bool server = served && stage + 1 == stages.size();
    text += fmt::format(" | {:>12}", server ? "server" : std::to_string(stage));
  }
  text += "\n";
  for (const auto& [use, bytes] : stages.front()) {
    std::vector<std::int64_t> values;
    for (const Memory& memory : stages) {
      const auto found = memory.find(use);
      values.push_back(found == memory.end() ? 0 : found->second);
    }
    text += row(std::string(device::name_of(use)), values);
  }
  std::vector<std::int64_t> sums, device, host;
  for (const Memory& memory : stages) {
    sums.push_back(total(memory));
    host.push_back(total(memory, true));
    device.push_back(sums.back() - host.back());
  }
  text += row("total", sums);
  if (config.zero.offload == "none") return text;
  return text + row("  on the GPU", device) + row("  on the host", host);
}

}  // namespace trireme::cli
