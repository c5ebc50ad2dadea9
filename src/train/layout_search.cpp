#include "trireme/train/layout_search.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "trireme/plan/step_time.hpp"

namespace trireme::train {

namespace {

constexpr std::size_t most_found = 10, most_varied = 5;
constexpr std::int64_t most_micro_batch = 64;

/// The keys of a layout, by which one is known.
std::string name_of(const RunConfig& config) {
  const auto& p = config.parallel;
  return fmt::format("{} {} {} {} {} {} {} {}", p.tensor, p.pipeline, p.virtual_stages, p.zero,
                     p.sequence, p.recompute, p.schedule, config.train.micro_batch);
}

class Search {
 public:
  Search(const RunConfig& base, const LayoutFacts& facts, const plan::Machine& machine,
         std::int64_t memory, const std::function<void(int)>& progress)
      : base_(base), facts_(facts), machine_(machine), memory_(memory), progress_(progress) {
    facts_.planned = true;
    // The model, whatever the layout.
    LayoutFacts alone{.schedule_text = {}, .host = facts.host, .planned = true};
    RunConfig one = base_;
    one.parallel.tensor = one.parallel.pipeline = one.parallel.virtual_stages = 1;
    one.parallel.data = one.parallel.zero = 0;
    one.parallel.sequence = false;
    one.parallel.schedule = "1f1b";
    one.train.batch = one.train.micro_batch = 1;
    one.numerics.virtual_data = 1;
    validate_layout(one, alone);
    base_.model = one.model;
  }

  LayoutSearch run() {
    try_shapes();
    vary();
    find_usual();
    result_.simulated = static_cast<int>(known_.size());
    return std::move(result_);
  }

 private:
  /// A layout of the first round, by the time below which its step cannot be.
  struct Shape {
    double least = 0;
    RunConfig config;
  };

  std::vector<Shape> shapes() {
    std::vector<Shape> all;
    const std::int64_t world = facts_.world, batch = base_.train.batch;
    for (std::int64_t tensor = 1; tensor <= std::min(world, base_.model.heads); ++tensor) {
      if (world % tensor != 0 || base_.model.heads % tensor != 0) continue;
      for (std::int64_t pipeline = 1; pipeline <= std::min(world / tensor, base_.model.layers);
           ++pipeline) {
        if (world / tensor % pipeline != 0) continue;
        const std::int64_t data = world / tensor / pipeline;
        if (batch % data != 0) continue;
        for (std::int64_t micro = 1; micro <= std::min(batch / data, most_micro_batch);
             micro *= 2) {
          if (batch / data % micro != 0) break;
          all.push_back(shape(tensor, pipeline, data, micro));
        }
      }
    }
    result_.legal = static_cast<int>(all.size());
    std::ranges::stable_sort(all, {}, &Shape::least);
    return all;
  }

  Shape shape(std::int64_t tensor, std::int64_t pipeline, std::int64_t data, std::int64_t micro) {
    Shape shape{.config = base_};
    parallel::ParallelConfig& p = shape.config.parallel;
    p.tensor = tensor;
    p.pipeline = pipeline;
    p.data = 0;
    p.virtual_stages = 1;
    p.schedule = "1f1b";
    p.sequence = tensor > 1;
    p.zero = data > 1 ? 1 : 0;
    shape.config.train.micro_batch = micro;
    const model::Transformer& model = model_of(shape.config);
    const DType type = dtype_from_name(base_.precision.compute);
    const double peak = machine_.peak(type) * machine_.products.efficiency;
    const auto tokens = static_cast<double>(base_.train.batch * base_.model.sequence);
    // Of products alone, with a quarter of 1F1B's bubble: other schedules may have less.
    const auto micro_batches =
        static_cast<double>(base_.train.batch) / static_cast<double>(data * micro);
    const double bubble = 1 + static_cast<double>(pipeline - 1) / micro_batches / 4;
    shape.least = 0.9 * model.flops_per_token() * tokens / peak / facts_.world * bubble;
    return shape;
  }

  void try_shapes() {
    for (Shape& each : shapes()) {
      if (result_.fitting.size() == most_found &&
          each.least > result_.fitting.back().times.seconds) {
        break;
      }
      for (const char* recompute : {"none", "selective", "full"}) {
        each.config.parallel.recompute = recompute;
        if (attempt(each.config)) break;
      }
    }
  }

  /// One key changed.
  static std::vector<RunConfig> changed(const RunConfig& config, int data) {
    std::vector<RunConfig> all;
    const auto add = [&](const auto& change) { change(all.emplace_back(config).parallel); };
    if (data > 1) {
      for (const int zero : {0, 1, 2, 3}) add([&](auto& p) { p.zero = zero; });
    }
    for (const char* recompute : {"none", "cheap", "selective", "full"}) {
      add([&](auto& p) { p.recompute = recompute; });
    }
    if (config.parallel.tensor > 1) {
      for (const bool sequence : {false, true}) add([&](auto& p) { p.sequence = sequence; });
    }
    if (config.parallel.pipeline == 1) return all;
    for (const char* schedule : {"1f1b", "zero-bubble"}) {
      add([&](auto& p) { p.schedule = schedule, p.virtual_stages = 1; });
    }
    for (const int stages : {2, 3, 4}) {
      add([&](auto& p) { p.schedule = "interleaved", p.virtual_stages = stages; });
    }
    return all;
  }

