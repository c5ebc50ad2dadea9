// The ranges of an update: the index in the model of each element, in any layout.
#include "trireme/state/update.hpp"

#include <cmath>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/model/transformer.hpp"
#include "trireme/ops/forwarding.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::state {
namespace {

/// Fused rows with fewer key/value heads than tiles, and widths that tiles do not divide.
model::ModelConfig llama() {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 48;
  config.heads = 6;
  config.kv_heads = 2;
  config.hidden = 70;
  config.vocabulary = 47;
  config.sequence = 11;
  config.norm = "rmsnorm";
  config.position = "rotary";
  config.activation = "swiglu";
  config.bias = false;
  config.resolve();
  return config;
}

/// Index in the model of each element of a rank's flat buffer, run by run; -1 in gaps.
std::vector<std::int64_t> indices_of(const params::Layout& layout) {
  std::vector<std::int64_t> bases{0}, result(static_cast<std::size_t>(layout.elements()), -1);
  for (const params::Parameter& row : layout.table().rows()) {
    bases.push_back(bases.back() + row.shape.elements());
  }
  for (const params::Block& block : layout.blocks()) {
    layout.for_each_run(block, [&](const params::Run& run) {
      for (std::int64_t i = 0; i < run.elements; ++i) {
        result[static_cast<std::size_t>(block.offset + run.local + i)] =
            bases[static_cast<std::size_t>(block.row)] + run.logical + i;
      }
    });
  }
  return result;
}

void expect_the_models_indices(const params::Layout& layout, int ranks, int rank) {
  const ShardMap shards(layout, ranks, rank);
  device::MemoryLedger ledger;
  StateOptions options;
  options.zero = ranks > 1 ? 3 : 0;
  options.shares.compute = DType::bf16;
  const ModelState state(layout, shards, options, ledger);
  const std::vector<std::int64_t> expected = indices_of(layout);
  const auto ranges = update_ranges(state, true);
  for (const params::FlatRange& own : shards.own_ranges()) {
    std::int64_t covered = 0;
    for (const optim::UpdateRange& range : ranges) {
      const std::int64_t begin = range.offset - own.offset;
      if (begin < 0 || begin >= own.elements.size()) continue;
      EXPECT_EQ(begin, covered) << "ranges are in order";
      for (std::int64_t i = 0; i < range.parameters.elements(); ++i) {
        const std::int64_t at = own.elements.begin + begin + i;
        const std::int64_t index = expected[static_cast<std::size_t>(at)];
        if (index >= 0) {
          ASSERT_EQ(range.indices(i), index) << "element " << at << " of the rank";
        }
      }
      covered += range.parameters.elements();
    }
    EXPECT_EQ(covered, own.elements.size());
  }
}

TEST(UpdateRanges, MapEachElementToItsIndexInTheModel) {
  const model::Transformer model(llama());
  const auto units = static_cast<std::int64_t>(model.units().size());
  for (const int tiles : {1, 2, 4, 8}) {
    for (const int count : {1, 2, tiles}) {
      for (int first = 0; first + count <= tiles; first += count) {
        const params::Layout layout(model.table(), {{0, units}}, {tiles, first, count});
        for (int rank = 0; rank < 3; ++rank) {
          expect_the_models_indices(layout, 3, rank);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(UpdateRanges, AreSplitOnlyForIndices) {
  const model::Transformer model(llama());
  const auto units = static_cast<std::int64_t>(model.units().size());
  const params::Layout layout(model.table(), {{0, units}}, {4, 1, 1});
  const ShardMap shards(layout, 1, 0);
  device::MemoryLedger ledger;
  StateOptions options;
  options.shares.compute = DType::bf16;
  const ModelState state(layout, shards, options, ledger);
  const std::size_t plain = update_ranges(state).size(),
                    indexed = update_ranges(state, true).size();
  EXPECT_LT(plain, layout.blocks().size());
  // One range per block, a fused block one per part: columns of a row-split layer are not separate
  // ranges.
  EXPECT_LE(indexed, 2 * layout.blocks().size());
}

/// Counts the calls of add_squares.
class CountedSquares final : public ops::ForwardingOps<CountedSquares> {
 public:
  explicit CountedSquares(ops::Ops& inner) : inner_(inner) {}
  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    if (std::string_view(name) == "add_squares") ++calls;
    (inner_.*operation)(arguments...);
  }
  int calls = 0;

 private:
  ops::Ops& inner_;
};

// Each launch on a GPU takes microseconds: adjacent gradients are one call, whatever their rows.
TEST(GradientNorm, CountsEachElementOnceInFewCalls) {
  const model::Transformer model(llama());
  const auto units = static_cast<std::int64_t>(model.units().size());
  for (const bool reproducible : {false, true}) {
    for (const int tiles : {1, 4}) {
      for (const int ranks : {1, 3}) {
        double squares = 0, expected = 0;
        for (int tile = 0; tile < tiles; ++tile) {
          for (int rank = 0; rank < ranks; ++rank) {
            StateOptions options;
            options.zero = ranks > 1 ? 3 : 0;
            options.shares.tiles = {tiles, tile, 1};
            options.shares.reproducible = reproducible;
            const params::Layout layout(model.table(), {{0, units}}, options.shares.tiles);
            const ShardMap shards(layout, ranks, rank);
            device::MemoryLedger ledger;
            const ModelState state(layout, shards, options, ledger);
            const auto backend = ops::make_cpu_ops(1, &ledger, reproducible);
            for (int g = 0; g < shards.groups(); ++g) {
              const Tensor own = state.own_gradient(g);
              backend->fill(own, 0);
              const params::Range& held = shards.own(g);
              for (const params::Block& block : layout.blocks()) {
                if (block.slices.empty() && tile > 0) continue;
                for (const params::Range& range : layout.owned(block)) {
                  for (std::int64_t i = range.begin; i < range.end; ++i) {
                    const std::int64_t at = block.offset + i - held.begin;
                    if (at < 0 || at >= held.size()) continue;
                    own.as<float>()[at] = static_cast<float>(1 + at % 5);
                    expected += static_cast<double>((1 + at % 5) * (1 + at % 5));
                  }
                }
              }
            }
            CountedSquares counted(*backend);
            GradientNorm norm(state, shards, true, ledger);
            norm.start(counted);
            const double root = norm.finish(*comm::make_self_communicator());
            squares += root * root;
            if (!reproducible && tile == 0) {
              EXPECT_LE(counted.calls, ranks == 1 ? 3 : shards.groups());
            }
          }
        }
        EXPECT_NEAR(squares, expected, 1e-9 * expected)
            << "reproducible " << reproducible << ", tiles " << tiles << ", ranks " << ranks;
      }
    }
  }
}

// One rank that holds all eight tiles adds four more zeros than one that holds a key/value group.
TEST(TensorSums, OfNegativeZerosDoNotDependOnTheGroup) {
  model::ModelConfig config = llama();
  config.heads = 8;
  config.resolve();
  const model::Transformer model(config);
  const auto units = static_cast<std::int64_t>(model.units().size());
  for (const int tiles : {4, 8}) {
    StateOptions options;
    options.shares.tiles = {8, 0, tiles};
    options.shares.kv_tiles = tiles;
    options.shares.reproducible = true;
    const params::Layout layout(model.table(), {{0, units}}, options.shares.tiles);
    const ShardMap shards(layout, 1, 0);
    device::MemoryLedger ledger;
    const ModelState state(layout, shards, options, ledger);
    const auto ops = ops::make_cpu_ops(1, &ledger, true);
    const auto self = comm::make_self_communicator();
    device::Stream stream;
    const TensorSums sums(state, ledger);
    ops->fill(state.gradients(), -0.0F);
    for (int g = 0; g < static_cast<int>(layout.groups().size()); ++g) {
      sums.join(g, 0, *ops, {*self, *self, stream});
    }
    const auto* gradients = static_cast<const float*>(state.gradients().data());
    int heads = 0;
    for (const params::Block& block : layout.blocks()) {
      const params::Parameter& row = model.table().row(block.row);
      for (const params::SharedGrain& grain : params::shared_grains(row, 8)) {
        const params::Range held = params::elements_of(row, block, grain);
        heads += held.size() > 0 ? 1 : 0;
        for (std::int64_t i = held.begin; i < held.end; ++i) {
          ASSERT_FALSE(std::signbit(gradients[block.offset + i])) << row.name << ", " << tiles;
        }
      }
    }
    // In both layers each tile has the key and the value of one head.
    EXPECT_EQ(heads, 2 * 2 * tiles);
  }
}

}  // namespace
}  // namespace trireme::state
