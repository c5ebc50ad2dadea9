// Memory of a run by use, from what each part of the program says that it takes. Long because every
// use has its rule here.
#include "trireme/plan/memory.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/model/block.hpp"
#include "trireme/model/embedding_head.hpp"
#include "trireme/ops/workspace.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/state/offload.hpp"
#include "trireme/state/update.hpp"

namespace trireme::plan {

namespace {

/// Most leaves of a call that add to different gradients, and thus do so at once where they are not
/// added up one after the other. More at once never take less workspace.
std::int64_t most_sets_of_call(const parallel::Stage& stage) {
  const parallel::Leaves& leaves = stage.memory().leaves();
  if (leaves.at_once == 1) return 1;
  // A set has `each` leaves, and some call begins in one with as few left as the divisor.
  const std::int64_t each =
      std::int64_t{stage.options().micro_batches} * leaves.count / stage.sets();
  TRIREME_ASSERT(each > 0, "{} sets of {} calls of {} leaves", stage.sets(),
                 stage.options().micro_batches, leaves.count);
  return (leaves.count - std::gcd<std::int64_t>(leaves.count, each) + each - 1) / each + 1;
}

/// The sums of the gradient of a row that run at once.
struct SumsOfRows {
  std::int64_t rows = 0;  // of the largest
  std::int64_t count = 0;
};
/// Of a row that is not split.
SumsOfRows sums_of_rows(const parallel::Stage& stage, std::int64_t most_at_once) {
  const std::int64_t rows = stage.memory().leaves().rows;  // of one leaf
  const model::Shares& shares = stage.shares();
  if (!shares.reproducible) return {shares.rows(rows).size(), 1};
  SumsOfRows sums;
  for (int v = 0; v < shares.tiles.all; ++v) {
    const bool own = v >= shares.tiles.first && v < shares.tiles.first + shares.tiles.count;
    if (shares.sequence_parallel && !own) continue;
    const std::int64_t size = params::tile_of(rows, v, shares.tiles.all).size();
    sums.rows = std::max(sums.rows, size);
    if (size > 0) ++sums.count;
  }
  sums.count *= most_at_once;
  return sums;
}

/// Of a stage's tile of heads number `i` of its own, whose keys are keys[i] wide: one call, of all
/// sequences or of a chunk of queries and one of keys.
ops::AttentionShape attention_shape(const parallel::Stage& stage,
                                    const std::vector<std::int64_t>& keys, int i) {
  const model::ModelConfig& config = stage.model().config();
  const params::Tiles& tiles = stage.shares().tiles;
  const model::ContextPart& part = stage.shares().context;
  const std::int64_t length = part.cuts() ? config.sequence / (2 * part.pairs) : config.sequence;
  return {part.cuts() ? 1 : stage.memory().leaves().call_rows() / length,
          length,
          length,
          params::tile_of(config.heads, tiles.first + i, tiles.all).size(),
          keys[static_cast<std::size_t>(i)] / config.head_size(),
          config.head_size()};
}

/// Whether the stage holds a block.
bool attends(const parallel::Stage& stage) {
  for (int unit = 1; unit < stage.last_unit(); ++unit) {
    if (stage.layout().has_unit(unit)) return true;
  }
  return false;
}

/// The stage's calls of attention in one call of a unit. They run at once, or with cut sequences
/// one by one.
std::vector<ops::AttentionShape> attention_shapes(const parallel::Stage& stage) {
  const params::Tiles& tiles = stage.shares().tiles;
  const std::vector<std::int64_t> keys =
      model::Attention::key_widths(stage.model().config(), tiles);
  std::vector<ops::AttentionShape> shapes;
  for (int i = 0; attends(stage) && i < tiles.count; ++i) {
    const ops::AttentionShape shape = attention_shape(stage, keys, i);
    if (shape.heads > 0) shapes.push_back(shape);
  }
  return shapes;
}

/// Products with the stage's weights on the host: forward, gradients for inputs and for weights.
std::size_t product_workspace(const parallel::Stage& stage, int threads) {
  const bool wide_factors = stage.shares().compute == DType::f32;
  const model::ModelConfig& config = stage.model().config();
  const params::Layout& layout = stage.layout();
  const std::int64_t all = stage.memory().leaves().call_rows();
  std::size_t bytes = 0;
  const auto count = [&](std::span<const ops::ProductShape> products, bool transposed, bool wide,
                         std::int64_t copies = 1) {
    if (wide_factors) return;
    bytes =
        std::max(bytes, ops::cpu_product_workspace(products, transposed, wide, threads, copies));
  };
  const auto count_float_sum = [&](std::int64_t m, std::int64_t n, std::int64_t group_rows,
                                   std::int64_t terms) {
    bytes = std::max(bytes, ops::cpu_float_sum_workspace(m, n, group_rows, terms, threads));
  };
  for (std::size_t row = 0; row < layout.table().rows().size(); ++row) {
    const params::Parameter& weight = layout.table().rows()[row];
    if (!weight.in_products) continue;
    const bool head = weight.units.back() == stage.last_unit();
    if (head && !stage.holds_last_unit()) continue;  // looked up alone
    std::vector<Shape> tiles;
    for (const int b : layout.blocks_of(static_cast<int>(row))) {
      tiles.push_back(layout.blocks()[static_cast<std::size_t>(b)].shape);
    }
    // The head computes leaf by leaf, in blocks of rows.
    const std::int64_t leaf = stage.memory().leaves().rows;
    const std::int64_t most =
        head ? model::Head::block_rows(leaf, config.width, config.vocabulary,
                                       stage.shares().compute, stage.shares().products_on_gpu)
             : all;
    // Products whose results are split run at once for all tiles, and so do those that are summed
    // over tiles.
    const auto count_summed = [&](std::int64_t m) {
      const int out = weight.split == 1 ? 0 : 1;
      if (tiles.size() == 1) {
        const ops::ProductShape product{m, tiles[0][out], tiles[0][1 - out]};
        return count({&product, 1}, false, stage.shares().partial() == DType::f32);
      }
      std::vector<std::int64_t> inner;
      for (const Shape& tile : tiles) inner.push_back(tile[1 - out]);
      if (m == 0 || inner.empty()) return;
      if (wide_factors) {
        return count_float_sum(m, tiles[0][out], head ? 0 : leaf, std::ssize(inner));
      }
      bytes = std::max(bytes, ops::cpu_sum_workspace(m, tiles[0][out], inner, threads));
    };
    const auto count_gradients = [&](std::int64_t rows, std::int64_t leaves) {
      std::vector<ops::ProductShape> gradients;
      for (const Shape& tile : tiles) gradients.push_back({tile[0], tile[1], rows});
      count(gradients, true, true, leaves);
    };
    const auto count_joined_gradients = [&](std::int64_t sets) {
      std::vector<ops::ProductSumShape> sums;
      for (const Shape& tile : tiles) {
        if (tile.elements() == 0) continue;
        sums.push_back({tile[0], tile[1], leaf, stage.memory().leaves().count});
        if (wide_factors) count_float_sum(tile[0], tile[1], 0, sets);
      }
      if (wide_factors || sums.empty()) return;
      const bool shared = sums.size() == 1 || weight.split == 0;
      bytes = std::max(bytes, ops::cpu_left_sum_workspace(sums, sets, shared, threads));
    };
    for (const std::int64_t m : {most, head ? leaf % most : 0}) {
      std::vector<ops::ProductShape> split;
      for (const Shape& tile : tiles) {
        const std::int64_t out = tile[0], in = tile[1];
        split.push_back(weight.split == 1 ? ops::ProductShape{m, in, out}
                                          : ops::ProductShape{m, out, in});
      }
      count(split, false, false);
      count_summed(m);
      if (head) count_gradients(m, 1);
    }
    if (head) continue;
    const std::int64_t joined = stage.joined_sets(weight);
    if (joined > 1) {
      count_joined_gradients(joined);
    } else {
      count_gradients(leaf, most_sets_of_call(stage));
    }
    if (weight.split != 1) continue;
    for (const params::Range& chunk : model::row_chunks(stage.shares(), all)) {
      count_summed(chunk.size());
    }
  }
  return bytes;
}

/// What libraries of the CUDA backend take, as far as it is known.
std::size_t cuda_ops_workspace(const parallel::Stage& stage, const CudaWork& work) {
  const bool plain = work.plain_attention && stage.shares().compute != DType::f32;
  std::size_t attention = 0;
  for (const ops::AttentionShape& shape : attention_shapes(stage)) {
    if (!plain || !ops::cuda_attention_fuses(shape)) continue;
    attention =
        std::max(attention, ops::cuda_attention_workspace(shape, work.deterministic_attention));
  }
  return ops::cuda_product_workspace + device::aligned(attention);
}

/// What the CPU backend's most demanding call takes.
std::size_t ops_workspace(const parallel::Stage& stage, int threads, bool host) {
  const bool narrow_on_host = host && stage.shares().compute == DType::bf16;
  const model::ModelConfig& config = stage.model().config();
  const params::Layout& layout = stage.layout();
  std::size_t bytes = 0;
  const auto count_attention = [&](std::span<const ops::AttentionShape> calls) {
    const bool reproducible = stage.shares().reproducible;
    bytes = std::max(bytes, narrow_on_host
                                ? ops::cpu_narrow_attention_workspace(calls, threads, reproducible)
                                : ops::cpu_attention_workspace(calls, threads, reproducible));
  };
  const std::vector<ops::AttentionShape> attention = attention_shapes(stage);
  if (stage.shares().context.cuts()) {
    for (const ops::AttentionShape& call : attention) count_attention({&call, 1});
  } else {
    count_attention(attention);
  }
  if (host) bytes = std::max(bytes, product_workspace(stage, threads));
  const std::int64_t most_at_once = most_sets_of_call(stage);
  for (const params::Block& block : layout.blocks()) {
    const params::Parameter& row = layout.table().row(block.row);
    if (row.shape.dimensions() != 1 || block.elements() == 0) continue;
    // Gains and biases: their gradients are sums over rows; a norm makes both of its at once, and
    // gains are what begins as ones.
    const bool gain = row.initialization.kind == params::Initialization::Kind::ones;
    const int outputs = gain && config.layer_norm() && config.bias ? 2 : 1;
    SumsOfRows sums{stage.memory().leaves().rows, most_at_once};
    if (block.slices.empty()) {
      sums = sums_of_rows(stage, most_at_once);
    } else {
      const auto used = [&](int b) {
        return layout.blocks()[static_cast<std::size_t>(b)].elements() > 0;
      };
      sums.count *= std::ranges::count_if(layout.blocks_of(block.row), used);
    }
    bytes = std::max(bytes, ops::cpu_row_sum_workspace(sums.rows, block.elements(), outputs,
                                                       static_cast<int>(sums.count), threads));
  }
  return device::aligned(bytes);
}

/// Most rows of activations, or of their gradients, that a stage's units sum at once. Blocks sum
/// all rows in backward, and in forward where these are too few for chunks.
std::int64_t most_rows_summed(const parallel::Stage& stage) {
  const std::int64_t rows = stage.memory().leaves().call_rows();
  for (int unit = 0; unit < stage.last_unit(); ++unit) {
    if (stage.layout().has_unit(unit)) return rows;
  }
  if (!stage.options().train) return 0;  // the head
  if (stage.shares().sequence_parallel) return rows;
  const model::ModelConfig& config = stage.model().config();
  return model::Head::block_rows(stage.memory().leaves().rows, config.width, config.vocabulary,
                                 stage.shares().compute, stage.shares().products_on_gpu);
}

/// Bytes of the largest tensor that a stage's units reduce over the tensor axis.
std::size_t largest_tensor_sum(const parallel::Stage& stage) {
  const model::ModelConfig& config = stage.model().config();
  const std::int64_t rows = stage.memory().leaves().rows;
  params::Tiles tiles = stage.shares().tiles;
  std::int64_t activations = most_rows_summed(stage) * config.width;
  if (stage.shares().sequence_parallel && activations > 0) {
    std::int64_t most = 0;
    const int ranks = stage.shares().tensor_ranks();
    for (int rank = 0; rank < ranks; ++rank) {
      tiles.first = rank * tiles.count;
      most = std::max(most, tiles.of(rows).size() * config.width);
    }
    activations = ranks * most;
  }
  std::int64_t sums = state::TensorSums::largest_messages(stage.layout(), stage.shares()).rows;
  if (stage.holds_last_unit()) {
    sums = std::max(
        sums, 2 * model::Head::block_rows(rows, config.width, config.vocabulary,
                                          stage.shares().compute, stage.shares().products_on_gpu));
  }
  return std::max(static_cast<std::size_t>(activations) * size_of(stage.shares().partial()),
                  static_cast<std::size_t>(sums) * sizeof(float));
}

/// Bytes of the largest tensor that a stage's units, or the reducer of its gradients, sum over the
/// context axis.
std::size_t largest_context_sum(const parallel::Stage& stage) {
  const model::ContextPart& part = stage.shares().context;
  if (part.ranks() == 1) return 0;
  std::size_t most = 0;
  for (const std::int64_t width :
       model::Attention::key_widths(stage.model().config(), stage.shares().tiles)) {
    const std::int64_t elements = stage.memory().leaves().rows * part.pairs * 2 * width;
    if (attends(stage)) most = std::max(most, static_cast<std::size_t>(elements));
  }
  most *= size_of(stage.shares().partial());
  if (!stage.joins_context()) return most;
  for (const params::Group& group : stage.layout().groups()) {
    most = std::max(most, static_cast<std::size_t>(group.elements.size()) * sizeof(float));
  }
  return most;
}

std::size_t communication_bytes(const parallel::Stage& stage, const MemoryQuestion& question) {
  const parallel::Place& place = stage.options().place;
  const params::Layout& layout = stage.layout();
  using Kind = comm::GroupKind;
  // Bytes that reductions of one communicator add to its agreement's.
  const auto added = [&](Kind kind, int ranks, std::size_t most) {
    return reduction_bytes(stage, question, kind, ranks, most);
  };
  std::size_t bytes = comm::grid_bytes(question.shape, question.rank, question.backends);
  bytes += added(Kind::tensor, place.tensor, largest_tensor_sum(stage));
  if (!stage.options().train) return bytes;
  bytes += added(Kind::context, place.context, largest_context_sum(stage));
  const auto floats = [](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(float);
  };
  bytes += added(Kind::kv, question.shape.kv_size(),
                 floats(state::TensorSums::largest_messages(layout, stage.shares()).heads));
  bytes += static_cast<std::size_t>(state::TensorSums::bytes(layout, stage.shares()) +
                                    question.method.communication);
  bytes += static_cast<std::size_t>(
               parallel::GradientSums::narrow_elements(stage, question.bucket_elements)) *
           size_of(DType::bf16);
  if (stage.options().served) return bytes;  // nothing of gradients passes between these ranks
  const std::size_t squares = norm_bytes(stage);
  const int members = question.alone ? place.tensor * place.pipeline : question.shape.size();
  bytes += squares + added(question.alone ? Kind::model : Kind::world, members, squares);
  if (!question.host) bytes += squares;  // read by the host from staging memory
  std::int64_t data = 0, shard = 0, replica = 0, tied = 0;
  if (!question.alone && stage.options().zero == 0) {
    for (const auto& bucket :
         parallel::plan_buckets(stage.program(), layout, question.bucket_elements)) {
      data = std::max(data, bucket.elements.size());
    }
  }
  for (int g = 0; g < stage.shards().groups(); ++g) {
    const auto& counts = stage.shards().counts(g);
    const bool shared =
        !layout.has_unit(layout.groups()[static_cast<std::size_t>(g)].units.back()) ||
        !layout.has_unit(layout.groups()[static_cast<std::size_t>(g)].units.front());
    const bool shards = stage.state_options().gradients_sharded();
    if (shared) {
      const std::int64_t whole = layout.groups()[static_cast<std::size_t>(g)].elements.size();
      tied = std::max(tied, shards ? stage.shards().own(g).size() : whole);
    }
    if (stage.options().zero == 0) continue;
    shard = std::max(shard, *std::max_element(counts.begin(), counts.end()) * place.shard);
    replica = std::max(replica, stage.shards().own(g).size());
  }
  const auto sent = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(stage.options().sent_gradients);
  };
  return bytes + added(Kind::data, question.shape.copies(), sent(data)) +
         added(Kind::shard, place.shard, sent(shard)) +
         added(Kind::replica, place.data / place.shard, sent(replica)) +
         added(Kind::embedding, tied > 0 ? 2 : 1, floats(tied));
}

/// The copy of what this rank writes of parameters and `states` states of the optimizer.
std::int64_t snapshot_bytes(const parallel::Stage& stage, std::int64_t states,
                            const MemoryQuestion& question) {
  const int copies = question.shape.copies();
  const checkpoint::Writers all{question.rank / question.shape.of(comm::Axis::tensor) % copies,
                                copies};
  const auto elements = [&](bool sharded, const checkpoint::Writers& writers) {
    return checkpoint::piece_elements(stage.layout(), stage.shards(), sharded, writers);
  };
  const state::StateOptions state = stage.state_options();
  const bool shards = state.optimizer_sharded();
  const MethodMemory& method = question.method;
  return std::int64_t{sizeof(float)} *
         (elements(state.has_masters() ? shards : state.values_sharded(), all) +
          method.saved_buffers * elements(false, all) +
          states * elements(shards, method.own_states ? checkpoint::Writers{} : all));
}

}  // namespace

