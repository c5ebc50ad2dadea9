// What a run would hold in memory, as a table.
#pragma once

#include <string>

#include "trireme/train/run.hpp"

namespace trireme::cli {

/// The memory that each pipeline stage's fullest rank would take in the layout of `config` on
/// facts.world ranks. Throws ConfigError for layouts that cannot be.
std::string plan_memory(train::RunConfig& config, const train::LayoutFacts& facts);

}  // namespace trireme::cli
