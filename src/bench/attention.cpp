#include "trireme/bench/attention.hpp"

#include <cmath>

#include "trireme/bench/attention_check.hpp"
#include "trireme/bench/ceilings.hpp"
#include "trireme/bench/exact.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::bench {
namespace {

/// One shape in one type, with its tensors: q, k and v as a model has them, side by side.
class Trial {
 public:
  Trial(const Place& place, ops::Ops& ops, const AttentionShape& shape, DType type)
      : device_(place.device()),
        ops_(ops),
        shape_(shape),
        type_(type),
        ledger_(device_),
        scale_(1 / std::sqrt(static_cast<float>(shape.head_size))) {
    const auto [B, H, T, D, G] = shape;
    const std::int64_t all = H + 2 * G;
    qkv_ = make(type, {B, T, all, D});
    dqkv_ = make(type, {B, T, all, D});
    out_ = make(type, {B, T, H, D});
    dout_ = make(type, {B, T, H, D});
    lse_ = make(DType::f32, {B, H, T});
    positions_ = make(DType::i32, {B, T});
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < B * T; ++i) positions.push_back(static_cast<std::int32_t>(i % T));
    device::write(device_, positions_, positions.data());
    mask_ = {.query_positions = positions_, .key_positions = positions_, .plain = true};
    plan::fill_with_noise(ops, device_, ledger_, qkv_);
    plan::fill_with_noise(ops, device_, ledger_, dout_);
  }

  void forward() {
    ops_.attention(out_, lse_, part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), mask_, scale_, {}, {});
  }
  void backward() {
    ops_.attention_backward(part(dqkv_, 0), part(dqkv_, 1), part(dqkv_, 2), dout_, out_, lse_,
                            part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), mask_, scale_, {}, {});
  }
  double operations(bool backward) const {
    return backward ? attention_backward_operations(out_, part(qkv_, 1))
                    : attention_operations(out_, part(qkv_, 1));
  }

  std::int64_t check(bool backward_too) {
    poison(device_, backward_too ? dqkv_ : out_);
    if (!backward_too) poison(device_, lse_);
    backward_too ? backward() : forward();
    AttentionValues values;
    const auto take = [&](const Tensor& whole, std::int64_t first, std::int64_t heads) {
      std::vector<std::byte> host(whole.bytes());
      device::read(device_, host.data(), whole);
      std::vector<double> result;
      const std::int64_t all = whole.extent(2), size = whole.extent(3);
      for (std::int64_t i = 0; i < whole.elements(); ++i) {
        const std::int64_t head = i / size % all;
        if (head < first || head >= first + heads) continue;
        result.push_back(load(type_, host.data(), i));
      }
      return result;
    };
    const auto [B, H, T, D, G] = shape_;
    values.q = take(qkv_, 0, H);
    values.k = take(qkv_, H, G);
    values.v = take(qkv_, H + G, G);
    values.out = take(out_, 0, H);
    values.dout = take(dout_, 0, H);
    values.dq = take(dqkv_, 0, H);
    values.dk = take(dqkv_, H, G);
    values.dv = take(dqkv_, H + G, G);
    std::vector<float> lse(static_cast<std::size_t>(lse_.elements()));
    device::read(device_, lse.data(), lse_);
    values.lse.assign(lse.begin(), lse.end());
    return count_wrong_rows(shape_, type_, scale_, values, backward_too);
  }

 private:
  Tensor make(DType type, const Shape& shape) {
    memory_.emplace_back(ledger_, device::Use::workspace,
                         static_cast<std::size_t>(shape.elements()) * size_of(type));
    return memory_.back().view(type, shape);
  }
  /// 0: q, 1: k, 2: v.
  Tensor part(const Tensor& whole, int which) const {
    const auto [B, H, T, D, G] = shape_;
    const std::int64_t first = which == 0 ? 0 : H + (which - 1) * G;
    return whole.slice(2, first, first + (which == 0 ? H : G));
  }

  device::Device& device_;
  ops::Ops& ops_;
  AttentionShape shape_;
  DType type_;
  device::MemoryLedger ledger_;
  float scale_;
  std::vector<device::Buffer> memory_;
  Tensor qkv_, dqkv_, out_, dout_, lse_, positions_;
  ops::AttentionMask mask_;
};

void measure(const Place& place, ops::Ops& ops, const AttentionOptions& options, Sheet& sheet,
             const AttentionShape& shape, DType type) {
  Trial trial(place, ops, shape, type);
  for (const bool backward : {false, true}) {
    const Times times =
        time_rounds(place, options.rounds, [&] { backward ? trial.backward() : trial.forward(); });
    const std::int64_t wrong = place.world.all_reduce(trial.check(backward), comm::Reduction::sum);
    const double speed = trial.operations(backward) / times.average;
    const auto [B, H, T, D, G] = shape;
    const std::string pass = backward ? "backward" : "forward";
    sheet.result({.name = fmt::format("attention/{}/{}/B:{}/H:{}/T:{}/D:{}/G:{}", pass,
                                      trireme::name_of(type), B, H, T, D, G),
                  .iterations = options.rounds.iterations,
                  .times = times,
                  .threads = place.session.size() * place.threads,
                  .counters = {{"flops", speed}}},
                 {std::to_string(B), std::to_string(H), std::to_string(T), std::to_string(D),
                  std::to_string(G), std::string(trireme::name_of(type)), pass},
                 {cell(speed / 1e9)}, wrong);
  }
}

}  // namespace

void bench_attention(const Place& place, const AttentionOptions& options, Sheet& sheet) {
  sheet.result_columns({{"B", "", 4},
                        {"H", "", 4},
                        {"T", "", 6},
                        {"D", "", 4},
                        {"G", "", 4},
                        {"type", "", 5},
                        {"pass", "", 9}},
                       {{"speed", "GFLOP/s", 9}});
  device::MemoryLedger ledger(place.device());
  const auto ops = make_ops(place.computes, ledger, place.threads);
  for (const DType type : options.types) {
    for (const AttentionShape& shape : options.shapes) {
      measure(place, *ops, options, sheet, shape, type);
    }
  }
}

}  // namespace trireme::bench
