// The whole model, its gradients and its optimizer against PyTorch (tests/reference), in every kind
// of layout that fits the launch.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/state/update.hpp"

#include "layouts.hpp"
#include "support/reference.hpp"

namespace trireme::parallel::test {
namespace {

using testing_support::Reference;

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

struct Setting {
  std::string name;
  LayoutCase layout;
  bool reproducible = false;
};

Reference open(const std::string& name) {
  return {std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/reference", name};
}

model::ModelConfig config_of(const Reference& reference) {
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  fields.from_json({{"model", reference.config()}}, config::Source::file, "reference");
  config.resolve();
  return config;
}

/// Layouts of exactly as many ranks as the launch has, for a case of `all` sequences.
std::vector<Setting> settings(const std::string& name) {
  const Reference reference = open(name);
  const auto all = static_cast<int>(reference.batch());
  const std::vector<Setting> known = {
      {"one", {.micro_batch = all}},
      {"micro_batches", {.micro_batch = 1}},
      {"threads", {.micro_batch = all, .threads = 2}},
      {"reproducible", {.micro_batch = all}, true},
      {"cheap_recomputation", {.micro_batch = all, .recompute = model::Recompute::cheap}},
      {"full_recomputation", {.micro_batch = all, .recompute = model::Recompute::full}},
      {"zero_bubble", {.schedule = "zero-bubble"}},
      {"tensor", {.tensor = 2, .micro_batch = all}},
      {"sequence_parallel", {.tensor = 2, .sequence_parallel = true, .micro_batch = all}},
      {"pipeline", {.pipeline = 2}},
      {"interleaved", {.pipeline = 2, .schedule = "interleaved", .virtual_stages = 2}},
      {"tensor4", {.tensor = 4, .micro_batch = all}},
      {"tensor4_reproducible", {.tensor = 4, .sequence_parallel = true, .micro_batch = all}, true},
      {"tensor_pipeline", {.tensor = 2, .pipeline = 2, .sequence_parallel = true}},
      {"pipeline4", {.pipeline = 4, .schedule = "zero-bubble"}},
      {"context", {.micro_batch = all, .context = 2}},
      {"context4", {.micro_batch = all, .context = 4}},
      {"context4_ring", {.micro_batch = all, .context = 4, .ring = true}},
      {"context4_reproducible", {.micro_batch = 1, .context = 4}, true},
      {"context_tensor", {.tensor = 2, .sequence_parallel = true, .context = 2}},
      {"context_pipeline", {.pipeline = 2, .context = 2}},
  };
  std::vector<Setting> result;
  for (const Setting& setting : known) {
    const LayoutCase& layout = setting.layout;
    const std::int64_t chunks = layout.context > 1 ? 2 * layout.context : 1;
    if (layout.ranks() == world_size() && config_of(reference).sequence % chunks == 0)
      result.push_back(setting);
  }
  return result;
}

/// The model of a reference case with its parameters.
class Case {
 public:
  Case(const std::string& name, const Setting& setting)
      : reference(open(name)),
        run(config_of(reference), setting.layout,
            stage_options(setting.layout, {.global_batch = static_cast<int>(reference.batch()),
                                           .reproducible = setting.reproducible,
                                           .virtual_tensor = 8,
                                           .virtual_data = 1,
                                           .virtual_context = setting.layout.context,
                                           .documents = reference.has("documents")}),
            MPI_COMM_WORLD) {
    const params::Layout& layout = run.replica.stage().layout();
    for (const params::Block& block : layout.blocks()) {
      const auto values =
          reference.tensor<float>("parameters/" + layout.table().row(block.row).name).values;
      layout.for_each_run(block, [&](const params::Run& part) {
        std::copy_n(values.begin() + part.logical, part.elements,
                    run.replica.state().parameters().as<float>() + block.offset + part.local);
      });
    }
    EXPECT_EQ(reference.names("parameters/").size(), layout.table().rows().size());
  }

  std::int64_t sequence() const { return run.model.config().sequence; }
  /// Sequences [first, first + count) of the reference batch.
  HostMicrobatch batch(std::int64_t first, std::int64_t count) const {
    const std::int64_t length = sequence();
    data::Batch batch{.sequences = count, .length = length};
    const auto part = [&](const auto& all) {
      return std::vector(all.begin() + first * length, all.begin() + (first + count) * length);
    };
    batch.inputs = part(reference.tensor<std::int32_t>("ids").values);
    batch.targets = part(reference.tensor<std::int32_t>("targets").values);
    batch.weights = part(reference.tensor<float>("weights").values);
    if (reference.has("documents"))
      batch.documents = part(reference.tensor<std::int32_t>("documents").values);
    for (std::int64_t i = 0; i < count * length; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool begins = i % length == 0 || (!batch.documents.empty() &&
                                              batch.documents[at] != batch.documents[at - 1]);
      batch.positions.push_back(begins ? 0 : batch.positions.back() + 1);
    }
    for (std::int64_t i = 0; i < count; ++i) batch.samples.push_back(first + i);
    return HostMicrobatch(std::move(batch));
  }
  std::vector<HostMicrobatch> batches() const {
    std::vector<HostMicrobatch> result;
    const std::int64_t micro = run.layout.micro_batch;
    for (std::int64_t i = 0; i < reference.batch(); i += micro) result.push_back(batch(i, micro));
    return result;
  }
  double evaluate() {
    LossSum sum;
    for (const HostMicrobatch& micro : batches()) {
      for (const LossSum& leaf : run.replica.engine().evaluate(micro)) {
        sum.loss += leaf.loss;
        sum.weight += leaf.weight;
      }
    }
    return sum.mean();
  }

  Reference reference;
  LayoutRun run;
};

/// Each parameter's gradient g: error at most 1e-5·max(‖g‖, 1e-2·‖all‖/√(number of parameters)).
/// The second term is for gradients (key biases) that are zero in exact arithmetic.
void expect_gradients(Case& c, const std::string& what) {
  const auto found = c.run.gradients();
  const auto& rows = c.run.model.table().rows();
  double all = 0;
  for (const params::Parameter& row : rows) {
    for (double g : c.reference.tensor<double>("gradients/" + row.name).values) all += g * g;
  }
  const double floor = 1e-2 * std::sqrt(all) / std::sqrt(static_cast<double>(rows.size()));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto expected = c.reference.tensor<double>("gradients/" + rows[r].name).values;
    double norm = 0, error = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      norm += expected[i] * expected[i];
      error += (found[r][i] - expected[i]) * (found[r][i] - expected[i]);
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::max(std::sqrt(norm), floor))
        << what << ": " << rows[r].name;
  }
}

class ReferenceTest : public testing::TestWithParam<std::string> {};
class ReferenceTraining : public testing::TestWithParam<std::string> {};  // cases with gradients

TEST_P(ReferenceTest, Logits) {
  for (const Setting& setting : settings(GetParam())) {
    Case c(GetParam(), setting);
    const LayoutCase& layout = setting.layout;
    if (layout.pipeline > 1 || layout.context > 1 || layout.micro_batch != c.reference.batch())
      continue;
    const std::int64_t rows = c.reference.batch() * c.sequence(),
                       vocabulary = c.run.model.config().vocabulary;
    std::vector<float> logits(static_cast<std::size_t>(rows * vocabulary));
    c.run.replica.engine().logits(c.batch(0, c.reference.batch()),
                                  Tensor(logits.data(), {rows, vocabulary}));
    const auto expected = c.reference.tensor<double>("logits").values;
    double largest = 0;
    for (double x : expected) largest = std::max(largest, std::abs(x));
    // fp32 sums of a few hundred terms through three blocks: some tens of roundings of the largest
    // logit.
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(logits[i], expected[i], 64 * 6e-8 * largest) << setting.name << ": element " << i;
    }
  }
}