  void vary() {
    for (bool better = true; better;) {
      std::vector<std::pair<RunConfig, int>> best;  // and data ranks
      for (const FoundLayout& each : result_.fitting) {
        if (best.size() == most_varied) break;
        best.emplace_back(each.config, each.shape.of(comm::Axis::data));
      }
      const double before = best.empty() ? 0 : result_.fitting.front().times.seconds;
      for (const auto& [config, data] : best) {
        if (!varied_.insert(name_of(config)).second) continue;
        for (const RunConfig& each : changed(config, data)) attempt(each);
      }
      better = !best.empty() && result_.fitting.front().times.seconds < before;
    }
  }

  void find_usual() {
    const std::int64_t tensor = std::min(machine_.ranks_per_node, base_.model.heads);
    for (std::int64_t pipeline = 1; pipeline <= base_.model.layers; ++pipeline) {
      const std::int64_t ranks = tensor * pipeline;
      if (ranks > facts_.world) return;
      if (facts_.world % ranks != 0 || base_.train.batch % (facts_.world / ranks) != 0) continue;
      RunConfig config = shape(tensor, pipeline, facts_.world / ranks, 1).config;
      for (const char* recompute : {"none", "full"}) {
        config.parallel.recompute = recompute;
        const FoundLayout* found = simulated(config);
        if (found == nullptr || found->memory > memory_) continue;
        result_.usual.push_back(*found);
        return;
      }
    }
  }

  /// Whether it fits. Layouts that cannot be are no candidates.
  bool attempt(const RunConfig& config) {
    const FoundLayout* found = simulated(config);
    if (found == nullptr) return false;
    if (result_.nearest.memory == 0 || found->memory < result_.nearest.memory) {
      result_.nearest = *found;
    }
    if (found->memory > memory_) return false;
    auto& list = result_.fitting;
    const bool is_new = std::ranges::none_of(list, [&](const FoundLayout& other) {
      return name_of(other.config) == name_of(found->config);
    });
    if (!is_new) return true;
    const auto place = std::ranges::upper_bound(
        list, found->times.seconds, {}, [](const FoundLayout& each) { return each.times.seconds; });
    list.insert(place, *found);
    if (list.size() > most_found) list.pop_back();
    return true;
  }

  /// Null where it cannot be.
  const FoundLayout* simulated(const RunConfig& asked) {
    const auto known = known_.find(name_of(asked));
    if (known != known_.end()) return known->second ? &*known->second : nullptr;
    std::optional<FoundLayout>& found = known_[name_of(asked)];
    FoundLayout layout{.config = asked};
    plan::StageClasses stages;
    try {
      validate_layout(layout.config, facts_);
      layout.shape = grid_shape(layout.config, facts_);
      stages = plan::trace_stages(
          model_of(layout.config),
          replica_options(
              layout.config, stage_options(layout.config, layout.shape, facts_),
              static_cast<int>(std::max<std::int64_t>(1, layout.config.parallel.threads))),
          layout.shape, machine_.on_host(), layout.config.data.document_mask);
    } catch (const ConfigError&) {
      return nullptr;
    }
    for (const plan::RankClass& each : stages.classes) {
      std::int64_t bytes = 0;
      for (const auto& [use, held] : each.trace.memory) {
        if (machine_.on_host() || !device::in_host_memory(use)) bytes += held;
      }
      layout.memory = std::max(layout.memory, bytes);
    }
    layout.times = plan::simulate(layout.shape, stages.classes, stages.class_of, machine_);
    found = std::move(layout);
    progress_(static_cast<int>(known_.size()));
    return &*found;
  }

  const model::Transformer& model_of(const RunConfig& config) {
    if (!model_) model_.emplace(config.model);
    return *model_;
  }

  RunConfig base_;
  LayoutFacts facts_;
  const plan::Machine& machine_;
  std::int64_t memory_;
  const std::function<void(int)>& progress_;
  std::optional<model::Transformer> model_;
  std::map<std::string, std::optional<FoundLayout>> known_;
  std::set<std::string> varied_;
  LayoutSearch result_;
};

}  // namespace

LayoutSearch search_layouts(const RunConfig& config, const LayoutFacts& facts,
                            const plan::Machine& machine, std::int64_t memory,
                            const std::function<void(int simulated)>& progress) {
  LayoutSearch result = Search(config, facts, machine, memory, progress).run();
  if (result.fitting.empty() && result.nearest.memory == 0) {
    throw ConfigError("--ranks", std::to_string(facts.world),
                      fmt::format("no layout divides {} heads, {} layers and a batch of {} over so "
                                  "many ranks",
                                  config.model.heads, config.model.layers, config.train.batch),
                      "use a train.batch that the data ranks divide");
  }
  return result;
}

std::string layout_toml(const RunConfig& config) {
  const auto& p = config.parallel;
  return fmt::format(
      "[parallel]\ntensor = {}\npipeline = {}\nvirtual_stages = {}\nschedule = \"{}\"\n"
      "zero = {}\nsequence = {}\nrecompute = \"{}\"\n\n[train]\nmicro_batch = {}\n",
      p.tensor, p.pipeline, p.virtual_stages, p.schedule, p.zero, p.sequence, p.recompute,
      config.train.micro_batch);
}

}  // namespace trireme::train
