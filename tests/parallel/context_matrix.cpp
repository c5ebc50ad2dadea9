// Context parallelism: layouts of up to eight ranks against one rank, bit for bit in reproducible
// mode, and within the bounds of the fast mode. Layouts of n ranks run 8/n at a time.
#include "fast_bounds.hpp"
#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

struct ContextModel {
  std::string name;
  model::ModelConfig config;
  bool documents = false;
};

/// With documents and without; sequences of 32 tokens, so that a chunk of eight pairs has two.
std::vector<ContextModel> context_models() {
  std::vector<ContextModel> models;
  for (const bool llama : {false, true}) {
    for (const bool documents : {false, true}) {
      model::ModelConfig config = testing_support::odd_model(llama);
      config.sequence = 32;
      config.heads = 6;
      config.kv_heads = llama ? 2 : 6;
      config.dropout = llama ? 0 : 0.1;
      config.resolve();
      models.push_back(
          {fmt::format("{}{}", llama ? "llama" : "gpt2", documents ? " with documents" : ""),
           config, documents});
    }
  }
  return models;
}

struct Runs {
  bool reproducible = true;
  int virtual_context = 4;
  std::vector<std::string> models = {"gpt2 with documents", "llama"};
  DType compute = DType::f32;
  MakeTestDevice make_device;
};

std::vector<ContextModel> models_of(const Runs& runs) {
  std::vector<ContextModel> models = context_models();
  std::erase_if(models, [&](const ContextModel& model) {
    return std::ranges::find(runs.models, model.name) == runs.models.end();
  });
  return models;
}

RunSettings settings_of(const ContextModel& model, const Runs& runs) {
  return {.steps = runs.reproducible ? 2 : 6,
          .global_batch = 8,
          .reproducible = runs.reproducible,
          .virtual_tensor = 2,
          .virtual_data = 4,
          .virtual_context = runs.virtual_context,
          .documents = model.documents,
          .make_device = runs.make_device,
          .compute = runs.compute};
}

/// Context 1 to 8 with every other axis, ZeRO stage, recomputation and schedule, each by both
/// exchanges.
std::vector<LayoutCase> context_layouts() {
  std::vector<LayoutCase> layouts;
  const auto add = [&](LayoutCase layout) {
    layouts.push_back(layout);
    layout.ring = true;
    if (layout.context > 1) layouts.push_back(layout);
  };
  using model::Recompute;
  add({.micro_batch = 2, .context = 1});
  add({.micro_batch = 2, .threads = 2, .context = 2});
  add({.micro_batch = 4, .recompute = Recompute::selective, .context = 4});
  add({.micro_batch = 1, .context = 8});
  add({.data = 2, .zero = 1, .micro_batch = 2, .recompute = Recompute::full, .context = 2});
  add({.data = 2, .zero = 2, .micro_batch = 2, .recompute = Recompute::cheap, .context = 4});
  add({.data = 4, .zero = 3, .micro_batch = 1, .context = 2});
  add({.data = 4, .shard = 4, .zero = 3, .reshard = false, .micro_batch = 2, .context = 2});
  add({.tensor = 2, .micro_batch = 2, .recompute = Recompute::full, .context = 2});
  add({.tensor = 2, .sequence_parallel = true, .micro_batch = 2, .context = 4});
  add({.tensor = 2,
       .data = 2,
       .zero = 2,
       .sequence_parallel = true,
       .micro_batch = 1,
       .recompute = Recompute::selective,
       .context = 2});
  add({.pipeline = 2, .micro_batch = 1, .context = 2});
  add({.pipeline = 2,
       .schedule = "zero-bubble",
       .micro_batch = 1,
       .recompute = Recompute::selective,
       .context = 4});
  add({.pipeline = 2,
       .data = 2,
       .zero = 1,
       .schedule = "gpipe",
       .micro_batch = 2,
       .recompute = Recompute::full,
       .context = 2});
  add({.tensor = 2,
       .pipeline = 2,
       .sequence_parallel = true,
       .schedule = "interleaved",
       .virtual_stages = 2,
       .micro_batch = 2,
       .context = 2});
  return layouts;
}

/// visit(model, layout, result) on the layout's ranks.
template <class Visit>
void run_all(const Runs& runs, const Visit& visit) {
  for (int ranks = world_size(); ranks >= 1; ranks /= 2) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank() / ranks, world_rank(), &comm);
    int number = 0;
    for (const ContextModel& model : models_of(runs)) {
      for (const LayoutCase& layout : context_layouts()) {
        if (layout.ranks() != ranks || layout.context > runs.virtual_context) continue;
        if (number++ % (world_size() / ranks) != world_rank() / ranks) continue;
        const std::string what = model.name + " " + layout.to_string();
        try {
          const RunResult result = run_layout(model.config, layout, settings_of(model, runs), comm);
          EXPECT_EQ(result.fault, "") << what;
          visit(model, result, what);
        } catch (const std::exception& error) {
          fmt::print("{}\n{}\n", what, error.what());
          std::fflush(stdout);
          MPI_Abort(MPI_COMM_WORLD, 1);
        }
      }
    }
    MPI_Comm_free(&comm);
  }
}

/// One rank's results on every rank, by model.
std::map<std::string, RunResult> one_rank(const Runs& runs, const LayoutCase& layout = {}) {
  std::map<std::string, RunResult> results;
  for (const ContextModel& model : models_of(runs)) {
    LayoutCase whole = layout;
    whole.micro_batch = 4;
    results[model.name] = run_layout(model.config, whole, settings_of(model, runs), MPI_COMM_SELF);
  }
  return results;
}

void expect_same_bits(const Runs& runs) {
  const auto one = one_rank(runs);
  run_all(runs, [&](const ContextModel& model, const RunResult& result, const std::string& what) {
    EXPECT_EQ(first_difference(one.at(model.name), result), "") << what;
  });
}

TEST(ContextMatrix, ReproducibleEqualsOneRankBitForBit) { expect_same_bits({}); }

TEST(ContextMatrix, ReproducibleOfEightPairs) {
  expect_same_bits({.virtual_context = 8, .models = {"llama with documents"}});
}

TEST(ContextMatrix, ReproducibleInBf16EqualsOneRankBitForBit) {
  expect_same_bits({.models = {"llama with documents"}, .compute = DType::bf16});
}

TEST(ContextMatrix, ReproducibleOnDevices) {
  expect_same_bits({.models = {"gpt2 with documents"}, .make_device = make_simulated_device});
}

TEST(ContextMatrix, FastStaysWithinItsBounds) {
  const Runs fast{.reproducible = false,
                  .virtual_context = 8,
                  .models = {"gpt2", "gpt2 with documents", "llama", "llama with documents"}};
  const auto one = one_rank(fast);
  BoundUse use;
  run_all(fast, [&](const ContextModel& model, const RunResult& result, const std::string& what) {
    EXPECT_EQ(
        out_of_bounds(model.config, 8 * model.config.sequence, one.at(model.name), result, use), "")
        << what;
  });
}

}  // namespace
}  // namespace trireme::parallel::test
