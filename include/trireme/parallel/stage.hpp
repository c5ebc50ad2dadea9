// One rank's part: its units and tiles, the programs that it runs, and their memory. Pure, so that
// `plan` and a run agree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/shape.hpp"
#include "trireme/core/pairwise.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/lowering.hpp"
#include "trireme/parallel/stage_memory.hpp"
#include "trireme/schedule/schedule.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::parallel {

struct Place {
  int tensor = 1, pipeline = 1;  // degrees
  int data = 1;                  // copies of the parameters: data × context
  int shard = 1;                 // of these, those among which state is sharded
  int kv = 0;                    // as GridShape::kv
  int tensor_rank = 0, stage = 0, data_rank = 0;
  int context = 1, context_rank = 0;  // data_rank modulo context

  int data_degree() const { return data / context; }
};

/// That of `rank` of a grid. `alone`: see ReplicaOptions.
Place place_of(const comm::GridShape& shape, int rank, bool alone);

struct StageOptions {
  Place place;
  std::string schedule = "1f1b";  // a name, or file:PATH
  std::string schedule_text;      // of that file; read by one rank for all
  int virtual_stages = 1;
  int micro_batches = 1;       // of a replica in a step
  std::int64_t sequences = 1;  // of a micro-batch
  bool train = true;
  int zero = 0;
  bool reshard_after_forward = true;
  bool offload = false;  // of the optimizer's state; see state::StateOptions
  bool served = false;   // likewise
  bool sequence_parallel = false;
  model::Recompute recompute = model::Recompute::none;
  bool exact_gelu = true;  // see model::Shares; not where libraries for GPUs make it in a product
  bool products_on_gpu = false;  // see model::Shares
  bool chunks = true;            // likewise
  DType compute = DType::f32;
  /// CPUs, where weights are rounded to nearest: units read fp32 parameters that no other rank
  /// holds a part of; see state::StateOptions.
  bool reads_masters = false;
  DType sent_gradients = DType::f32;  // between data ranks: f32 or bf16
  bool reproducible = false;
  int virtual_tensor = 8, virtual_data = 8, virtual_context = 1;
  bool ring = false;     // see model::Shares
  bool planned = false;  // not run: every stage's program is made in turn, in two seconds
};

/// What is recomputed by default: on CPUs what takes one pass over kept values, where the model is
/// so wide that products hide it; on GPUs, whose memory is slower relative to their products,
/// nothing.
model::Recompute usual_recompute(bool host, std::int64_t width);

/// What tensor parallelism and the mode make of a unit there.
model::Shares shares_of(const StageOptions& options);

/// What all stages of a layout have in common: where the model is cut, and their schedules.
struct Pipeline {
  /// Throws ConfigError, as Stage does. Of `options` its place matters as far as degrees go.
  Pipeline(const model::Transformer& model, const StageOptions& options);
  std::vector<int> bounds;                    // units; [stages·virtual stages + 1]
  std::vector<schedule::StageSteps> steps;    // of a training step, by stage
  std::vector<schedule::StageSteps> forward;  // of one micro-batch forward, by stage
};

class Stage {
 public:
  /// Throws ConfigError for what cannot be laid out; rules of single keys are checked by their
  /// fields. `model` must outlive the stage.
  Stage(const model::Transformer& model, const StageOptions& options);
  /// The same of several stages of one pipeline, made once.
  Stage(const model::Transformer& model, const StageOptions& options, const Pipeline& pipeline);
  /// Makes it the stage of another data rank: the same but for its shards.
  void move_to(int data_rank);
  const model::Transformer& model() const { return model_; }
  const StageOptions& options() const { return options_; }
  const model::Shares& shares() const { return shares_; }
  const std::vector<params::Range>& chunks() const { return chunks_; }
  const params::Layout& layout() const { return *layout_; }
  const state::ShardMap& shards() const { return *shards_; }
  /// Of a training step; without training forward_program.
  const Program& program() const { return program_; }
  /// Of one micro-batch's evaluation or generation.
  const Program& forward_program() const { return forward_program_; }
  const StagePlan& memory() const { return *memory_; }
  int sets() const { return sets_; }  // see state::StateOptions
  /// The set to which a leaf of a micro-batch adds its gradients and losses: by group of sequences,
  /// then by pair of chunks (model::ContextPart).
  int set_of(int micro_batch, int leaf) const;
  /// The sets that a call adds to where it has all leaves of each (UnitContext::whole_sums), a
  /// power of two; else 1.
  int sets_of_call() const;
  /// The sets whose sums for a row of the table a call adds up into the first of them; 1: none.
  int joined_sets(const params::Parameter& row) const;
  /// Adds up the sets into set 0, in the tree that every layout has: add(to, from) over pairs of
  /// chunks; join(set), which continues with those of other ranks; then over groups of sequences.
  template <class Add, class Join>
  void add_sets(const Add& add, const Join& join) const {
    const std::int64_t pairs = shares_.context.count;
    for (std::int64_t set = 0; set < sets_; set += pairs) {
      add_pairwise(pairs, [&](auto to, auto from) { add(set + to, set + from); });
      if (joins_context()) join(set);
    }
    add_pairwise(sets_ / pairs, [&](auto to, auto from) { add(pairs * to, pairs * from); });
  }
  /// Whether context ranks add up each set by itself, before all copies of the parameters do.
  bool joins_context() const { return options_.reproducible && shares_.context.ranks() > 1; }
  state::StateOptions state_options() const;
  int last_unit() const { return static_cast<int>(model_.units().size()) - 1; }
  bool holds_last_unit() const { return layout_->has_unit(last_unit()); }

 private:
  void lower_programs(const Pipeline& pipeline);

  const model::Transformer& model_;
  StageOptions options_;
  model::Shares shares_;
  int sets_ = 1;
  std::vector<params::Range> chunks_;
  std::unique_ptr<params::Layout> layout_;
  std::unique_ptr<state::ShardMap> shards_;
  Program program_, forward_program_;
  std::unique_ptr<StagePlan> memory_;
};

}  // namespace trireme::parallel
