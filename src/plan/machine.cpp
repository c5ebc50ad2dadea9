#include "trireme/plan/machine.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme::plan {

using config::at_least;
using config::in_range;
using config::non_negative;
using config::one_of;
using config::positive;

namespace {

constexpr double micro = 1e-6, giga = 1e9, tera = 1e12;

/// Keys that every file must have: nothing can be assumed for them.
constexpr std::string_view needed[] = {"ranks_per_node", "device.type", "device.memory_gib",
                                       "memory.gb_per_s"};

constexpr const char* operations_key = "operations.measured";

}  // namespace

void Machine::Device::declare(config::Fields& fields) {
  fields.add("type", type, "gpu or cpu", one_of({"gpu", "cpu"}));
  fields.add("memory_gib", memory_gib, "of a GPU, or of a node's CPUs", in_range(0.001, 1e6));
  fields.add("launch_us", launch_us, "the host's time for an operation", non_negative());
  fields.add("operation_us", operation_us, "of each operation beside what its size takes",
             non_negative());
  fields.add("step_ms", step_ms, "the host's work between steps", non_negative());
}

void Machine::Products::declare(config::Fields& fields) {
  fields.add("fp32_tflops", fp32_tflops, "peak of a rank", non_negative());
  fields.add("bf16_tflops", bf16_tflops, "peak of a rank", non_negative());
  fields.add("fp16_tflops", fp16_tflops, "peak of a rank", non_negative());
  fields.add("efficiency", efficiency, "of large products, of the peak", in_range(0.01, 1));
  fields.add("rows_half", rows_half, "rows at which a product has half of that", non_negative());
  fields.add("columns_half", columns_half, "the same of columns", non_negative());
  fields.add("depth_half", depth_half, "the same of the inner dimension", non_negative());
}

void Machine::Attention::declare(config::Fields& fields) {
  fields.add("fused", fused, "scores stay in the kernel");
  fields.add("forward_efficiency", forward_efficiency, "of the peak of products",
             in_range(0.001, 1));
  fields.add("backward_efficiency", backward_efficiency, "of the peak of products",
             in_range(0.001, 1));
  fields.add("rows_half", rows_half, "queries at which it has half of that", non_negative());
  fields.add("score_bytes", score_bytes, "moved for each score where it is not fused",
             non_negative());
  fields.add("launches", launches, "of its operations where it is not fused, in forward",
             at_least(1));
  fields.add("softmax_multiple", softmax_multiple,
             "heads x sequences of which its softmax requires a multiple", at_least(1));
  fields.add("slow_factor", slow_factor, "times as many bytes and launches with other numbers",
             at_least(1));
}

void Machine::Loss::declare(config::Fields& fields) {
  fields.add("launches", launches,
             "kernel launches for each block of logits, more than 1 where it is not fused",
             at_least(1));
}

void Machine::Memory::declare(config::Fields& fields) {
  fields.add("gb_per_s", gb_per_s, "peak of a rank", positive());
  fields.add("efficiency", efficiency, "of operations, of the peak", in_range(0.01, 1));
  fields.add("update_efficiency", update_efficiency, "of optimizers, of the peak",
             in_range(0.01, 1));
}

void Machine::Link::declare(config::Fields& fields) {
  fields.add("latency_us", latency_us, "of a message", non_negative());
  fields.add("gb_per_s", gb_per_s, "in each direction; 0: not known", non_negative());
  fields.add("slowdown", slowdown, "of computation while messages pass", at_least(1));
  fields.add("stretch", stretch, "of messages while one of their ranks computes", at_least(1));
}

void Machine::Links::declare(config::Fields& fields) {
  fields.add("collectives", collectives,
             "what latencies add up to: ring (a hop for each rank), tree (for each doubling\n"
             "of ranks) or direct (one; each rank sends to every other)",
             one_of({"ring", "tree", "direct"}));
  fields.add("launch_us", launch_us, "the host's time to start an operation of a group",
             non_negative());
  fields.add("message_us", message_us, "the same of a message between stages", non_negative());
  fields.add("synchronous", synchronous,
             "the host waits for the device before and after a stage's message");
  fields.add("overlap", overlap, "gradients are reduced while backward continues");
}

