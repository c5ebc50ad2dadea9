#include "trireme/data_parallel/run.hpp"

#include "trireme/data_parallel/averaging.hpp"
#include "trireme/train/trainer.hpp"

#include "async.hpp"

namespace trireme::data_parallel {

train::Ending run(comm::Session& session, train::RunConfig& config, const config::Fields& fields,
                  const train::DeviceSource& devices) {
  const std::string& method = config.data_parallel.method;
  if (method == "allreduce") {
    return train::run_on_grid<train::Method>(session, config, fields, devices);
  }
  if (method == "average") {
    return train::run_on_grid<IndependentWorkers>(session, config, fields, devices);
  }
  if (train::waits_for_none(config)) return run_async(session, config, fields, devices);
  TRIREME_ASSERT(method == "server" || method == "async-server", "data_parallel.method = {}",
                 method);
  return run_served(session, config, fields, devices);
}

}  // namespace trireme::data_parallel
