#include "trireme/train/job.hpp"

#include <cstdlib>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/plan/peak.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

/// Collective over the session.
template <class Work>
void agree_on(comm::Session& session, const Work& work) {
  device::MemoryLedger ledger;  // of an agreement that ends here
  const auto all = comm::make_mpi_communicator(session.world(), ledger);
  work(*all);
}

const RunConfig& agree_on_method(comm::Session& session, const RunConfig& config) {
  agree_on(session, [&](comm::Communicator& all) {
    comm::agree(all, [&] { check_method(config, {.world = session.size()}); });
  });
  return config;
}

/// The model's configuration, once the job's is settled.
const model::ModelConfig& settle(const Job& job, RunConfig& config, ComputeDevice& computes) {
  agree_on(job.session, [&](comm::Communicator& all) {
    computes.settle_precision(config.precision, all);
    comm::agree(all, [&] {
      if (config.zero.offload != "none" && computes.on_host()) {
        throw ConfigError("zero.offload", config.zero.offload,
                          "on a CPU must be none: the optimizer's state is in host memory as it is",
                          "use none, or device.type = cuda");
      }
      validate(config, job.plan.facts, job.session.rank(), job.session.size());
    });
  });
  return config.model;
}

}  // namespace

Job::Job(comm::Session& ranks, RunConfig& settled, const config::Fields& fields,
         const DeviceSource& devices)
    : session(ranks),
      config(agree_on_method(ranks, settled)),
      computes(config.device, session, server_ranks(config), devices),
      ledger(computes.device()),
      plan(plan_grid(config, session, computes.on_host())),
      model(settle(*this, settled, computes)),
      resolved(fields.to_json()),
      provenance(fields.provenance()),
      threads(threads_of_rank(config.parallel, session)),
      watchdog(session, config.train.watchdog,
               config.server.tolerate_failures ? comm::Watchdog::Ends::the_rank
                                               : comm::Watchdog::Ends::the_job),
      starting(watchdog) {
  computes.note_free_bytes("before_groups");
}

checkpoint::FileLayout Job::files(const comm::Session& writers) const {
  const bool by_node =
      select<bool>("checkpoint.files", config.checkpoint.files, {{"rank", false}, {"node", true}});
  checkpoint::FileLayout files{.before_publish = [this] {
    if (lock) lock->require_owned();
  }};
  if (by_node) files.nodes = writers.nodes();
  return files;
}

Environment probe_environment(const Job& job, comm::Communicator& everyone, int root) {
  comm::require_alike(
      everyone, "instruction set",
      fmt::format("{}, bf16 by {}", ops::instruction_set(), ops::cpu_bf16_products()),
      "use nodes of one kind of processor");
  std::string libraries = "oneDNN " + versions().at("onednn").get<std::string>();
  if (!ops::cuda_without().empty()) libraries += ", without " + ops::cuda_without();
  comm::require_alike(
      everyone, "libraries", libraries,
      "start the same installation, with the same TRIREME_CUDA_WITHOUT, on all nodes");
  return {.provenance = report::provenance(everyone, versions(), root),
          .shared_cores = comm::core_warning(job.session, job.threads)};
}

double agree_on_peak(const RunConfig& config, comm::Communicator& world, int workers,
                     parallel::Replica* replica, report::PhaseProgress* progress) {
  const std::string& peak = config.train.peak;
  if (peak == "none") return 0;
  if (peak != "measured") return std::strtod(peak.c_str(), nullptr) * 1e9 * workers;
  // All ranks at once, as they will train.
  world.barrier();
  double own = 0;
  comm::agree(world, [&] {
    if (replica == nullptr) return;
    device::Device& device = replica->state().device();
    const auto host = device.is_host() ? ops::make_cpu_ops(replica->threads()) : nullptr;
    own = plan::measure_peak(host ? *host : replica->ops(), device,
                             replica->stage().options().compute, replica->stage().model(),
                             config.train.micro_batch * config.model.sequence,
                             plan::PeakEffort::quick, [&](const std::string& product) {
                               if (progress != nullptr) progress->show(-1, product);
                             });
  });
  return world.all_reduce(own, comm::Reduction::sum);
}

}  // namespace trireme::train
