// Embedding, block and head on one rank: values against plain loops in double precision, gradients
// against finite differences of these, and every order of backward against every other, bit by bit.
#include <algorithm>
#include <bit>

#include <gtest/gtest.h>

#include "trireme/model/block.hpp"

#include "unit_run.hpp"

namespace trireme::model::test {
namespace {

enum class Part { embedding, block, head };

struct Case {
  std::string name;
  ModelConfig config;
  Tokens tokens;
};

ModelConfig gpt2() {
  ModelConfig config;
  config.layers = 2;
  config.heads = 3;
  config.width = 33;
  config.hidden = 37;
  config.vocabulary = 41;
  config.sequence = 7;
  config.resolve();
  return config;
}

ModelConfig llama() {
  ModelConfig config;
  config.layers = 2;
  config.heads = 9;
  config.kv_heads = 3;
  config.width = 54;
  config.hidden = 29;
  config.vocabulary = 43;
  config.sequence = 11;
  config.norm = "rmsnorm";
  config.position = "rotary";
  config.activation = "swiglu";
  config.bias = config.tied = false;
  config.resolve();
  return config;
}

/// Odd token ids, weights of which one in four is zero, samples that are not the first ones.
Tokens tokens_for(const ModelConfig& config, std::int64_t sequences) {
  Tokens tokens{.sequences = sequences, .length = config.sequence};
  const auto draw = [](std::uint64_t i, std::uint32_t stream) {
    return random_bits({11, Purpose::initialization, stream}, i);
  };
  const auto vocabulary = static_cast<std::uint32_t>(config.vocabulary);
  for (std::int64_t r = 0; r < tokens.rows(); ++r) {
    const auto i = static_cast<std::uint64_t>(r);
    tokens.inputs.push_back(static_cast<std::int32_t>(draw(i, 0) % vocabulary));
    tokens.targets.push_back(static_cast<std::int32_t>(draw(i, 1) % vocabulary));
    tokens.weights.push_back(static_cast<float>(draw(i, 2) % 4) / 2);
    tokens.positions.push_back(static_cast<std::int32_t>(r % tokens.length));
  }
  for (std::int64_t b = 0; b < sequences; ++b) tokens.samples.push_back(7 * b + 3);
  return tokens;
}

/// Cuts each sequence into documents of unequal length, at which positions begin again.
Tokens with_documents(Tokens tokens) {
  for (std::int64_t r = 0; r < tokens.rows(); ++r) {
    const std::int64_t sequence = r / tokens.length, t = r % tokens.length, cut = 3 + sequence;
    tokens.documents.push_back(t < cut ? 0 : 1);
    tokens.positions[static_cast<std::size_t>(r)] =
        static_cast<std::int32_t>(t < cut ? t : t - cut);
  }
  return tokens;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  const auto add = [&](const std::string& name, const ModelConfig& config, bool documents) {
    const Tokens tokens = tokens_for(config, 3);
    result.push_back({name, config, documents ? with_documents(tokens) : tokens});
  };
  ModelConfig config = gpt2();
  add("gpt2", config, false);
  config.dropout = 0.2;
  config.attention_dropout = 0.15;
  add("gpt2_dropout", config, false);
  config.bias = config.tied = false;
  add("gpt2_no_bias_untied_documents", config, true);
  config = llama();
  add("llama", config, false);
  config.dropout = 0.3;
  config.attention_dropout = 0.1;
  config.bias = config.tied = true;
  add("llama_bias_dropout_documents", config, true);
  config = llama();
  config.norm = "layernorm";
  config.heads = 5;
  config.kv_heads = 1;
  config.width = 30;
  config.bias = true;
  config.resolve();
  add("mixed_one_group", config, false);
  return result;
}

double uniform_at(std::uint32_t stream, std::size_t i) {
  return 2 * double{uniform({12, Purpose::initialization, stream}, i)} - 1;
}

std::vector<float> random_values(std::uint32_t stream, std::size_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(uniform_at(stream, i));
  return values;
}

/// fp32 numbers; sums over a matrix's rows of about 1, gains around 1.
Parameters random_parameters(const Transformer& model) {
  Parameters parameters;
  std::uint32_t stream = 100;
  for (const params::Parameter& row : model.table().rows()) {
    const bool matrix = row.shape.dimensions() == 2;
    const double scale = matrix ? std::sqrt(3.0 / static_cast<double>(row.shape[1])) : 0.4;
    const bool gain = row.initialization.kind == params::Initialization::Kind::ones;
    Values& values = parameters[row.name];
    for (std::int64_t i = 0; i < row.shape.elements(); ++i) {
      const double value = scale * uniform_at(stream, static_cast<std::size_t>(i));
      values.push_back(static_cast<float>(gain ? 1 + value : value));
    }
    ++stream;
  }
  return parameters;
}

class UnitsTest : public testing::TestWithParam<std::tuple<std::size_t, Part>> {
 protected:
  UnitsTest()
      : case_(cases()[std::get<0>(GetParam())]),
        part_(std::get<1>(GetParam())),
        model_(case_.config),
        parameters_(random_parameters(model_)),
        oracle_(case_.config, case_.tokens, UnitRun::seed) {
    const auto size = static_cast<std::size_t>(case_.tokens.rows() * case_.config.width);
    if (part_ != Part::embedding) x_ = random_values(1, size);
    if (part_ != Part::head) dy_ = random_values(2, size);
  }

