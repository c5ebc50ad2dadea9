#include "trireme/data_parallel/run.hpp"

#include "trireme/data_parallel/independent_workers.hpp"
#include "trireme/train/trainer.hpp"

#include "async.hpp"
#include "served.hpp"

namespace trireme::data_parallel {

train::Ending run(comm::Session& session, train::RunConfig& config, const config::Fields& fields,
                  const train::DeviceSource& devices) {
  const std::string& method = config.data_parallel.method;
  if (method == "allreduce") {
    train::Job job(session, config, fields, devices);
    return train::run_on_grid<train::Method>(job);
  }
  if (method == "average") {
    train::Job job(session, config, fields, devices);
    return train::run_on_grid<IndependentWorkers>(job);
  }
  if (train::waits_for_none(config)) return run_async(session, config, fields, devices);
  TRIREME_ASSERT(method == "server" || method == "async-server", "data_parallel.method = {}",
                 method);
  return run_served(session, config, fields, devices);
}

}  // namespace trireme::data_parallel
