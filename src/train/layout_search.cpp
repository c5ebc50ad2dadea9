#include "trireme/train/layout_search.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "trireme/core/text.hpp"
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
    base_.parallel.layout = "given";
    // The model, whatever the layout.
    LayoutFacts alone{.schedule_text = {}, .host = facts.host, .planned = true};
    RunConfig one = base_;
    one.parallel.tensor = one.parallel.pipeline = one.parallel.virtual_stages = 1;
    one.parallel.context = 1;
    one.parallel.data = one.parallel.zero = 0;
    one.parallel.sequence = false;
    one.parallel.schedule = "1f1b";
    one.train.batch = one.train.micro_batch = 1;
    one.numerics.virtual_data = 1;
    validate_layout(one, alone);
    base_.model = one.model;
    if (base_.train.batch_tokens > 0) base_.train.batch = one.train.batch;
    base_.train.batch_tokens = 0;
  }

  LayoutSearch run() {
    try_shapes();
    vary();
    find_usual();
    if (result_.fitting.empty() && result_.nearest.memory > 0) {  // that of its first micro-batches
      RunConfig nearest = result_.nearest.config;
      nearest.train.batch = base_.train.batch;
      if (const auto whole = simulated(nearest)) result_.nearest = *whole;
    }
    return std::move(result_);
  }

 private:
  /// A layout of the first round, by the time below which its step is not expected.
  struct Shape {
    double least = 0;
    RunConfig config;
  };

  void try_shapes() {
    std::vector<Shape> all;
    const std::int64_t world = facts_.world, batch = base_.train.batch;
    if (world % base_.parallel.context != 0) return;
    const std::int64_t groups = world / base_.parallel.context;  // of context ranks
    for (std::int64_t tensor = 1; tensor <= std::min(groups, base_.model.heads); ++tensor) {
      if (groups % tensor != 0 || base_.model.heads % tensor != 0) continue;
      for (std::int64_t pipeline = 1; pipeline <= std::min(groups / tensor, base_.model.layers);
           ++pipeline) {
        if (groups / tensor % pipeline != 0) continue;
        const std::int64_t data = groups / tensor / pipeline;
        if (batch % data != 0) continue;
        for (std::int64_t micro = 1; micro <= std::min(batch / data, most_micro_batch);
             micro *= 2) {
          if (batch / data % micro != 0) break;
          ++result_.legal;
          all.push_back({.config = shaped(tensor, pipeline, micro)});
        }
      }
    }
    for (Shape& each : all) {
      for (const char* recompute : {"none", "selective", "full"}) {
        each.config.parallel.recompute = recompute;
        if ((each.least = least_time(each.config)) > 0) break;
      }
    }
    std::ranges::stable_sort(all, {}, &Shape::least);
    for (Shape& each : all) {
      if (each.least == 0 || attempt(each.config, each.least)) continue;
      // The whole step holds more micro-batches than the first ones did.
      for (const char* recompute : {"selective", "full"}) {
        each.config.parallel.recompute = recompute;
        if (attempt(each.config)) break;
      }
    }
  }

  RunConfig shaped(std::int64_t tensor, std::int64_t pipeline, std::int64_t micro) const {
    RunConfig config = base_;
    parallel::ParallelConfig& p = config.parallel;
    p.tensor = tensor;
    p.pipeline = pipeline;
    p.data = 0;
    p.virtual_stages = 1;
    p.schedule = "1f1b";
    p.sequence = tensor > 1;
    p.zero = facts_.world > tensor * pipeline ? 1 : 0;
    config.train.micro_batch = micro;
    return config;
  }

  /// Below this a step is not expected, judged by the simulation of its first micro-batches, as
  /// many as there are stages (interleaved: a multiple of them): each further one takes at least
  /// what the rank that computes longest computes and waits for its tensor ranks. 0: it cannot be,
  /// or does not fit even so.
  double least_time(const RunConfig& config) {
    RunConfig few = config;
    const std::int64_t ranks =
        config.parallel.tensor * config.parallel.context * config.parallel.pipeline;
    const std::int64_t samples = facts_.world / ranks * config.train.micro_batch;
    const std::int64_t all = base_.train.batch / samples;
    std::int64_t first = std::min(all, std::max<std::int64_t>(2, config.parallel.pipeline));
    const std::int64_t sets = base_.numerics.reproducible ? base_.numerics.virtual_data : 1;
    while (first < all && first * samples % sets != 0) ++first;
    few.train.batch = first * samples;
    const std::optional<FoundLayout> found = simulated(few);
    progress_(++result_.simulated);
    if (!found || !fits(*found)) return 0;
    double each = 0;
    for (const auto& [part, seconds] : found->times.longest().parts) {
      const bool of_micro_batch = part == "products" || part == "attention" ||
                                  part == comm::name_of(comm::GroupKind::tensor) ||
                                  part == comm::name_of(comm::GroupKind::kv) ||
                                  part == comm::name_of(comm::GroupKind::context) ||
                                  part == plan::name_of(plan::Work::Kind::memory);
      if (of_micro_batch) each += seconds;
    }
    // Parts have a little that a step does once, and not for each micro-batch.
    constexpr double margin = 0.97;
    return margin * (found->times.seconds +
                     static_cast<double>(all - first) * each / static_cast<double>(first));
  }

  /// One key changed.
  static std::vector<RunConfig> changed(const RunConfig& config, int copies) {
    std::vector<RunConfig> all;
    const auto add = [&](const auto& change) { change(all.emplace_back(config).parallel); };
    if (copies > 1) {
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
      std::vector<std::pair<RunConfig, int>> best;  // and copies of the parameters
      for (const FoundLayout& each : result_.fitting) {
        if (best.size() == most_varied) break;
        best.emplace_back(each.config, each.shape.copies());
      }
      const double before = best.empty() ? 0 : result_.fitting.front().times.seconds;
      for (const auto& [config, copies] : best) {
        if (!varied_.insert(name_of(config)).second) continue;
        for (const RunConfig& each : changed(config, copies)) attempt(each);
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
      RunConfig config = shaped(tensor, pipeline, 1);
      for (const char* recompute : {"none", "full"}) {
        config.parallel.recompute = recompute;
        const std::optional<FoundLayout> found = simulated(config);
        if (!found || !fits(*found)) continue;
        result_.usual.push_back(*found);
        return;
      }
    }
  }

  /// Simulates a layout that can be among the best. False: it does not fit.
  bool attempt(const RunConfig& config, std::optional<double> known = {}) {
    auto& list = result_.fitting;
    if (!tried_.insert(name_of(config)).second) return true;
    const double least = known ? *known : least_time(config);
    if (least == 0) return false;
    if (list.size() == most_found && least > list.back().times.seconds) return true;
    std::optional<FoundLayout> found = simulated(config);
    if (!found || !fits(*found)) return false;
    const auto place = std::ranges::upper_bound(
        list, found->times.seconds, {}, [](const FoundLayout& each) { return each.times.seconds; });
    list.insert(place, std::move(*found));
    if (list.size() > most_found) list.pop_back();
    return true;
  }

  bool fits(const FoundLayout& layout) {
    if (result_.nearest.memory == 0 || layout.memory < result_.nearest.memory) {
      result_.nearest = layout;
    }
    return layout.memory <= memory_;
  }

  /// Nothing where it cannot be.
  std::optional<FoundLayout> simulated(const RunConfig& asked) {
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
      return {};
    }
    for (const plan::RankClass& each : stages.classes) {
      std::int64_t bytes = 0;
      for (const auto& [use, held] : each.trace.memory) {
        if (machine_.on_host() || !device::in_host_memory(use)) bytes += held;
      }
      layout.memory = std::max(layout.memory, bytes);
    }
    layout.times = plan::simulate(layout.shape, stages.classes, stages.class_of, machine_);
    return layout;
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
  std::set<std::string> tried_, varied_;
  LayoutSearch result_;
};

}  // namespace

LayoutSearch search_layouts(const RunConfig& config, const LayoutFacts& facts,
                            const plan::Machine& machine, std::int64_t memory,
                            const std::function<void(int simulated)>& progress) {
  LayoutSearch result = Search(config, facts, machine, memory, progress).run();
  if (result.fitting.empty() && result.nearest.memory == 0) {
    throw AgreedError(
        "no layout divides {} heads, {} layers and a batch of {} over {}; use a train.batch that "
        "the data ranks divide",
        config.model.heads, config.model.layers, config.train.batch, counted(facts.world, "rank"));
  }
  return result;
}

nlohmann::ordered_json layout_keys(const RunConfig& config) {
  const auto& p = config.parallel;
  return {{"parallel",
           {{"tensor", p.tensor},
            {"context", p.context},
            {"pipeline", p.pipeline},
            {"virtual_stages", p.virtual_stages},
            {"schedule", p.schedule},
            {"zero", p.zero},
            {"sequence", p.sequence},
            {"recompute", p.recompute}}},
          {"train", {{"micro_batch", config.train.micro_batch}}}};
}

}  // namespace trireme::train
