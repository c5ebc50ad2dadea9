// Bytes of parameters, gradients and optimizer state that a rank holds, against closed forms.
#include <gtest/gtest.h>

#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::parallel::test {
namespace {

constexpr std::int64_t width = 128, vocabulary = 512, length = 32, layers = 4;

/// GPT-2 with sizes that four tensor ranks divide, so that nothing is rounded.
model::ModelConfig even_model(bool tied) {
  model::ModelConfig config;
  config.layers = layers;
  config.width = width;
  config.heads = 8;
  config.vocabulary = vocabulary;
  config.sequence = length;
  config.tied = tied;
  config.resolve();
  return config;
}

/// Parameters of the units [begin, end) on one of `t` tensor ranks: matrices and the biases of
/// column-parallel layers are split, all else is whole.
std::int64_t rank_parameters(const params::Range& units, int t, bool tied) {
  const std::int64_t c = width;
  std::int64_t sum = 0;
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    if (unit == 0) {
      sum += vocabulary * c / t + length * c;
    } else if (unit <= layers) {
      // qkv, out, up, down with their biases; two norms
      sum += (12 * c * c + 3 * c + 4 * c) / t + 2 * c + 4 * c;
    } else {
      sum += 2 * c;
      if (!tied || units.begin > 0) sum += vocabulary * c / t;  // its own copy
    }
  }
  return sum;
}

struct Bytes {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
};

/// The ledger of one rank.
Bytes held(const Stage& stage) {
  device::MemoryLedger ledger;
  const state::ModelState state(stage.layout(), stage.shards(), stage.state_options(), ledger);
  const optim::Optimizer optimizer({}, stage.shards().elements(), ledger);
  using device::Use;
  return {ledger.held(Use::parameters), ledger.held(Use::gradients), ledger.held(Use::optimizer)};
}

class StateBytes : public testing::TestWithParam<int> {};  // the ZeRO stage

// fp32 with AdamW: 4 + 4 + 8 bytes per parameter; each sharded part divided by the shard ranks.
struct Degrees {
  int tensor, pipeline, data, shard;
};

TEST_P(StateBytes, EqualTheFormula) {
  const int zero = GetParam();
  for (const bool tied : {true, false}) {
    const model::Transformer model(even_model(tied));
    for (const Degrees& degrees :
         {Degrees{1, 1, 4, 4}, {4, 1, 2, 2}, {2, 2, 4, 4}, {2, 3, 8, 8}, {1, 1, 4, 2}}) {
      const int tensor = degrees.tensor, pipeline = degrees.pipeline, data = degrees.data,
                shard = degrees.shard;
      for (int stage_index = 0; stage_index < pipeline; ++stage_index) {
        Bytes sum;
        std::int64_t parameters = 0, groups = 0;
        for (int d = 0; d < shard; ++d) {
          const StageOptions options{.place = {.tensor = tensor,
                                               .pipeline = pipeline,
                                               .data = data,
                                               .shard = shard,
                                               .stage = stage_index,
                                               .data_rank = d},
                                     .zero = zero};
          const Stage stage(model, options);
          const Bytes own = held(stage);
          parameters = rank_parameters(stage.chunks().front(), tensor, tied);
          groups = static_cast<std::int64_t>(stage.layout().groups().size());
          // Shard boundaries are on norm blocks, at most half a block off.
          const auto expect = [&](const char* what, std::int64_t bytes, std::int64_t each,
                                  bool sharded) {
            const double ideal = static_cast<double>(each * parameters) / (sharded ? shard : 1);
            const auto slack =
                static_cast<double>(sharded ? each * groups * params::norm_block : 0);
            EXPECT_NEAR(static_cast<double>(bytes), ideal, slack)
                << what << ": zero " << zero << " tensor " << tensor << " pipeline " << pipeline
                << " shard " << shard << " rank " << d << " stage " << stage_index;
          };
          expect("parameters", own.parameters, 4, zero >= 3);
          expect("gradients", own.gradients, 4, zero >= 2);
          expect("optimizer", own.optimizer, 8, zero >= 1);
          // Exactly as in the shard map.
          for (int g = 0; zero > 0 && g < groups; ++g) {
            const auto& counts = stage.shards().counts(g);
            const double even =
                static_cast<double>(
                    stage.layout().groups()[static_cast<std::size_t>(g)].elements.size()) /
                shard;
            for (const std::int64_t count : counts) {
              EXPECT_NEAR(static_cast<double>(count), even,
                          static_cast<double>(params::norm_block));
            }
          }
          EXPECT_EQ(own.optimizer, 8 * stage.shards().elements());
          sum.parameters += own.parameters;
          sum.gradients += own.gradients;
          sum.optimizer += own.optimizer;
        }
        // Within a shard group nothing is held twice and nothing is missing.
        EXPECT_EQ(sum.parameters, 4 * parameters * (zero >= 3 ? 1 : shard));
        EXPECT_EQ(sum.gradients, 4 * parameters * (zero >= 2 ? 1 : shard));
        EXPECT_EQ(sum.optimizer, 8 * parameters * (zero >= 1 ? 1 : shard));
      }
    }
  }
}

/// bf16: a copy beside masters takes two bytes a parameter; CPUs read the masters directly if each
/// rank has all of them.
TEST_P(StateBytes, OfMastersReadDirectly) {
  const model::Transformer model(even_model(true));
  for (const bool direct : {false, true}) {
    for (const bool offload : {false, true}) {
      const Stage stage(model, {.place = {.data = 2, .shard = 2},
                                .zero = GetParam(),
                                .offload = offload,
                                .compute = DType::bf16,
                                .reads_masters = direct});
      const state::StateOptions options = stage.state_options();
      const std::int64_t parameters = rank_parameters(stage.chunks().front(), 1, true);
      const bool copied = !direct || offload || GetParam() > 0;
      EXPECT_EQ(options.has_masters(), copied);
      EXPECT_EQ(options.values(), copied ? DType::bf16 : DType::f32);
      if (GetParam() > 0) continue;
      using state::ModelState;
      EXPECT_EQ(ModelState::bytes(stage.layout(), stage.shards(), options).parameters,
                (copied ? 2 : 4) * parameters);
      EXPECT_EQ(ModelState::bytes(stage.layout(), stage.shards(), options).masters,
                (copied ? 4 : 0) * parameters);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, StateBytes, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace trireme::parallel::test
