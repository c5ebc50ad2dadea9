// Predicted memory of a training step of well-known models, which runs match to the byte.
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/plan/memory.hpp"

namespace trireme::plan::test {
namespace {

std::int64_t bytes_of(const model::ModelConfig& config, const parallel::StageOptions& options) {
  const model::Transformer model(config);
  const parallel::Stage stage(model, options);
  MemoryQuestion question;
  question.threads = 2;
  question.shape = comm::make_grid_shape(1, {});
  const auto memory = predict_memory(stage, question);
  return std::accumulate(memory.begin(), memory.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& use) { return sum + use.second; });
}

model::ModelConfig gpt2() {
  model::ModelConfig config;
  config.layers = 12;
  config.width = 768;
  config.heads = 12;
  config.vocabulary = 50257;
  config.sequence = 1024;
  config.tied = true;
  config.resolve();
  return config;
}

constexpr double mib = 1 << 20;

// GPT-2 124M, 4 sequences of 1,024 tokens in one micro-batch. State is 16 bytes for each of 124.4M
// parameters in either type. Each of the 12 layers keeps 10 widths per token (input, q|k|v, mixed,
// middle, four before GELU), of which two or three layers alias gradients.
TEST(StepMemory, Gpt2OnCpus) {
  const double state = 124439808 / mib, width = 4096 * 768 / mib;
  const double fp32 = static_cast<double>(bytes_of(
      gpt2(), {.sequences = 4, .recompute = parallel::usual_recompute(true, gpt2().width)}));
  EXPECT_LE(fp32 / mib, 16 * state + 4 * width * (10 * 10 + 8) + 16);
  const double bf16 = static_cast<double>(
      bytes_of(gpt2(), {.sequences = 4,
                        .recompute = parallel::usual_recompute(true, gpt2().width),
                        .compute = DType::bf16,
                        .reads_masters = true}));
  EXPECT_LE(bf16 / mib, 16 * state + 2 * width * (8 * 10 + 8) + 48);
}

// Each policy takes no more than the one before; if backward is split, recomputed activations must
// last from one part to the other and may take more than they save.
TEST(StepMemory, PoliciesAreInOrder) {
  model::ModelConfig config = gpt2();
  for (const bool llama : {false, true}) {
    if (llama) {
      config.norm = "rmsnorm";
      config.activation = "swiglu";
      config.bias = false;
      config.hidden = 2048;
    }
    for (const char* schedule : {"1f1b", "zero-bubble"}) {
      for (const int micro_batches : {1, 4}) {
        std::int64_t before = std::numeric_limits<std::int64_t>::max();
        for (const auto policy : {model::Recompute::none, model::Recompute::cheap,
                                  model::Recompute::selective, model::Recompute::full}) {
          const std::int64_t bytes = bytes_of(
              config, {.schedule = schedule, .micro_batches = micro_batches, .recompute = policy});
          const bool rebuilds = policy > model::Recompute::cheap;
          if (rebuilds && schedule == std::string("zero-bubble")) continue;
          EXPECT_LE(bytes, before)
              << schedule << " x" << micro_batches << " policy " << static_cast<int>(policy);
          before = bytes;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::plan::test