TEST_P(ReferenceTest, Loss) {
  for (const Setting& setting : settings(GetParam())) {
    Case c(GetParam(), setting);
    EXPECT_NEAR(c.evaluate(), c.reference.loss(), 1e-6 * c.reference.loss()) << setting.name;
  }
}

// Micro-batches have unequal weights: each is divided by the whole batch's weight, not its own.
TEST_P(ReferenceTraining, Gradients) {
  for (const Setting& setting : settings(GetParam())) {
    Case c(GetParam(), setting);
    const LossSum sum = c.run.replica.backward(c.batches()).loss;
    EXPECT_NEAR(sum.mean(), c.reference.loss(), 1e-6 * c.reference.loss()) << setting.name;
    expect_gradients(c, setting.name);
  }
}

TEST_P(ReferenceTraining, TenAdamWSteps) {
  for (const Setting& setting : settings(GetParam())) {
    Case c(GetParam(), setting);
    const nlohmann::json& golden = c.reference.adamw();
    const optim::OptimConfig config{.learning_rate = golden.at("learning_rate"),
                                    .beta1 = golden.at("beta1"),
                                    .beta2 = golden.at("beta2"),
                                    .epsilon = golden.at("epsilon"),
                                    .weight_decay = golden.at("weight_decay"),
                                    .clip = golden.at("clip_norm")};
    Replica& replica = c.run.replica;
    optim::Optimizer optimizer(config, replica.stage().shards().elements(), c.run.ledger);
    const auto ranges = state::update_ranges(replica.state());
    for (std::int64_t step = 0; step < 10; ++step) {
      const StepSums sums = replica.backward(c.batches());
      const auto index = static_cast<std::size_t>(step);
      const double expected = golden.at("losses")[index],
                   expected_norm = golden.at("gradient_norms")[index];
      const double norm = sums.gradient_norm;
      EXPECT_NEAR(sums.loss.mean(), expected, 1e-5 * expected) << setting.name << " step " << step;
      EXPECT_NEAR(norm, expected_norm, 1e-4 * expected_norm) << setting.name << " step " << step;
      optimizer.update(replica.ops(), ranges, config.learning_rate, step,
                       optim::clip_factor(norm, config.clip));
    }
    const double after = golden.at("loss_after");
    EXPECT_NEAR(c.evaluate(), after, 1e-5 * after) << setting.name;
  }
}

TEST_P(ReferenceTraining, PlannedMemoryIsUsedToTheByte) {
  for (const Setting& setting : settings(GetParam())) {
    Case c(GetParam(), setting);
    (void)c.run.replica.backward(c.batches());
    const StageMemory& memory = c.run.replica.engine().memory();
    EXPECT_EQ(memory.stash_high_water(), memory.plan().stash_bytes()) << setting.name;
    EXPECT_EQ(memory.work_high_water(), memory.plan().work_bytes()) << setting.name;
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, ReferenceTraining, testing::Values("gpt2", "llama", "packed"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(PyTorch, ReferenceTest,
                         testing::Values("gpt2", "llama", "llama3_rope", "packed"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trireme::parallel::test