bool predicts_all(device::Use use, bool host, bool served) {
  if (host || (served && use == device::Use::communication)) return true;
  return use != device::Use::workspace && use != device::Use::communication;
}

std::map<device::Use, std::int64_t> predict_memory(const parallel::Stage& stage,
                                                   const MemoryQuestion& question) {
  using device::Use;
  const state::StateOptions options = stage.state_options();
  const auto states =
      static_cast<std::int64_t>(optim::Optimizer::state_names(question.optim).size());
  const state::ModelState::Bytes own =
      state::ModelState::bytes(stage.layout(), stage.shards(), options);
  const std::int64_t optimizer =
      own.masters +
      (options.updates() ? states * stage.shards().elements() * std::int64_t{sizeof(float)} : 0) +
      question.method.optimizer;
  std::map<Use, std::int64_t> memory{
      {Use::parameters, own.parameters},
      {Use::gradients, own.gradients},
      {Use::gathered, own.gathered},
      {Use::stash, static_cast<std::int64_t>(stage.memory().stash_bytes())},
      {Use::workspace,
       static_cast<std::int64_t>(stage.memory().work_bytes() +
                                 (question.cuda
                                      ? cuda_ops_workspace(stage, *question.cuda)
                                      : ops_workspace(stage, question.threads, question.host)))},
      {Use::batch, static_cast<std::int64_t>(parallel::Engine::batch_bytes(stage, question.host))},
      {Use::communication, static_cast<std::int64_t>(communication_bytes(stage, question))}};
  if (options.offloaded()) {
    memory[Use::offloaded] =
        optimizer + state::Offload::bytes(stage.shards(), options, question.bucket_elements);
  } else {
    memory[Use::optimizer] = optimizer;
  }
  if (question.snapshots) memory[Use::snapshot] = snapshot_bytes(stage, states, question);
  return memory;
}

std::size_t reduction_bytes(const parallel::Stage& stage, const MemoryQuestion& question,
                            comm::GroupKind kind, int ranks, std::size_t most) {
  switch (question.backends[kind]) {
    case comm::Backend::shared:
      return 0;
    case comm::Backend::nccl: {
      // Sums of fp32 gradients are the library's, but in reproducible mode; those of the tensor and
      // the context axis are counted as if Trireme added them all, which it does of narrow types.
      using Kind = comm::GroupKind;
      const bool narrow = stage.options().sent_gradients != DType::f32 &&
                          (kind == Kind::data || kind == Kind::shard || kind == Kind::replica);
      return stage.shares().reproducible || kind == Kind::tensor || kind == Kind::context || narrow
                 ? comm::nccl_scratch_bytes(ranks, most)
                 : 0;
    }
    case comm::Backend::mpi:
      return comm::scratch_bytes(ranks, most) - comm::scratch_bytes(ranks, 0);
  }
  no_case_for(question.backends[kind]);
}

std::size_t norm_bytes(const parallel::Stage& stage) {
  return static_cast<std::size_t>(
             state::GradientNorm::partial_sums(stage.layout().table(), stage.shares())) *
         sizeof(double);
}

}  // namespace trireme::plan
