// The whole model, its gradients and its optimiser against PyTorch (tests/reference).
#include "support/reference.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "trireme/comm/communicator.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"

namespace trireme {
namespace {

using testing_support::Reference;

/// The model of a reference case with its parameters, on one rank.
class Case {
 public:
  explicit Case(const std::string& name, std::int64_t micro_batch = 3)
      : reference(std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/reference", name),
        model(config_of(reference)),
        state(model, true, ledger),
        ops(ops::make_cpu_ops(1)),
        group(comm::make_self_communicator()),
        engine(model, state, *ops, *group, recorder, ledger,
               {.max_rows = micro_batch * model.config().sequence}) {
    for (const params::Parameter& row : model.table().rows()) {
      const auto values = reference.tensor<float>("parameters/" + row.name).values;
      EXPECT_EQ(static_cast<std::int64_t>(values.size()), row.shape.elements()) << row.name;
      std::copy(values.begin(), values.end(), state.parameters().as<float>() + row.offset);
    }
    EXPECT_EQ(reference.names("parameters/").size(), model.table().rows().size());
  }

  /// Sequences [first, first + count) of the reference batch.
  parallel::HostMicrobatch batch(std::int64_t first, std::int64_t count) const {
    const std::int64_t length = model.config().sequence;
    data::Batch batch{.sequences = count, .length = length};
    const auto part = [&](const auto& all) {
      return std::vector(all.begin() + first * length, all.begin() + (first + count) * length);
    };
    batch.inputs = part(reference.tensor<std::int32_t>("ids").values);
    batch.targets = part(reference.tensor<std::int32_t>("targets").values);
    batch.weights = part(reference.tensor<float>("weights").values);
    for (std::int64_t i = 0; i < count * length; ++i) {
      batch.positions.push_back(static_cast<std::int32_t>(i % length));
    }
    for (std::int64_t i = 0; i < count; ++i) batch.samples.push_back(first + i);
    return parallel::HostMicrobatch(std::move(batch));
  }
  std::vector<parallel::HostMicrobatch> whole() const {
    std::vector<parallel::HostMicrobatch> batches;
    batches.push_back(batch(0, reference.batch()));
    return batches;
  }

  static model::ModelConfig config_of(const Reference& reference) {
    model::ModelConfig config;
    config::Fields fields;
    fields.section("model", config);
    fields.from_json({{"model", reference.config()}}, config::Source::file, "reference");
    config.resolve();
    return config;
  }

  Reference reference;
  device::MemoryLedger ledger;
  Recorder recorder;
  model::Transformer model;
  state::ModelState state;
  std::unique_ptr<ops::Ops> ops;
  std::unique_ptr<comm::Communicator> group;
  parallel::Engine engine;
};

/// Each parameter's gradient g: error at most 1e-5·max(‖g‖, 1e-2·‖all‖/√(number of parameters)).
/// Some gradients (key biases) are zero in exact arithmetic and only rounding here, hence the
/// second term.
void expect_gradients(const Case& c) {
  double all = 0;
  for (const params::Parameter& row : c.model.table().rows()) {
    for (double g : c.reference.tensor<double>("gradients/" + row.name).values) all += g * g;
  }
  const double floor =
      1e-2 * std::sqrt(all) / std::sqrt(static_cast<double>(c.model.table().rows().size()));
  for (const params::Parameter& row : c.model.table().rows()) {
    const auto expected = c.reference.tensor<double>("gradients/" + row.name).values;
    const float* found = c.state.gradients().as<float>() + row.offset;
    double norm = 0, error = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      norm += expected[i] * expected[i];
      error += (found[i] - expected[i]) * (found[i] - expected[i]);
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::max(std::sqrt(norm), floor)) << row.name;
  }
}

class ReferenceTest : public testing::TestWithParam<std::string> {};
class ReferenceTraining : public testing::TestWithParam<std::string> {};  // cases with gradients

TEST_P(ReferenceTest, Logits) {
  Case c(GetParam());
  const std::int64_t rows = 3 * c.model.config().sequence, vocabulary = c.model.config().vocabulary;
  std::vector<float> logits(static_cast<std::size_t>(rows * vocabulary));
  c.engine.logits(c.batch(0, 3), Tensor(logits.data(), {rows, vocabulary}));
  const auto expected = c.reference.tensor<double>("logits").values;
  double largest = 0;
  for (double x : expected) largest = std::max(largest, std::abs(x));
  // fp32 sums of a few hundred terms through three blocks: some tens of roundings of the largest
  // logit.
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(logits[i], expected[i], 64 * 6e-8 * largest)
        << "row " << i / 101 << " column " << i % 101;
  }
}

TEST_P(ReferenceTest, Loss) {
  Case c(GetParam());
  const parallel::LossSum sum = c.engine.evaluate(c.batch(0, 3));
  EXPECT_NEAR(sum.mean(), c.reference.loss(), 1e-6 * c.reference.loss());
}

TEST_P(ReferenceTraining, Gradients) {
  Case c(GetParam());
  const parallel::LossSum sum = c.engine.step(c.whole());
  EXPECT_NEAR(sum.mean(), c.reference.loss(), 1e-6 * c.reference.loss());
  expect_gradients(c);
}

// Accumulation over micro-batches with unequal weights: each is divided by the whole batch's
// weight, not its own.
TEST_P(ReferenceTraining, GradientsOfMicroBatches) {
  Case c(GetParam(), 2);
  std::vector<parallel::HostMicrobatch> batches;
  batches.push_back(c.batch(0, 2));
  batches.push_back(c.batch(2, 1));
  const parallel::LossSum sum = c.engine.step(batches);
  EXPECT_NEAR(sum.mean(), c.reference.loss(), 1e-6 * c.reference.loss());
  expect_gradients(c);
}

TEST_P(ReferenceTraining, TenAdamWSteps) {
  Case c(GetParam());
  const nlohmann::json& golden = c.reference.adamw();
  const optim::OptimConfig config{.learning_rate = golden.at("learning_rate"),
                                  .beta1 = golden.at("beta1"),
                                  .beta2 = golden.at("beta2"),
                                  .epsilon = golden.at("epsilon"),
                                  .weight_decay = golden.at("weight_decay"),
                                  .clip = golden.at("clip_norm")};
  optim::Optimizer optimizer(config, c.model.table(), c.ledger);
  for (std::int64_t step = 0; step < 10; ++step) {
    const double loss = c.engine.step(c.whole()).mean();
    const auto index = static_cast<std::size_t>(step);
    const double expected = golden.at("losses")[index],
                 expected_norm = golden.at("gradient_norms")[index];
    EXPECT_NEAR(loss, expected, 1e-5 * expected) << "step " << step;
    const double norm = optim::global_norm(*c.ops, c.model.table(), c.state.gradients());
    EXPECT_NEAR(norm, expected_norm, 1e-4 * expected_norm) << "step " << step;
    optimizer.update(*c.ops, c.state.parameters(), c.state.gradients(), config.learning_rate, step,
                     optim::clip_factor(norm, config.clip));
  }
  const double after = golden.at("loss_after");
  EXPECT_NEAR(c.engine.evaluate(c.batch(0, 3)).mean(), after, 1e-5 * after);
}

TEST_P(ReferenceTraining, PlannedMemoryIsUsedToTheByte) {
  Case c(GetParam());
  (void)c.engine.step(c.whole());
  EXPECT_EQ(c.engine.stash_high_water(), c.engine.layout().stash_bytes);
  EXPECT_EQ(c.engine.workspace_high_water(), c.engine.layout().workspace_bytes);
}

INSTANTIATE_TEST_SUITE_P(PyTorch, ReferenceTraining, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(PyTorch, ReferenceTest, testing::Values("gpt2", "llama", "llama3_rope"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trireme