  Outcome run(const Options& options) {
    const int unit = part_ == Part::embedding ? 0 : part_ == Part::block ? layer + 1 : 3;
    return UnitRun(model_, unit, parameters_, case_.tokens, options).run(x_, dy_);
  }
  Values output(const Parameters& parameters, const Values& x) const {
    return part_ == Part::embedding ? oracle_.embedding(parameters)
                                    : oracle_.block(parameters, layer, x);
  }
  /// What the gradients are of.
  double objective(const Parameters& parameters, const Values& x) const {
    if (part_ == Part::head) return UnitRun::gradient_factor * oracle_.loss(parameters, x);
    const Values y = output(parameters, x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += double{dy_[i]} * y[i];
    return sum;
  }

  /// Relative to a tensor's largest element: at most 20 operations follow one another, and each
  /// rounds sums of at most `n` terms, so that the error of one is at most n·2⁻²⁴ of the terms.
  double tolerance() const {
    const ModelConfig& config = case_.config;
    const std::int64_t n = std::max({config.qkv_width(), 2 * config.hidden, config.vocabulary});
    return 20 * static_cast<double>(n) / (1 << 24);
  }

  /// `found` against central differences of the objective in some thirty elements of `values`,
  /// which is part of what `evaluate` reads. Error of the differences: h²/6 of third derivatives
  /// and 2⁻⁵³/h of the objective, both below 1e-8 here.
  template <class Evaluate>
  void expect_derivative(Values& values, const std::vector<float>& found, const Evaluate& evaluate,
                         const std::string& what) {
    ASSERT_EQ(values.size(), found.size()) << what;
    constexpr double h = 1.0 / (1 << 14);
    float largest = 0;
    for (const float value : found) largest = std::max(largest, std::abs(value));
    const double bound = tolerance() * double{largest} + 1e-8;
    int failures = 0;
    for (std::size_t i = 0; i < values.size() && failures < 3; i += values.size() / 30 + 1) {
      const double before = values[i];
      values[i] = before + h;
      const double above = evaluate();
      values[i] = before - h;
      const double below = evaluate();
      values[i] = before;
      const double expected = (above - below) / (2 * h);
      if (std::abs(double{found[i]} - expected) <= bound) continue;
      ADD_FAILURE() << what << "[" << i << "] = " << found[i] << ", expected " << expected
                    << " within " << bound;
      ++failures;
    }
  }

  void expect_right(const Outcome& outcome) {
    Values x(x_.begin(), x_.end());
    Parameters parameters = parameters_;
    if (part_ == Part::head) {
      const double expected = oracle_.loss(parameters, x);
      EXPECT_NEAR(outcome.loss, expected, tolerance() * expected);
    } else {
      const Values expected = output(parameters, x);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(outcome.y[i], expected[i], 4 * tolerance()) << "y[" << i << "]";
      }
    }
    const auto evaluate = [&] { return objective(parameters, x); };
    if (!x.empty()) expect_derivative(x, outcome.dx, evaluate, "dx");
    for (const auto& [name, gradient] : outcome.gradients) {
      expect_derivative(parameters[name], gradient, evaluate, name);
    }
  }

