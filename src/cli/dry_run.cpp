// trireme train --dry-run --ranks: what would fail on so many ranks, found without them.
#include <algorithm>
#include <sstream>

#include "trireme/core/text.hpp"
#include "trireme/plan/step_time.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

/// Any will do: who waits for whom does not depend on how long it takes.
plan::Machine some_machine(const train::RunConfig& config) {
  plan::Machine machine;
  machine.device.type = config.device.type == "cuda" ? "gpu" : "cpu";
  machine.products.fp32_tflops = machine.products.bf16_tflops = machine.products.fp16_tflops = 1;
  machine.node.gb_per_s = machine.network.gb_per_s = 1;
  return machine;
}

/// Throws Error where a message has no receiver, or a group's ranks do not start the same
/// operations.
std::string check_programs(const train::RunConfig& config, const train::LayoutFacts& facts) {
  if (config.data_parallel.method != "allreduce" || config.zero.offload != "none") {
    return "programs: not checked; they are for data_parallel.method = allreduce without "
           "zero.offload\n";
  }
  const comm::GridShape shape = train::grid_shape(config, facts);
  const model::Transformer model(config.model);
  const parallel::ReplicaOptions options =
      train::replica_options(config, train::stage_options(config, shape, facts),
                             static_cast<int>(std::max<std::int64_t>(1, config.parallel.threads)));
  const plan::StageClasses stages =
      plan::trace_stages(model, options, shape, facts.host, config.data.document_mask);
  plan::simulate(shape, stages.classes, stages.class_of, some_machine(config));
  return fmt::format(
      "programs: of {} in {}; every message has its receiver, and the ranks of each group start "
      "the same operations\n",
      counted(shape.size(), "rank"), counted(std::ssize(stages.classes), "kind"));
}

}  // namespace

std::string dry_run(train::RunConfig& config, train::LayoutFacts facts) {
  facts.planned = true;
  const std::string memory = plan_memory(config, facts, {});
  facts.host = config.device.type != "cuda";
  std::string text, line;
  std::istringstream lines(memory + check_programs(config, facts));
  while (std::getline(lines, line)) {
    if (line.starts_with("fits: not known")) continue;  // names a flag of plan
    text += line.empty() ? "#\n" : "# " + line + "\n";
  }
  return text;
}

}  // namespace trireme::cli
