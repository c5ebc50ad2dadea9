#include <algorithm>
#include <array>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/ceilings.hpp"
#include "trireme/bench/exact.hpp"

namespace trireme::bench {

std::string_view name_of(Form form) {
  constexpr std::array<std::string_view, 3> names{"NN", "NT", "TN"};
  return names.at(static_cast<std::size_t>(form));
}

std::vector<Product> products_of_layer(const plan::ProductShape& forward) {
  const auto [rows, out, in] = forward;
  return {{{rows, out, in}, Form::nt}, {{rows, in, out}, Form::nn}, {{out, in, rows}, Form::tn}};
}

namespace {

/// One product with its matrices.
class Trial {
 public:
  Trial(const Place& place, ops::Ops& ops, const Product& product, DType type)
      : device_(place.device()), ops_(ops), shape_(product.shape), ledger_(device_) {
    const auto [m, n, k] = product.shape;
    options_.transpose_a = product.form == Form::tn;
    options_.transpose_b = product.form == Form::nt;
    options_.accumulate = product.form == Form::tn;
    const auto make = [&](device::Buffer& memory, DType as, std::int64_t rows,
                          std::int64_t columns) {
      return allocate(memory, ledger_, device::Use::workspace, as, {rows, columns});
    };
    a_ = options_.transpose_a ? make(memory_[0], type, k, m) : make(memory_[0], type, m, k);
    b_ = options_.transpose_b ? make(memory_[1], type, n, k) : make(memory_[1], type, k, n);
    c_ = make(memory_[2], options_.accumulate ? DType::f32 : type, m, n);
  }

  Times time(const Place& place, const Rounds& rounds) {
    plan::fill_with_noise(ops_, device_, ledger_, a_);
    plan::fill_with_noise(ops_, device_, ledger_, b_);
    return time_rounds(place, rounds, [&] { ops_.matmul(c_, a_, b_, options_); });
  }

  /// Wrong elements of c on whole numbers. Each column of op(b) has few that are not 0, at places
  /// that cover all of k, so that each element of c is a sum of few products, known at once and
  /// held exactly by every type, and each element of a is in one of them.
  std::int64_t check() {
    const std::int64_t m = shape_.m, n = shape_.n, k = shape_.k;
    const std::int64_t terms = std::min<std::int64_t>(k, 4),
                       spread = std::max(k / terms, INT64_C(1));
    const Numbers numbers{8};
    const auto left = [&](std::int64_t i, std::int64_t p) { return numbers.at(i, p) - 4; };
    const auto place = [&](std::int64_t j, std::int64_t t) { return (j + t * spread) % k; };
    const auto right = [&](std::int64_t p, std::int64_t j) {
      for (std::int64_t t = 0; t < terms; ++t) {
        if (place(j, t) == p) return t % 2 == 0 ? t + 1 : -t;
      }
      return std::int64_t{0};
    };
    fill_with(device_, flat(a_), [&](std::int64_t at) {
      return options_.transpose_a ? left(at % m, at / m) : left(at / k, at % k);
    });
    fill_with(device_, flat(b_), [&](std::int64_t at) {
      return options_.transpose_b ? right(at % k, at / k) : right(at / n, at % n);
    });
    options_.accumulate ? zero(device_, c_) : poison(device_, c_);
    ops_.matmul(c_, a_, b_, options_);
    return count_wrong(device_, flat(c_), [&](std::int64_t at) {
      const std::int64_t i = at / n, j = at % n;
      std::int64_t sum = 0;
      for (std::int64_t t = 0; t < terms; ++t) {
        sum += left(i, place(j, t)) * right(place(j, t), j);
      }
      return sum;
    });
  }

 private:
  static Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }
  device::Device& device_;
  ops::Ops& ops_;
  plan::ProductShape shape_;
  device::MemoryLedger ledger_;
  ops::MatmulOptions options_;
  std::array<device::Buffer, 3> memory_;
  Tensor a_, b_, c_;
};

void measure(const Place& place, ops::Ops& ops, const ProductOptions& options, Sheet& sheet,
             const Product& product, DType type, double peak) {
  Trial trial(place, ops, product, type);
  const Times times = trial.time(place, options.rounds);
  const std::int64_t wrong = place.world.all_reduce(trial.check(), comm::Reduction::sum);
  const double speed = product.shape.operations() / times.average;
  const auto [m, n, k] = product.shape;
  sheet.result({.name = fmt::format("gemm/{}/{}/{}x{}x{}", name_of(product.form),
                                    trireme::name_of(type), m, n, k),
                .iterations = options.rounds.iterations,
                .times = times,
                .threads = place.session.size() * place.threads,
                .counters = {{"flops", speed}, {"share_of_peak", speed / peak}, {"peak", peak}}},
               {std::to_string(m), std::to_string(n), std::to_string(k),
                std::string(name_of(product.form)), std::string(trireme::name_of(type))},
               {cell(speed / 1e9), fmt::format("{:.3f}", speed / peak)}, wrong);
}

}  // namespace

void bench_products(const Place& place, const ProductOptions& options, Sheet& sheet) {
  device::MemoryLedger ledger(place.device());
  const auto ops = make_ops(place.computes, ledger, place.threads);
  std::vector<double> peaks;
  for (const DType type : options.types) {
    double peak = options.peak > 0 ? options.peak : nominal_peak(place.device().name(), type);
    const bool named = peak > 0;
    if (!named) {
      place.world.barrier();  // all ranks at once, as they are measured below
      peak = place.world.all_reduce(measure_squares(*ops, place.device(), type),
                                    comm::Reduction::sum) /
             place.session.size();
    }
    sheet.note(fmt::format("peak_{}", trireme::name_of(type)),
               fmt::format("{:.1f} GFLOP/s a rank, {}", peak / 1e9,
                           named ? "as named" : "measured, the best square product"));
    peaks.push_back(peak);
  }
  sheet.result_columns({{"m", "", 7}, {"n", "", 7}, {"k", "", 7}, {"form", "", 4}, {"type", "", 5}},
                       {{"speed", "GFLOP/s", 9}, {"share", "", 6}});
  for (std::size_t i = 0; i < options.types.size(); ++i) {
    for (const Product& product : options.products) {
      measure(place, *ops, options, sheet, product, options.types[i], peaks[i]);
    }
  }
}

}  // namespace trireme::bench
