#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/exact.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::bench {
namespace {

/// Copies that are made alike: what is copied from, what to, and how.
struct Kind {
  std::string name;
  int threads = 1;
  double passes = 2;  // times that each byte counts
};

class Copies {
 public:
  Copies(const Place& place, const CopyOptions& options, Sheet& sheet)
      : place_(place), options_(options), sheet_(sheet) {}

  /// `copy` copies `from`, [n] of bytes in memory of `source`, to `to` in that of `sink`.
  template <class Copy>
  void run(const Kind& kind, device::Device& source, const Tensor& from, device::Device& sink,
           const Tensor& to, const Copy& copy) {
    const Numbers numbers{8};
    fill_with(source, from, [&](std::int64_t i) { return numbers.at(place_.session.rank(), i); });
    const Times times = time_rounds(place_, options_.rounds, copy);
    poison(sink, to);
    settle(sink);
    copy();
    settle(place_.device());
    const std::int64_t wrong = place_.world.all_reduce(
        count_wrong(sink, to, [&](std::int64_t i) { return numbers.at(place_.session.rank(), i); }),
        comm::Reduction::sum);
    const auto bytes = static_cast<double>(to.bytes());
    const double speed = kind.passes * bytes / times.average;
    const double all = speed * place_.session.size();
    sheet_.result(
        {.name = fmt::format("copy/{}/{}/threads:{}", kind.name, to.bytes(), kind.threads),
         .iterations = options_.rounds.iterations,
         .times = times,
         .threads = place_.session.size() * kind.threads,
         .counters = {{"size", bytes}, {"bytes_per_second", speed}, {"all_ranks", all}}},
        {std::to_string(to.bytes()), kind.name, std::to_string(kind.threads)},
        {cell(speed / 1e9), cell(all / 1e9)}, wrong);
  }

  void host(std::int64_t elements) {
    device::Device& device = device::host_device();
    device::MemoryLedger ledger;
    device::Buffer a, b;
    const Tensor from = allocate(a, ledger, device::Use::workspace, DType::f32, {elements});
    const Tensor to = allocate(b, ledger, device::Use::workspace, DType::f32, {elements});
    for (const std::int64_t threads : options_.threads) {
      const auto ops = ops::make_cpu_ops(static_cast<int>(threads));
      const Tensor x = from.reshape({1, elements}), y = to.reshape({1, elements});
      run({"host", static_cast<int>(threads)}, device, from, device, to, [&] { ops->copy(y, x); });
    }
  }

  void device(std::int64_t elements) {
    device::Device& device = place_.device();
    device::MemoryLedger ledger(device);
    device::Buffer a, b;
    const Tensor x = allocate(a, ledger, device::Use::workspace, DType::f32, {elements});
    const Tensor y = allocate(b, ledger, device::Use::workspace, DType::f32, {elements});
    const device::Buffer staging =
        device::Buffer::staging(ledger, device::Use::workspace, x.bytes());
    const Tensor s = staging.view(DType::f32, {elements});
    const auto copies = [&](const Tensor& to, const Tensor& from) {
      return [&device, to, from] { device.copy(to.data(), from.data(), to.bytes()); };
    };
    run({"device", 1}, device, x, device, y, copies(y, x));
    run({"to-device", 1, 1}, device::host_device(), s, device, y, copies(y, s));
    run({"to-host", 1, 1}, device, x, device::host_device(), s, copies(s, x));
  }

 private:
  const Place& place_;
  const CopyOptions& options_;
  Sheet& sheet_;
};

}  // namespace

void bench_copies(const Place& place, const CopyOptions& options, Sheet& sheet) {
  sheet.result_columns({{"size", "B", 11}, {"kind", "", 9}, {"threads", "", 7}},
                       {{"speed", "GB/s", 8}, {"all ranks", "GB/s", 9}});
  Copies copies(place, options, sheet);
  for (const std::int64_t elements : options.sizes.counts(sizeof(float))) {
    copies.host(elements);
    if (!place.device().is_host()) copies.device(elements);
  }
}

}  // namespace trireme::bench
