// Whole training steps on a device: for each model tokens/s, MFU against the nominal and the
// measured peak, peak memory, the time by group of operations, and for each operation its share of
// its roofline.
//   trireme_bench_steps [--results FILE] [--nominal TFLOPS] [--steps LEAST]
//                       [--recompute none|cheap|selective|full] [cuda|cpu] [COMPUTE]
//                       [PRESET:BATCH[:SEQUENCE] …]
// BATCH is each rank's. At least LEAST steps (5) are timed, after three others; with 1 after one
// other, where only memory is asked for. FILE gets the same as JSON after each model, for
// bench/compare.py and bench/peers/torch_steps.py. The peak of a GPU is measured before its first
// steps, that of CPUs after each model's steps, since measuring needs memory of its own.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "trireme/bench/ceilings.hpp"
#include "trireme/bench/measure.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/plan/measure_machine.hpp"
#include "trireme/plan/timed_ops.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::bench {
namespace {

using nlohmann::json;

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

struct Arguments {
  std::string results, device = "auto", compute;
  std::string recompute;  // empty: the device's default
  double nominal = 0;     // operations per second
  std::size_t steps = 5;
  std::vector<Case> cases;
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments parsed;
  int place = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool named = words[i] == "--results" || words[i] == "--nominal" ||
                       words[i] == "--steps" || words[i] == "--recompute";
    if (named && i + 1 == words.size()) throw Error("{}: wants a value", words[i]);
    if (words[i] == "--results") {
      parsed.results = words[++i];
    } else if (words[i] == "--recompute") {
      parsed.recompute = words[++i];
    } else if (words[i] == "--nominal") {
      parsed.nominal = std::atof(words[++i].c_str()) * 1e12;
    } else if (words[i] == "--steps") {
      parsed.steps = static_cast<std::size_t>(std::max(1, std::atoi(words[++i].c_str())));
    } else if (place == 0) {
      parsed.device = words[i];
      ++place;
    } else if (place == 1) {
      parsed.compute = words[i];
      ++place;
    } else {
      parsed.cases.push_back(parse_case(words[i]));
    }
  }
  if (parsed.cases.empty()) parsed.cases = {{"gpt2", 32}, {"gpt2-xl", 8}, {"llama-1b", 4, 4096}};
  return parsed;
}

/// Time and work of all calls of one operation.
struct OpWork {
  std::int64_t calls = 0;
  double seconds = 0;     // of the device
  double operations = 0;  // floating-point, of products and attention alone
  double bytes = 0;       // read and written
};
using Work = std::map<std::string, OpWork>;

Work summed(const std::vector<plan::TimedCall>& calls) {
  Work all;
  for (const plan::TimedCall& call : calls) {
    const std::string_view name = call.work.name.text();
    OpWork& own = all[name.starts_with("matmul_") ? "matmul" : std::string(name)];
    ++own.calls;
    own.seconds += call.seconds;
    own.operations += call.work.flops();
    own.bytes += static_cast<double>(call.work.bytes);
  }
  return all;
}

/// The part of a step that an operation belongs to.
const char* group_of(const std::string& name) {
  static const std::map<std::string, const char*> groups = {{"matmul", "products"},
                                                            {"attention", "attention"},
                                                            {"attention_backward", "attention"},
                                                            {"rotary", "attention"},
                                                            {"layer_norm", "norms"},
                                                            {"add_layer_norm", "norms"},
                                                            {"add_rms_norm", "norms"},
                                                            {"layer_norm_backward_input", "norms"},
                                                            {"layer_norm_backward_weight", "norms"},
                                                            {"layer_norm_backward", "norms"},
                                                            {"rms_norm", "norms"},
                                                            {"rms_norm_backward_input", "norms"},
                                                            {"rms_norm_backward_weight", "norms"},
                                                            {"rms_norm_backward", "norms"},
                                                            {"gelu", "activations"},
                                                            {"gelu_backward", "activations"},
                                                            {"swiglu", "activations"},
                                                            {"swiglu_backward", "activations"},
                                                            {"embedding", "embedding"},
                                                            {"embedding_backward", "embedding"},
                                                            {"row_maximum", "loss"},
                                                            {"exp_sum_and_target", "loss"},
                                                            {"softmax_statistics", "loss"},
                                                            {"cross_entropy_gradient", "loss"},
                                                            {"weighted_loss", "loss"},
                                                            {"add_squares", "optimizer"},
                                                            {"adamw", "optimizer"},
                                                            {"sgd", "optimizer"}};
  const auto found = groups.find(name);
  return found == groups.end() ? "moves and sums" : found->second;
}