void Machine::declare(config::Fields& fields) {
  fields.add("name", name, "of the machine");
  fields.add("source", source, "where the values come from");
  fields.add("ranks_per_node", ranks_per_node, "at most", in_range(1, 1 << 20));
  fields.add("price", price, "of an hour of a node, in any currency; 0: unknown", non_negative());
  fields.section("device", device);
  fields.section("products", products);
  fields.section("attention", attention);
  fields.section("loss", loss);
  fields.section("memory", memory);
  fields.section("links", links);
  fields.section("links.node", node);
  fields.section("links.network", network);
}

Machine Machine::read(const std::filesystem::path& path) {
  Machine machine;
  config::Fields fields;
  machine.declare(fields);
  std::string operations;
  fields.add(operations_key, operations, "CSV of operations that were measured one by one");
  fields.read_toml(path);
  const std::string file = config::one_line(path.string());
  if (!operations.empty()) {
    machine.measured =
        OperationTable::parse(operations, fmt::format("{}: {}", file, operations_key));
  }
  const auto missing = [&](std::string_view key, const std::string& rule) {
    throw ConfigError(fmt::format("{}: {}", file, key), "(missing)", rule,
                      "add it; docs/step-time.md describes the file");
  };
  for (const std::string_view key : needed) {
    if (fields.find(std::string(key))->source == config::Source::built_in) {
      missing(key, "every machine has it");
    }
  }
  if (!machine.attention.fused && machine.attention.score_bytes == 0) {
    missing("attention.score_bytes", "attention that is not fused moves scores");
  }
  if (machine.peak(DType::f32) + machine.peak(DType::bf16) + machine.peak(DType::f16) == 0) {
    missing("products.bf16_tflops", "the peak of at least one type must be known");
  }
  return machine;
}

std::string Machine::to_toml() const {
  Machine copy = *this;
  config::Fields fields;
  copy.declare(fields);
  std::string operations = measured.times().empty() ? "" : measured.text() + "\n";
  if (!operations.empty()) fields.add(operations_key, operations, "");
  return fields.to_toml();
}

double Machine::peak(DType type) const {
  switch (type) {
    case DType::f32:
      return products.fp32_tflops * tera;
    case DType::bf16:
      return products.bf16_tflops * tera;
    case DType::f16:
      return products.fp16_tflops * tera;
    default:
      throw Error("machine {}: no products of {}", name, name_of(type));
  }
}

double Machine::seconds(const Work& work) const {
  return measured.seconds(work, [&](const Work& each) { return formula_seconds(each); });
}

double Machine::formula_seconds(const Work& work) const {
  const double fixed = device.operation_us * micro;
  const double moved = static_cast<double>(work.bytes) / bandwidth();
  const auto at_peak = [&](double flops) {
    const double rate = peak(work.type);
    if (rate == 0) {
      throw Error("machine {}: products.{}_tflops is missing, which this model computes in; add it",
                  name, work.type == DType::f32 ? "fp32" : name_of(work.type));
    }
    return flops / rate;
  };
  switch (work.kind) {
    case Work::Kind::product: {
      if (work.flops() == 0) return fixed;
      const double shape = 1 + products.rows_half / static_cast<double>(work.m) +
                           products.columns_half / static_cast<double>(work.n) +
                           products.depth_half / static_cast<double>(work.k);
      return fixed + std::max(at_peak(work.flops()) / products.efficiency * shape, moved);
    }
    case Work::Kind::attention:
    case Work::Kind::attention_backward: {
      const bool backward = work.kind == Work::Kind::attention_backward;
      const double efficiency =
          (backward ? attention.backward_efficiency : attention.forward_efficiency) /
          (1 + attention.rows_half / static_cast<double>(std::max<std::int64_t>(work.m, 1)));
      if (attention.fused) return fixed + std::max(at_peak(work.flops()) / efficiency, moved);
      // Nothing is left out for a causal mask, and backward need not compute the scores again.
      const double all = work.flops() / work.visible() * (backward ? 0.8 : 1);
      const double scores = static_cast<double>(work.m) * static_cast<double>(work.n) *
                            static_cast<double>(work.count);
      return fixed + at_peak(all) / efficiency +
             scores * attention.score_bytes * (backward ? 2 : 1) * slow_factor(work) / bandwidth();
    }
    case Work::Kind::memory:
      return fixed + moved;
    case Work::Kind::update:
      return fixed +
             static_cast<double>(work.bytes) / (memory.gb_per_s * giga * memory.update_efficiency);
  }
  no_case_for(work.kind);
}

