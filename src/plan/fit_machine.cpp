#include "trireme/plan/fit_machine.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "trireme/core/error.hpp"
#include "trireme/plan/calibrate.hpp"
#include "trireme/report/statistics.hpp"

namespace trireme::plan {

namespace {

/// ln(predicted/measured), of works by the formulas.
template <class Measured>
std::vector<double> residuals(const Machine& machine, const std::vector<Measured>& all) {
  std::vector<double> result;
  for (const Measured& each : all) {
    if constexpr (std::is_same_v<Measured, MeasuredWork>) {
      result.push_back(std::log(machine.formula_seconds(each.work) / each.seconds));
    } else {
      result.push_back(std::log(machine.seconds(each.operation, each.placement) / each.seconds));
    }
  }
  return result;
}

double& peak_of(Machine::Products& products, DType type) {
  switch (type) {
    case DType::f32:
      return products.fp32_tflops;
    case DType::bf16:
      return products.bf16_tflops;
    case DType::f16:
      return products.fp16_tflops;
    default:
      throw Error("bench machine: no products of {}", name_of(type));
  }
}

}  // namespace

Machine fit_works(Machine machine, const std::vector<MeasuredWork>& works) {
  using Kind = Work::Kind;
  const double copies = machine.memory.gb_per_s * 1e9;
  double fastest = copies, smallest = 1;
  std::map<DType, double> peaks;
  for (const MeasuredWork& each : works) {
    smallest = std::min(smallest, each.seconds);
    if (each.work.kind == Kind::product) {
      double& peak = peaks[each.work.type];
      peak = std::max(peak, each.work.flops() / each.seconds);
    } else if (each.work.kind == Kind::update) {
      fastest = std::max(fastest, static_cast<double>(each.work.bytes) / each.seconds);
    }
  }
  DType main = DType::f32;  // the type of the fastest products
  for (const auto& [type, peak] : peaks) {
    peak_of(machine.products, type) = peak / 1e12;
    if (peak > peaks[main]) main = type;
  }
  const auto is_memory = [](const Work& work) {
    return work.kind == Kind::memory || work.kind == Kind::update;
  };
  std::vector<MeasuredWork> fitted;
  std::map<Kind, bool> there;
  double shares = 0;
  for (const MeasuredWork& each : works) {
    if (!is_memory(each.work) && each.work.type != main) continue;
    fitted.push_back(each);
    shares += each.share;
    there[each.work.kind] = true;
  }
  std::vector<double> weights;
  for (const MeasuredWork& each : fitted) {
    weights.push_back(each.share / shares * static_cast<double>(fitted.size()));
  }
  machine.memory.gb_per_s = fastest / 1e9;
  machine.memory.efficiency = machine.memory.update_efficiency = 0.7;
  machine.products.efficiency = 0.9;
  machine.products.rows_half = machine.products.columns_half = machine.products.depth_half = 16;
  machine.attention.forward_efficiency = machine.attention.backward_efficiency = 0.4;
  machine.attention.rows_half = 64;
  machine.device.operation_us = std::max(smallest * 1e6, 0.1);
  std::vector<std::string> keys{"device.operation_us", "products.efficiency", "products.rows_half",
                                "products.columns_half", "products.depth_half"};
  if (there[Kind::attention]) keys.push_back("attention.forward_efficiency");
  if (there[Kind::attention_backward]) keys.push_back("attention.backward_efficiency");
  if (there[Kind::attention]) keys.push_back("attention.rows_half");
  if (there[Kind::memory]) keys.push_back("memory.efficiency");
  if (there[Kind::update]) keys.push_back("memory.update_efficiency");
  machine = fit(
      machine, keys, [&](const Machine& each) { return residuals(each, fitted); }, weights);
  // GPUs compute other types on other units: their peaks are those that fit best.
  for (const auto& [type, greatest] : peaks) {
    if (type == main) continue;
    double sum = 0, shares = 0;
    for (const MeasuredWork& each : works) {
      if (is_memory(each.work) || each.work.type != type) continue;
      sum += each.share * std::log(machine.formula_seconds(each.work) / each.seconds);
      shares += each.share;
    }
    peak_of(machine.products, type) *= std::exp(sum / shares);
  }
  std::vector<OperationTime> times;
  for (const MeasuredWork& each : works) times.push_back({each.work, each.seconds});
  machine.measured = OperationTable(std::move(times));
  return machine;
}

Machine fit_links(Machine machine, const std::vector<MeasuredOperation>& operations) {
  const bool between = operations.front().placement.nodes > 1;
  const std::string link = between ? "links.network." : "links.node.";
  // From the least time and the greatest rate.
  double latency = operations.front().seconds, rate = 0;
  for (const MeasuredOperation& each : operations) {
    latency = std::min(latency, each.seconds);
    rate = std::max(rate, static_cast<double>(each.operation.bytes) / each.seconds);
  }
  Machine::Link& start = between ? machine.network : machine.node;
  start.latency_us = latency * 1e6;
  start.gb_per_s = rate * (between ? operations.front().placement.sharing : 1) / 1e9;
  return fit(
      machine, {link + "latency_us", link + "gb_per_s"},
      [&](const Machine& each) { return residuals(each, operations); },
      std::vector<double>(operations.size(), 1.0));
}

std::vector<MeasuredOperation> measure_links(Machine& machine, comm::Grid& grid,
                                             comm::GroupKind kind, const Placement& placement,
                                             ops::Ops& ops, device::Device& device) {
  const std::int64_t largest = std::int64_t{device.is_host() ? 16 : 128} << 20;
  auto all = measure_collectives(grid, kind, placement, device, largest);
  machine = fit_links(machine, all);
  // On CPUs, of some time slices of the scheduler, by which computation and messages take turns.
  const double times = device.is_host() ? std::clamp(0.02 / all.back().seconds, 1.0, 8.0) : 2;
  const auto bytes = static_cast<std::int64_t>(times) * all.back().operation.bytes;
  const Interference beside = measure_interference(grid, kind, bytes, ops, device);
  Machine::Link& link = placement.nodes > 1 ? machine.network : machine.node;
  link.slowdown = std::round(1000 * beside.slowdown) / 1000;
  link.stretch = std::round(1000 * beside.stretch) / 1000;
  if (!device.is_host()) {
    machine.links.launch_us = machine.links.message_us =
        1e6 * measure_launch(grid.group(kind), device);
  }
  return all;
}

Machine fit_host(Machine machine, const std::vector<TimedStep>& steps, bool alone) {
  std::vector<double> gaps, rests;
  for (const TimedStep& step : steps) {
    double between = 0, rest = step.seconds;
    for (const TimedCall& call : step.calls) {
      between += call.before;
      rest -= call.seconds;
      if (!alone) gaps.push_back(call.before);  // some of them wait for other ranks
    }
    if (alone) gaps.push_back(between / static_cast<double>(step.calls.size()));
    rests.push_back(rest - between);
  }
  const double gap = report::quantile(gaps, 0.5);
  machine.device.operation_us += gap * 1e6;
  machine.measured.add(gap);
  if (alone) machine.device.step_ms = std::max(0.0, 1e3 * report::quantile(rests, 0.5));
  return machine;
}

double mean_error(const Machine& machine, const std::vector<MeasuredWork>& works) {
  double sum = 0, shares = 0;
  for (const MeasuredWork& each : works) {
    const double predicted = machine.measured.seconds(
        each.work, [&](const Work& work) { return machine.formula_seconds(work); }, &each.work);
    sum += each.share * std::abs(std::log(predicted / each.seconds));
    shares += each.share;
  }
  return sum / shares;
}
double mean_error(const Machine& machine, const std::vector<MeasuredOperation>& operations) {
  double sum = 0;
  for (const double error : residuals(machine, operations)) sum += std::abs(error);
  return sum / static_cast<double>(operations.size());
}

}  // namespace trireme::plan
