// Results large enough to bypass the caches match the same rows computed in smaller pieces; rows of
// odd length vary the alignment of vectors.
#include <cstring>
#include <functional>
#include <memory>

#include "trireme/ops/ops.hpp"

#include "support.hpp"

namespace trireme::ops {
namespace {

constexpr std::int64_t columns = 1021;

class Pieces : public testing::TestWithParam<DType> {
 protected:
  Tensor make(std::int64_t width) {
    const std::size_t bytes = static_cast<std::size_t>(rows * width) * size_of(GetParam());
    std::size_t space = bytes + 64;
    memory_.emplace_back(space);
    void* at = memory_.back().data();
    return {std::align(64, bytes, at, space), GetParam(), {rows, width}};
  }
  /// Values between −4 and 4.
  Tensor filled(std::int64_t width) {
    const Tensor x = make(width);
    std::vector<float> values(static_cast<std::size_t>(x.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 2654435761U % 8191U) / 1024.0F - 4.0F;
    }
    ops->copy(x, Tensor(values.data(), x.shape()));
    return x;
  }
  /// work(y, rows [begin, end)) in one call and in pieces.
  void check(std::int64_t width,
             const std::function<void(const Tensor&, std::int64_t, std::int64_t)>& work,
             const char* what) {
    const Tensor whole = make(width), pieces = make(width);
    ASSERT_GE(whole.bytes(), std::size_t{64} << 20);
    work(whole, 0, rows);
    for (std::int64_t begin = 0; begin < rows; begin += rows / 4) {
      const std::int64_t end = std::min(rows, begin + rows / 4);
      work(pieces.slice(0, begin, end), begin, end);
    }
    EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.bytes()), 0) << what;
    memory_.pop_back();
    memory_.pop_back();
  }
  const std::int64_t rows = GetParam() == DType::f32 ? 16500 : 33000;
  std::unique_ptr<Ops> ops = make_cpu_ops(3);   // ranges that begin at odd multiples of lines
  std::vector<std::vector<std::byte>> memory_;  // of tensors
};

TEST_P(Pieces, MatchTheWholeBitForBit) {
  const Tensor x = filled(columns), dy = filled(columns), gain = filled(columns).slice(0, 0, 1);
  const Tensor g = gain.reshape({columns});
  std::vector<float> mean(static_cast<std::size_t>(rows), 0.25F), rstd(mean.size(), 0.5F);
  const auto part = [](const Tensor& t, std::int64_t a, std::int64_t b) {
    return t.slice(0, a, b);
  };
  const auto of_rows = [](std::vector<float>& v, std::int64_t a, std::int64_t b) {
    return Tensor(v.data() + a, {b - a});
  };
  check(
      columns, [&](auto y, auto a, auto b) { ops->copy(y, part(x, a, b)); }, "copy");
  check(
      columns, [&](auto y, auto a, auto b) { ops->add(y, part(x, a, b), part(dy, a, b)); }, "add");
  check(
      columns, [&](auto y, auto a, auto b) { ops->gelu(y, part(x, a, b)); }, "gelu");
  check(
      columns,
      [&](auto y, auto a, auto b) { ops->gelu_backward(y, part(dy, a, b), part(x, a, b)); },
      "gelu_backward");
  check(
      columns,
      [&](auto y, auto a, auto b) {
        ops->norm_backward_input(y, part(dy, a, b), part(x, a, b), g, of_rows(mean, a, b),
                                 of_rows(rstd, a, b), {});
      },
      "layer_norm_backward_input");
  check(
      columns,
      [&](auto y, auto a, auto b) {
        ops->norm_backward_input(y, part(dy, a, b), part(x, a, b), g, {}, of_rows(rstd, a, b), {});
      },
      "rms_norm_backward_input");
  check(
      columns,
      [&](auto y, auto a, auto b) {
        ops->norm(y, of_rows(mean, a, b), of_rows(rstd, a, b), part(x, a, b), g, g, 1e-5F);
      },
      "layer_norm");
  check(
      columns,
      [&](auto y, auto a, auto b) {
        ops->norm(y, {}, of_rows(rstd, a, b), part(x, a, b), g, {}, 1e-5F);
      },
      "rms_norm");
}

TEST_P(Pieces, OfGatesMatchTheWholeBitForBit) {
  const Tensor x = filled(2 * columns), dy = filled(columns);
  check(
      columns, [&](auto y, auto a, auto b) { ops->swiglu(y, x.slice(0, a, b)); }, "swiglu");
  check(
      2 * columns,
      [&](auto y, auto a, auto b) { ops->swiglu_backward(y, dy.slice(0, a, b), x.slice(0, a, b)); },
      "swiglu_backward");
}

INSTANTIATE_TEST_SUITE_P(Of, Pieces, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trireme::ops
