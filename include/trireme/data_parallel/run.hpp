// Training by the configured data-parallel method.
#pragma once

#include "trireme/train/setup.hpp"

namespace trireme::data_parallel {

/// Validates and trains; prints progress and the closing summary on rank 0. `fields` are bound to
/// `config` and recorded in run.json and in checkpoints, with what validation derives.
train::Ending run(comm::Session& session, train::RunConfig& config, const config::Fields& fields,
                  const train::DeviceSource& devices = train::cuda_devices());

}  // namespace trireme::data_parallel
