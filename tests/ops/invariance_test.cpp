// An element's bits must not depend on its position in a vector or on the number of threads.
#include "support.hpp"

namespace trireme::ops {
namespace {

class InvarianceTest : public OpsTest {};

/// op(inputs of n elements, outputs of n elements): runs it with one marked element at every
/// position of lengths 1 … 40 and requires the bits of that element computed alone.
void check_places(int inputs, int outputs,
                  const std::function<void(std::vector<Array>&, std::vector<Array>&)>& op,
                  const std::string& what) {
  for (int sample = 0; sample < 8; ++sample) {
    const auto stream = static_cast<std::uint32_t>(100 * sample);
    Array marked = random_array({8}, stream, 4);
    std::vector<float> alone;
    for (std::int64_t n = 1; n <= 40; ++n) {
      for (std::int64_t place = 0; place < n; ++place) {
        std::vector<Array> in, out;
        for (int i = 0; i < inputs; ++i) {
          in.push_back(random_array({n}, stream + static_cast<std::uint32_t>(i) + 1, 4));
          in.back()[place] = marked[i];
        }
        for (int i = 0; i < outputs; ++i) {
          out.push_back(random_array({n}, stream + static_cast<std::uint32_t>(i) + 50, 4));
          out.back()[place] = marked[inputs + i];
        }
        op(in, out);
        for (std::size_t i = 0; i < out.size(); ++i) {
          if (n == 1) alone.push_back(out[i][0]);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(alone[i]),
                    std::bit_cast<std::uint32_t>(out[i][place]))
              << what << ": output " << i << ", place " << place << " of " << n;
        }
      }
    }
  }
}

/// Two arrays side by side in one row, as in SwiGLU.
Array side_by_side(const Array& a, const Array& b) {
  const std::int64_t n = a.elements();
  Array both({1, 2 * n});
  for (std::int64_t i = 0; i < n; ++i) {
    both[i] = a[i];
    both[n + i] = b[i];
  }
  return both;
}

TEST_P(InvarianceTest, PositionInTheVectorElementwise) {
  using Arrays = std::vector<Array>;
  check_places(
      2, 1, [&](Arrays& in, Arrays& out) { ops->add(out[0], in[0], in[1]); }, "add");
  check_places(
      0, 1, [&](Arrays&, Arrays& out) { ops->scale(out[0], 0.3F); }, "scale");
  check_places(
      1, 1, [&](Arrays& in, Arrays& out) { ops->gelu(out[0], in[0]); }, "gelu");
  check_places(
      2, 1, [&](Arrays& in, Arrays& out) { ops->gelu_backward(out[0], in[0], in[1]); },
      "gelu_backward");
  check_places(
      2, 1,
      [&](Arrays& in, Arrays& out) {
        Array y({1, out[0].elements()}), gate_up = side_by_side(in[0], in[1]);
        ops->swiglu(y, gate_up);
        for (std::int64_t i = 0; i < y.elements(); ++i) out[0][i] = y[i];
      },
      "swiglu");
  check_places(
      3, 2,
      [&](Arrays& in, Arrays& out) {
        const std::int64_t n = out[0].elements();
        Array dx({1, 2 * n}), gate_up = side_by_side(in[0], in[1]);
        ops->swiglu_backward(dx, in[2].view().reshape({1, n}), gate_up);
        for (std::int64_t i = 0; i < n; ++i) out[0][i] = dx[i], out[1][i] = dx[n + i];
      },
      "swiglu_backward");
  check_places(
      1, 3,
      [&](Arrays& in, Arrays& out) {
        for (std::int64_t i = 0; i < out[2].elements(); ++i) out[2][i] = std::abs(out[2][i]);
        AdamWStep step;
        step.learning_rate = 0.01F, step.weight_decay = 0.1F, step.correction2 = 0.3F;
        ops->adamw(out[0], out[1], out[2], in[0], step);
      },
      "adamw");
  check_places(
      1, 2,
      [&](Arrays& in, Arrays& out) { ops->sgd(out[0], out[1], in[0], 0.01F, 0.9F, 0.1F, 0.5F); },
      "sgd");
}

TEST_P(InvarianceTest, PositionInTheVectorByColumn) {
  using Arrays = std::vector<Array>;
  check_places(
      0, 1,
      [&](Arrays&, Arrays& out) {
        Array maximum({1}), sum({1}), factor({1});
        Integers target({1});
        maximum[0] = 4, sum[0] = 3, factor[0] = 0.7F, target[0] = -1;
        ops->cross_entropy_gradient(out[0].view().reshape({1, out[0].elements()}), maximum, sum,
                                    target, factor, 0);
      },
      "cross_entropy_gradient");
  check_places(
      3, 2,
      [&](Arrays& in, Arrays& out) {
        const std::int64_t n = out[0].elements();
        Array dy({11, n}), x({11, n}), mean({11}), rstd({11});
        for (std::int64_t r = 0; r < 11; ++r) {
          mean[r] = 0.1F * static_cast<float>(r);
          rstd[r] = 0.3F + 0.1F * static_cast<float>(r);
          for (std::int64_t c = 0; c < n; ++c) {
            dy[r * n + c] = in[0][c] + static_cast<float>(r) * in[1][c];
            x[r * n + c] = in[2][c] - static_cast<float>(r) * in[0][c];
          }
        }
        ops->norm_backward_weight(out[0], out[1], dy, x, mean, rstd);
        ops->column_sum(out[1], x);
      },
      "layer_norm_backward_weight and column_sum");
  check_places(
      0, 2,
      [&](Arrays&, Arrays& out) {
        const std::int64_t n = out[0].elements();
        Array x({1, 1, 2 * n}), frequencies({n});
        Integers positions({1});
        positions[0] = 12345;
        for (std::int64_t i = 0; i < n; ++i) {
          x[i] = out[0][i], x[n + i] = out[1][i], frequencies[i] = 0.37F;
        }
        ops->rotary(x, positions, frequencies, false);
        for (std::int64_t i = 0; i < n; ++i) out[0][i] = x[i], out[1][i] = x[n + i];
      },
      "rotary");
}

TEST_P(InvarianceTest, Threads) {
  const std::int64_t rows = 700, columns = 101;  // enough elements for every op to use its threads
  std::vector<std::vector<Array>> results;
  std::vector<double> scalars;
  for (const int threads : {1, 2, 3}) {
    const auto backend = make_cpu_ops(threads);
    const Shape shape{rows, columns}, wide{rows, 2 * columns};
    Array x = random_array(shape, 1), dy = random_array(shape, 2), pair = random_array(wide, 3);
    Array gain = random_array({columns}, 4), bias = random_array({columns}, 5);
    Integers ids = random_integers({rows}, 6, 53);
    ArrayOf<std::int64_t> logical({rows});
    for (std::int64_t r = 0; r < rows; ++r) logical[r] = 3 * r;
    std::vector<Array> y(19, Array(shape));
    for (const int small : {3, 4, 5, 10, 11, 16})
      y[static_cast<std::size_t>(small)] = Array({columns});
    for (const int tall : {1, 2, 8, 14, 15}) y[static_cast<std::size_t>(tall)] = Array({rows});
    backend->norm(y[0], y[1], y[2], x, gain, bias, 1e-5F);
    backend->norm_backward_weight(y[3], y[4], dy, x, y[1], y[2]);
    backend->column_sum(y[5], x);
    backend->norm_backward_input(y[6], dy, x, gain, y[1], y[2], {});
    backend->norm(y[7], {}, y[8], x, gain, {}, 1e-5F);
    backend->norm_backward_input(y[9], dy, x, gain, {}, y[8], {});
    backend->norm_backward_weight(y[10], {}, dy, x, {}, y[8]);
    backend->gelu(y[12], x);
    backend->swiglu(y[13], pair);
    backend->row_maximum(y[14], x);
    backend->exp_sum_and_target(y[15], y[14], x, y[14], ids, 0);
    backend->softmax_statistics(y[1], y[2], y[8], x, ids);
    backend->dropout(y[17], x, logical, {0.5F, {}});
    y.push_back(Array({53, columns}));
    backend->embedding_backward(y.back(), ids, dy);
    y[18] = x;
    backend->adamw(y[18], y[0], y[9], dy, {});
    double squares = 0;
    backend->add_squares(Tensor(&squares, {1}), x);
    scalars.push_back(squares);
    results.push_back(std::move(y));
  }
  for (const std::size_t other : {1, 2}) {
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      expect_same_bits(results[0][i], results[other][i], "result " + std::to_string(i));
    }
    EXPECT_EQ(scalars[0], scalars[other]);
  }
}

TRIREME_FOR_INSTRUCTION_SETS(InvarianceTest);

}  // namespace
}  // namespace trireme::ops