  static constexpr int layer = 1;
  Case case_;
  Part part_;
  Transformer model_;
  Parameters parameters_;
  Oracle oracle_;
  std::vector<float> x_, dy_;
};

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(bits(a.y), bits(b.y)) << "y";
  EXPECT_EQ(bits(a.dx), bits(b.dx)) << "dx";
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.loss), std::bit_cast<std::uint64_t>(b.loss));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, gradient] : a.gradients) {
    EXPECT_EQ(bits(gradient), bits(b.gradients.at(name))) << name;
  }
}

TEST_P(UnitsTest, MatchesFiniteDifferences) { expect_right(run({})); }

TEST_P(UnitsTest, MatchesFiniteDifferencesInTiles) { expect_right(run({.tiles = 4})); }

TEST_P(UnitsTest, EveryBackwardGivesTheSameBits) {
  for (const int tiles : {1, 4}) {
    const Outcome expected = run({.tiles = tiles});
    for (const Recompute recompute :
         {Recompute::none, Recompute::cheap, Recompute::selective, Recompute::full}) {
      for (const bool split : {false, true}) {
        SCOPED_TRACE(testing::Message() << tiles << " tiles, recompute "
                                        << static_cast<int>(recompute) << ", split " << split);
        expect_same_bits(run({.recompute = recompute, .split = split, .tiles = tiles}), expected);
      }
    }
  }
}

std::string name_of_case(const testing::TestParamInfo<UnitsTest::ParamType>& info) {
  const char* const parts[] = {"Embedding", "Block", "Head"};
  return parts[static_cast<int>(std::get<1>(info.param))] +
         ("_" + cases()[std::get<0>(info.param)].name);
}

INSTANTIATE_TEST_SUITE_P(Every, UnitsTest,
                         testing::Combine(testing::Range<std::size_t>(0, 6),
                                          testing::Values(Part::embedding, Part::block,
                                                          Part::head)),
                         name_of_case);

TEST(Rounds, LeavesOfOneSetComeInOrder) {
  const ParameterViews sets[3];
  const Microbatch batch;
  const Shares shares;
  const std::unique_ptr<ops::Ops> ops = ops::make_cpu_ops(1);
  const std::unique_ptr<comm::Communicator> self = comm::make_self_communicator();
  device::Stream stream;
  const TensorGroup tensor{*self, *self, stream};
  UnitContext context{.ops = *ops,
                      .batch = batch,
                      .shares = shares,
                      .tensor = tensor,
                      .values = sets[0],
                      .leaves = {},
                      .memory = {}};
  for (const int set : {0, 0, 1, 1, 1, 2}) context.leaves.push_back({.gradients = &sets[set]});
  std::vector<std::vector<std::size_t>> rounds;
  for_each_round(context, [&](std::span<const std::size_t> leaves) {
    rounds.emplace_back(leaves.begin(), leaves.end());
  });
  EXPECT_EQ(rounds, (std::vector<std::vector<std::size_t>>{{0, 2, 5}, {1, 3}, {4}}));
}

// Groups end where key/value heads do; in reproducible mode they are part of one tree.
TEST(Attention, KeyValueGroupsHoldTheirHeads) {
  const auto ranks_of = [](std::int64_t heads, std::int64_t kv_heads, int ranks, int tiles = 0) {
    ModelConfig config;
    config.heads = heads;
    config.kv_heads = kv_heads;
    return Attention::kv_ranks(config, ranks, tiles == 0 ? ranks : tiles, tiles > 0);
  };
  EXPECT_EQ(ranks_of(8, 8, 8), 1);
  EXPECT_EQ(ranks_of(8, 4, 4), 1);
  EXPECT_EQ(ranks_of(8, 2, 8), 4);
  EXPECT_EQ(ranks_of(8, 2, 8, 8), 4);
  EXPECT_EQ(ranks_of(8, 2, 4, 8), 2);
  EXPECT_EQ(ranks_of(8, 2, 2, 8), 1);
  EXPECT_EQ(ranks_of(6, 2, 6), 3);
  EXPECT_EQ(ranks_of(6, 2, 6, 6), 6) << "three ranks are no part of the tree over six";
  EXPECT_EQ(ranks_of(6, 2, 4), 2) << "tiles of 1, 2, 1 and 2 heads";
  EXPECT_EQ(ranks_of(2, 1, 8, 8), 8) << "tiles without heads";
}

}  // namespace
}  // namespace trireme::model::test
