// Whole training steps on a device: its measured ceilings, then for each model tokens/s, MFU and
// memory, and where the time goes op by op beside the ceiling that bounds each op.
//   trireme_bench_device [cuda|cpu] [COMPUTE] [PRESET:BATCH[:SEQUENCE] …]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/plan/peak.hpp"
#include "trireme/train/compute_device.hpp"

#include "measured_ops.hpp"
#include "random_batch.hpp"

namespace trireme::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Case {
  std::string preset;
  std::int64_t batch = 1, sequence = 0;
};

Case parse_case(const std::string& text) {
  Case result;
  const std::size_t first = text.find(':'), second = text.find(':', first + 1);
  result.preset = text.substr(0, first);
  if (first != std::string::npos) result.batch = std::atoll(text.c_str() + first + 1);
  if (second != std::string::npos) result.sequence = std::atoll(text.c_str() + second + 1);
  if (result.batch < 1) throw Error("{}: PRESET:BATCH[:SEQUENCE], BATCH at least 1", text);
  return result;
}

/// Bytes read and written per second by the best of some large copies inside the device.
double measure_copy(device::Device& device) {
  device::MemoryLedger ledger(device);
  const std::size_t bytes = std::size_t{1} << (device.is_host() ? 28 : 30);
  const device::Buffer from(ledger, device::Use::workspace, bytes);
  const device::Buffer to(ledger, device::Use::workspace, bytes);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    const int copies = device.is_host() ? 1 : 10;
    for (int i = 0; i < copies; ++i) device.copy(to.data(), from.data(), bytes);
    device.synchronise();
    best = std::max(best, 2.0 * copies * static_cast<double>(bytes) / seconds_since(begin));
  }
  return best;
}

struct Ceilings {
  double products = 0;  // operations per second
  double copies = 0;    // bytes per second
};

void print_ops(const MeasuredOps& ops, const Ceilings& ceilings) {
  double all = 0;
  for (const auto& [name, work] : ops.work()) all += work.seconds;
  std::vector<std::pair<std::string, OpWork>> sorted(ops.work().begin(), ops.work().end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("  {:<28}{:>7}{:>11}{:>8}{:>12}{:>11}{:>9}\n", "op, each waited for", "calls", "ms",
             "share", "TFLOP/s", "GB/s", "ceiling");
  for (const auto& [name, work] : sorted) {
    // The ceiling that takes longer is the one that bounds it.
    const double least =
        std::max(work.operations / ceilings.products, work.bytes / ceilings.copies);
    fmt::print("  {:<28}{:>7}{:>11.3f}{:>8.3f}{:>12.1f}{:>11.1f}{:>9.2f}\n", name, work.calls,
               1e3 * work.seconds, work.seconds / all, work.operations / work.seconds / 1e12,
               work.bytes / work.seconds / 1e9, least / work.seconds);
  }
}

void run_case(comm::Session& session, const train::ComputeDevice& computes, DType compute,
              const Case& each, const Ceilings& ceilings) {
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  const model::Preset& preset = model::find_preset(each.preset);
  fields.from_json({{"model", preset.values}}, config::Source::preset, "preset " + preset.name);
  if (each.sequence > 0) config.sequence = each.sequence;
  if (config.vocabulary == 0) config.vocabulary = 256;
  config.resolve();
  device::Device& device = computes.device();
  device::MemoryLedger ledger(device);
  Recorder recorder;
  const model::Transformer model(config);
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  MeasuredOps* measured = nullptr;
  parallel::ReplicaOptions options;
  options.stage = {.sequences = each.batch, .compute = compute};
  options.threads = 0;
  options.seed = 1;
  options.make_ops = [&](device::MemoryLedger& memory, int threads, bool reproducible) {
    const parallel::MakeOps make = computes.make_ops();
    auto own = std::make_unique<MeasuredOps>(
        make ? make(memory, threads, reproducible) : ops::make_cpu_ops(threads, &memory), device);
    measured = own.get();
    return own;
  };
  parallel::Replica replica(model, options, grid, recorder, ledger);
  replica.initialise();
  std::vector<parallel::HostMicrobatch> batches;
  batches.push_back(random_batch(config, each.batch));
  std::int64_t step = 0;
  const auto train = [&] {
    const double loss = replica.backward(batches).mean();
    replica.update(1e-4, step++, optim::clip_factor(replica.gradient_norm(), 1.0));
    return loss;
  };
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss = train();
  device.synchronise();
  std::vector<double> seconds;
  const auto begin = Clock::now();
  while (seconds.size() < 5 || (seconds.size() < 50 && seconds_since(begin) < 8)) {
    const auto start = Clock::now();
    loss = train();
    device.synchronise();
    seconds.push_back(seconds_since(start));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double tokens = static_cast<double>(each.batch * config.sequence);
  const double rate = model.flops_per_token() * tokens / median;
  std::int64_t memory = 0;
  for (int use = 0; use < static_cast<int>(device::Use::count); ++use) {
    memory += ledger.peak(static_cast<device::Use>(use));
  }
  fmt::print(
      "{} ({} parameters, {}, batch {} x {}): {:.2f} ms (best {:.2f}, worst {:.2f}), {:.0f} "
      "tokens/s, {:.1f} TFLOP/s, {:.3f} of the measured peak, {:.2f} GiB, loss {:.3f}\n",
      each.preset, model.table().elements(), name_of(compute), each.batch, config.sequence,
      1e3 * median, 1e3 * seconds.front(), 1e3 * seconds.back(), tokens / median, rate / 1e12,
      rate / ceilings.products, static_cast<double>(memory) / (1 << 30), loss);
  measured->measure(true);
  train();
  measured->measure(false);
  print_ops(*measured, ceilings);
}

int run(int argc, char** argv) {
  comm::Session session(&argc, &argv);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  device::DeviceConfig config;
  config.type = arguments.empty() ? "auto" : arguments.front();
  const train::ComputeDevice computes(config, session);
  device::Device& device = computes.device();
  const DType compute = arguments.size() > 1 ? dtype_from_name(arguments[1])
                        : device.is_host()   ? DType::f32
                                             : DType::bf16;
  train::check_precision(std::string(name_of(compute)), device.is_host());
  std::vector<Case> cases;
  for (std::size_t i = 2; i < arguments.size(); ++i) cases.push_back(parse_case(arguments[i]));
  if (cases.empty()) cases = {{"gpt2", 32}, {"gpt2-xl", 8}, {"llama-1b", 4, 4096}};

  Ceilings ceilings;
  ceilings.copies = measure_copy(device);
  {
    const parallel::MakeOps make = computes.make_ops();
    device::MemoryLedger ledger(device);
    const auto ops = make ? make(ledger, 0, false) : ops::make_cpu_ops(0, &ledger);
    for (const std::int64_t n : {2048, 4096, 8192}) {
      if (device.is_host() && n > 2048) continue;
      ceilings.products =
          std::max(ceilings.products, plan::measure_product(*ops, device, compute, {n, n, n}));
    }
  }
  fmt::print("{}; {}\n", device.name(), device::cuda_description());
  fmt::print("measured ceilings: {} products {:.1f} TFLOP/s, copies {:.0f} GB/s read and written\n",
             name_of(compute), ceilings.products / 1e12, ceilings.copies / 1e9);
  for (const Case& each : cases) {
    try {
      run_case(session, computes, compute, each, ceilings);
    } catch (const Error& error) {
      fmt::print("{}: {}\n", each.preset, error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  try {
    return trireme::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "trireme_bench_device: {}\n", error.what());
    return 1;
  }
}
