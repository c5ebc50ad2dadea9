#pragma once

#include "trireme/report/runs.hpp"

namespace trireme::report {

/// What a note or a fault about shared cores begins with.
inline constexpr const char* shared_cores_text = "ranks share cores";

/// Adds to `run.faults` what makes its figures worthless, and to `run.notes` what a reader should
/// know. Throws Error where the record is damaged.
void find_faults(Run& run, const ReadOptions& options);

}  // namespace trireme::report