double Machine::slow_factor(const Work& work) const {
  return work.count % attention.softmax_multiple == 0 ? 1 : attention.slow_factor;
}

double Machine::launch_seconds(const Work& work) const {
  double launches = 1;
  const bool backward = work.kind == Work::Kind::attention_backward;
  if ((backward || work.kind == Work::Kind::attention) && !attention.fused) {
    launches = attention.launches * (backward ? 2 : 1) * slow_factor(work);
  }
  if (work.loss) launches = loss.launches;
  return launches * device.launch_us * micro;
}

double Machine::local_seconds(std::int64_t bytes) const {
  return device.operation_us * micro + static_cast<double>(bytes) / bandwidth();
}

double Machine::rate_of(const Link& link) const {
  if (link.gb_per_s > 0) return link.gb_per_s * giga;
  throw Error(
      "machine {}: links.{}.gb_per_s is missing, which this layout needs; add it, or measure it by "
      "trireme bench machine",
      name, &link == &node ? "node" : "network");
}

double Machine::network_rate(int sharing) const {
  const double share = rate_of(network) / sharing;
  return node.gb_per_s > 0 ? std::min(share, node.gb_per_s * giga) : share;
}

double Machine::message_seconds(std::int64_t bytes, bool same_node, int sharing) const {
  if (same_node) return node.latency_us * micro + static_cast<double>(bytes) / rate_of(node);
  return network.latency_us * micro +
         static_cast<double>(bytes) / network_rate(std::max(1, sharing));
}

double Machine::seconds(const comm::PlannedOperation& operation, const Placement& placement) const {
  const double ranks = placement.ranks, nodes = placement.nodes;
  double hop = node.latency_us * micro;
  // Of one way around a ring, whose hops between nodes are as many as there are nodes.
  double way = (ranks - 1) * hop;
  const double rate = placement.nodes > 1 ? network_rate(placement.sharing) : rate_of(node);
  if (placement.nodes > 1) {
    way = (ranks - nodes) * hop + (nodes - 1) * network.latency_us * micro;
    hop = network.latency_us * micro;
  }
  if (links.collectives == "direct") way = hop;
  if (links.collectives == "tree") way = std::ceil(std::log2(ranks)) * hop;
  double part = (ranks - 1) / ranks * static_cast<double>(operation.bytes) / rate;
  if (links.collectives == "direct" && placement.nodes > 1) {
    // Every rank sends to each of another node.
    const double own = ranks / nodes;
    part = std::max(part, own * (ranks - own) / ranks * static_cast<double>(operation.bytes) *
                              placement.sharing / rate_of(network));
  }
  switch (operation.kind) {
    case comm::OperationKind::all_reduce:
      return 2 * (way + part);
    case comm::OperationKind::reduce_scatter:
    case comm::OperationKind::all_gather:
      return way + part;
    case comm::OperationKind::broadcast:
      return way + static_cast<double>(operation.bytes) / rate;
    case comm::OperationKind::all_to_all:
    case comm::OperationKind::exchange:
    case comm::OperationKind::count:
      break;  // messages, one by one
  }
  no_case_for(operation.kind);
}

}  // namespace trireme::plan
