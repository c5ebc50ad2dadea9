// Kernels and bytes of device memory of a training step on a GPU, counted without one: the table of
// docs/gpu.md.
#include <gtest/gtest.h>

#include "trireme/model/config.hpp"

#include "parallel/layouts.hpp"
#include "support/traffic.hpp"

namespace trireme::parallel::test {
namespace {

using testing_support::CountingOps;
using testing_support::Traffic;
using Counts = std::map<std::string, Traffic>;  // by operation

constexpr std::int64_t sequences = 8, length = 1024, tokens = sequences * length;

/// GPT-2 124M with `layers` layers.
model::ModelConfig model_of(std::int64_t layers) {
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  fields.from_json({{"model", model::find_preset("gpt2").values}}, config::Source::preset, "gpt2");
  config.layers = layers;
  config.sequence = length;
  config.resolve();
  return config;
}

/// One step in bf16.
Counts step_of(std::int64_t layers, std::int64_t micro_batch = sequences) {
  const model::ModelConfig config = model_of(layers);
  Counts counts;
  const MakeTestDevice make = [&](int) {
    return TestDevice{nullptr, [&](device::MemoryLedger&, int, bool) {
                        return std::make_unique<CountingOps>(counts);
                      }};
  };
  LayoutCase layout;
  layout.micro_batch = static_cast<int>(micro_batch);
  const RunSettings settings{.global_batch = static_cast<int>(sequences),
                             .reproducible = false,
                             .make_device = make,
                             .compute = DType::bf16};
  LayoutRun run(config, layout, stage_options(layout, settings), MPI_COMM_WORLD, make);
  counts.clear();  // of initialization
  run.replica.backward(make_batches(config, layout, 0, 0, static_cast<int>(sequences)));
  run.replica.update(1e-3, 0, 1);
  return counts;
}

const char* part_of(const std::string& operation) {
  if (operation == "matmul" || operation == "column_sum") return "products";
  if (operation.rfind("attention", 0) == 0) return "attention";
  if (operation.find("norm") != std::string::npos) return "norms";
  if (operation == "add" || operation == "copy") return "residuals";
  if (operation == "fill") return "zeros";
  if (operation == "add_squares") return "gradient norm";
  if (operation == "adamw" || operation == "round") return "update";
  return "head and embedding";
}

Counts by_part(const Counts& counts) {
  Counts parts;
  for (const auto& [operation, traffic] : counts) parts[part_of(operation)] += traffic;
  return parts;
}

struct Row {
  const char* part;
  std::int64_t launches, bytes;              // of a layer; bytes by token
  std::int64_t other_launches, other_bytes;  // of the rest of the step
};

// A larger number is a slower step: more launches, or memory that is read again.
TEST(StepTraffic, OfGpt2IsThatOfTheDocuments) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 1) GTEST_SKIP() << "one rank has the whole step";
  Counts two = by_part(step_of(2)), three = by_part(step_of(3));
  for (const Row& row :
       {Row{"products", 16, 96008, 3, 343843}, Row{"attention", 4, 18528, 0, 0},
        Row{"norms", 6, 21540, 3, 7698}, Row{"residuals", 1, 4608, 1, 8},
        Row{"zeros", 5, 5, 4, 385}, Row{"head and embedding", 0, 0, 8, 324654},
        Row{"gradient norm", 0, 3461, 2, 19231}, Row{"update", 9, 25957, 3, 144233}}) {
    const Traffic &more = three[row.part], &fewer = two[row.part];
    const std::int64_t launches = more.launches - fewer.launches;
    const std::int64_t bytes = more.bytes() - fewer.bytes();
    EXPECT_EQ(launches, row.launches) << row.part;
    EXPECT_NEAR(static_cast<double>(bytes) / tokens, static_cast<double>(row.bytes), 1) << row.part;
    EXPECT_EQ(more.launches - 3 * launches, row.other_launches) << row.part << " of no layer";
    EXPECT_NEAR(static_cast<double>(more.bytes() - 3 * bytes) / tokens,
                static_cast<double>(row.other_bytes), 1)
        << row.part << " of no layer";
  }
  EXPECT_EQ(three.size(), 8U) << "parts";
}

// Of several micro-batches only the first one writes gradients of weights.
TEST(StepTraffic, LaterMicroBatchesAddToGradients) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 1) GTEST_SKIP() << "one rank has the whole step";
  Counts whole = by_part(step_of(2)), halves = by_part(step_of(2, sequences / 2));
  const model::ModelConfig config = model_of(2);
  const std::int64_t width = config.width;
  // Of each micro-batch beyond the first: all weights and their gradients once more.
  const std::int64_t weights = 2 * 12 * width * width + config.vocabulary * width;
  const std::int64_t more = halves["products"].bytes() - whole["products"].bytes();
  const std::int64_t expected = weights * (2 * 2 + 2 * 4);  // bf16 in two products; fp32
  EXPECT_NEAR(static_cast<double>(more), static_cast<double>(expected),
              0.01 * static_cast<double>(expected));
}

}  // namespace
}  // namespace trireme::parallel::test