json print_groups(const Work& work, double step_seconds) {
  std::map<std::string, double> groups;
  double busy = 0;
  for (const auto& [name, own] : work) {
    groups[group_of(name)] += own.seconds;
    busy += own.seconds;
  }
  groups["between operations"] = std::max(0.0, step_seconds - busy);
  std::vector<std::pair<std::string, double>> sorted(groups.begin(), groups.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  fmt::print("  {:<28}{:>11}{:>8}\n", "group of operations", "ms", "share");
  json result;
  for (const auto& [name, seconds] : sorted) {
    fmt::print("  {:<28}{:>11.3f}{:>8.3f}\n", name, 1e3 * seconds, seconds / step_seconds);
    result[name] = seconds;
  }
  return result;
}

json print_ops(const Work& work, const Ceilings& ceilings, double step_seconds) {
  std::vector<std::pair<std::string, OpWork>> sorted(work.begin(), work.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("  {:<28}{:>7}{:>11}{:>8}{:>12}{:>11}{:>10}  {}\n", "op", "calls", "ms", "share",
             "TFLOP/s", "GB/s", "achieved", "of");
  json result;
  for (const auto& [name, own] : sorted) {
    // The ceiling that takes longer is the one that bounds it.
    const double by_products = own.operations / ceilings.products;
    const double by_copies = own.bytes / ceilings.copies;
    const double achieved = std::max(by_products, by_copies) / own.seconds;
    const char* bound = by_products > by_copies ? "products" : "copies";
    fmt::print("  {:<28}{:>7}{:>11.3f}{:>8.3f}{:>12.1f}{:>11.1f}{:>10.2f}  {}\n", name, own.calls,
               1e3 * own.seconds, own.seconds / step_seconds, own.operations / own.seconds / 1e12,
               own.bytes / own.seconds / 1e9, achieved, bound);
    result[name] = {{"calls", own.calls}, {"seconds", own.seconds}, {"operations", own.operations},
                    {"bytes", own.bytes}, {"achieved", achieved},   {"of", bound}};
  }
  return result;
}

model::ModelConfig model_of(const Case& each) {
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  const model::Preset& preset = model::find_preset(each.preset);
  fields.from_json({{"model", preset.values}}, config::Source::preset, "preset " + preset.name);
  if (each.sequence > 0) config.sequence = each.sequence;
  if (config.vocabulary == 0) config.vocabulary = 256;
  config.resolve();
  return config;
}

model::Recompute recompute_of(const std::string& name, bool host, std::int64_t width) {
  using model::Recompute;
  if (name.empty()) return parallel::usual_recompute(host, width);
  static const std::map<std::string, Recompute> policies = {{"none", Recompute::none},
                                                            {"cheap", Recompute::cheap},
                                                            {"selective", Recompute::selective},
                                                            {"full", Recompute::full}};
  const auto found = policies.find(name);
  if (found == policies.end()) {
    throw Error("--recompute {}: none, cheap, selective or full", name);
  }
  return found->second;
}

/// The model's shape, for bench/peers/torch_steps.py.
json to_json(const model::ModelConfig& config) {
  return {{"layers", config.layers},
          {"width", config.width},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"hidden", config.hidden},
          {"vocabulary", config.vocabulary},
          {"sequence", config.sequence},
          {"norm", config.norm},
          {"epsilon", config.epsilon},
          {"position", config.position},
          {"rope_theta", config.rope_theta},
          {"activation", config.activation},
          {"bias", config.bias},
          {"tied", config.tied}};
}

json run_case(comm::Session& session, const train::ComputeDevice& computes, DType compute,
              const Case& each, const Arguments& arguments, Ceilings ceilings) {
  const std::size_t steps = arguments.steps;
  const model::ModelConfig config = model_of(each);
  device::Device& device = computes.device();
  device::MemoryLedger ledger(device);
  Recorder recorder;
  const model::Transformer model(config);
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  plan::TimedOps* measured = nullptr;
  parallel::ReplicaOptions options =
      plan::one_rank_options(device.is_host(), compute, each.batch,
                             recompute_of(arguments.recompute, device.is_host(), config.width));
  options.threads = train::threads_of_rank({}, session);
  options.graphs = true;
  options.make_ops = [&](device::MemoryLedger& memory, int threads, bool reproducible) {
    const parallel::MakeOps make = computes.make_ops(true);
    auto own = std::make_unique<plan::TimedOps>(
        make ? make(memory, threads, reproducible) : ops::make_cpu_ops(threads, &memory), device);
    measured = own.get();
    return own;
  };
  parallel::Replica replica(model, options, grid, recorder, ledger);
  replica.initialize();
  replica.settle_choices();
  std::vector<parallel::HostMicrobatch> batches;
  batches.push_back(plan::random_batch(config, each.batch));
  std::int64_t step = 0;
  // The host waits here for the gradients; the update overlaps the next step.
  parallel::StepGraphs& graphs = replica.engine().graphs();
  const auto train = [&] {
    const parallel::StepSums sums = replica.backward(batches);
    replica.update(1e-4, step++, optim::clip_factor(sums.gradient_norm, 1.0));
    return sums.loss.mean();
  };
  double loss = 0;
  /// Times of steps, launched as graphs from the second one on or operation by operation.
  const auto time_steps = [&](bool as_graphs) {
    const auto next = [&] {
      if (!as_graphs) graphs.forget();
      loss = train();
    };
    for (std::size_t i = 0; i < std::min<std::size_t>(3, steps); ++i) next();
    std::vector<double> seconds;
    const auto begin = Clock::now();
    // The same number on every rank, whatever its clock.
    while (seconds.size() < steps ||
           (steps > 1 && seconds.size() < 50 && grid.world().all_agree(seconds_since(begin) < 8))) {
      const auto start = Clock::now();
      next();
      seconds.push_back(seconds_since(start));
    }
    return seconds;
  };
  const std::vector<double> in_order = time_steps(false);
  const std::int64_t resident = train::resident_peak();
  std::vector<double> seconds = in_order;
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::vector<double> by_graphs;
  if (graphs.active()) by_graphs = time_steps(true);
  std::sort(by_graphs.begin(), by_graphs.end());
  graphs.forget();  // operations are to be measured one by one
  const double tokens = static_cast<double>(session.size() * each.batch * config.sequence);
  const double rate = model.flops_per_token() * tokens / median;
  device::wait_for(device);
  measured->start();
  const auto start = Clock::now();
  train();
  const Work work = summed(measured->finish());
  const double traced = seconds_since(start);
  if (device.is_host()) {
    grid.world().barrier();  // all ranks at once, as they train
    ceilings = measure_ceilings(computes, compute, ceilings.nominal);
    // Measure again if other work on the machine slowed these steps down.
    const double reached = rate / static_cast<double>(session.size());
    for (int look = 0; look == 0 || (look < 4 && ceilings.products < 1.05 * reached); ++look) {
      ceilings.products = std::max(
          ceilings.products,
          plan::measure_peak(replica.ops(), device, compute, model, each.batch * config.sequence));
    }
  }
  ceilings.products = grid.world().all_reduce(ceilings.products, comm::Reduction::sum);
  ceilings.copies = grid.world().all_reduce(ceilings.copies, comm::Reduction::sum);
  ceilings.nominal *= session.size();
  if (session.rank() > 0) return {};
  std::int64_t memory = 0;
  for (int use = 0; use < static_cast<int>(device::Use::count); ++use) {
    memory += ledger.peak(static_cast<device::Use>(use));
  }
  fmt::print(
      "{} ({} parameters, {}, batch {} x {}): {:.2f} ms (best {:.2f}, worst {:.2f}), {:.0f} "
      "tokens/s, {:.1f} TFLOP/s, MFU {} of the nominal and {:.3f} of the measured peak, {:.2f} GiB "
      "at most, loss {:.3f}\n",
      each.preset, model.table().elements(), name_of(compute), each.batch, config.sequence,
      1e3 * median, 1e3 * seconds.front(), 1e3 * seconds.back(), tokens / median, rate / 1e12,
      ceilings.nominal > 0 ? fmt::format("{:.3f}", rate / ceilings.nominal) : "(unknown)",
      rate / ceilings.products, static_cast<double>(memory) / (1 << 30), loss);
  fmt::print("  peak {:.3f} TFLOP/s, copies {:.1f} GB/s read and written, the process {:.2f} GiB\n",
             ceilings.products / 1e12, ceilings.copies / 1e9,
             static_cast<double>(resident) / (1 << 30));
  if (!by_graphs.empty()) {
    const double launched = by_graphs[by_graphs.size() / 2];
    fmt::print("  as {} graphs: {:.2f} ms, {:.2f} times as fast{}\n", graphs.captured(),
               1e3 * launched, median / launched,
               graphs.refusal().empty() ? "" : "; refused: " + graphs.refusal());
  }
  const double peak = ceilings.products;
  // Of rank 0's own work, where there are several ranks.
  ceilings.products /= session.size();
  ceilings.copies /= session.size();
  json result{{"preset", each.preset},
              {"model", to_json(config)},
              {"parameters", model.table().elements()},
              {"batch", each.batch},
              {"sequence", config.sequence},
              {"compute", name_of(compute)},
              {"flops_per_token", model.flops_per_token()},
              {"ranks", session.size()},
              {"step_seconds", median},
              {"all_step_seconds", in_order},
              {"peak", peak},
              {"resident_bytes", resident},
              {"tokens_per_second", tokens / median},
              {"mfu_of_measured", rate / peak},
              {"memory_bytes", memory},
              {"loss", loss}};
  if (!by_graphs.empty()) result["graph_step_seconds"] = by_graphs[by_graphs.size() / 2];
  if (ceilings.nominal > 0) result["mfu_of_nominal"] = rate / ceilings.nominal;
  result["groups"] = print_groups(work, traced);
  result["operations"] = print_ops(work, ceilings, traced);
  return result;
}

int run(int argc, char** argv) {
  comm::Session session(&argc, &argv);
  const Arguments arguments = parse({argv + 1, argv + argc});
  device::DeviceConfig config;
  config.type = arguments.device;
  train::ComputeDevice computes(config, session);
  device::Device& device = computes.device();
  const DType compute = !arguments.compute.empty() ? dtype_from_name(arguments.compute)
                        : device.is_host()         ? DType::f32
                                                   : DType::bf16;
  parallel::PrecisionConfig held;
  held.compute = name_of(compute);
  {
    device::MemoryLedger ledger;
    computes.settle_precision(held, *comm::make_mpi_communicator(session.world(), ledger));
  }
  if (held.compute != name_of(compute))
    throw Error("{}: this processor does not multiply it; measure fp32", name_of(compute));
  const bool is_root = session.rank() == 0;
  if (is_root) fmt::print("{}; {}\n", device.name(), device::cuda_description());
  Ceilings ceilings{.nominal = arguments.nominal};
  if (!device.is_host()) {
    ceilings = measure_ceilings(computes, compute, arguments.nominal);
    if (is_root) {
      fmt::print(
          "measured ceilings: {} products {:.1f} TFLOP/s (nominal: {}), copies {:.0f} GB/s read "
          "and written\n",
          name_of(compute), ceilings.products / 1e12,
          ceilings.nominal > 0 ? fmt::format("{:.1f}", ceilings.nominal / 1e12)
                               : "not known, name it with --nominal",
          ceilings.copies / 1e9);
    }
  }
  json all{{"device", device.name()},
           {"description", device::cuda_description()},
           {"libraries", device.is_host() ? "" : ops::cuda_libraries()},
           {"ceilings",
            {{"products", ceilings.products},
             {"nominal", ceilings.nominal},
             {"copies", ceilings.copies}}},
           {"cases", json::array()}};
  bool whole = true;
  const auto write_results = [&] {
    if (!is_root || arguments.results.empty()) return;
    replace_file(arguments.results, json_text(all, 2) + "\n");
  };
  write_results();
  for (const Case& each : arguments.cases) {
    try {
      all["cases"].push_back(run_case(session, computes, compute, each, arguments, ceilings));
    } catch (const Error& error) {
      whole = false;
      fmt::print("{}: {}\n", each.preset, error.what());
    }
    std::fflush(stdout);
    write_results();  // a later model may meet a time limit
  }
  return whole ? 0 : 1;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  try {
    return trireme::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "trireme_bench_steps: {}\n", error.what());
    return 1;
  }
}
