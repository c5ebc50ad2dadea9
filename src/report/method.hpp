// What every form of a report says about how its figures were made.
#pragma once

#include <string>
#include <vector>

#include "trireme/report/page.hpp"

namespace trireme::report {

/// Warm-up, medians, intervals: one paragraph.
std::string method_text(const Report& report);
/// Where valid runs are of several fingerprints: in which keys they differ, one line each.
std::vector<std::string> comparison_notes(const Report& report);

}  // namespace trireme::report
