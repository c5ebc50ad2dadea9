// A trace with every call of its sections.
#pragma once

#include "trireme/plan/trace.hpp"

namespace trireme::plan::test {

/// The same step without sections.
inline Trace unfolded(const Trace& folded) {
  using Kind = Instruction::Kind;
  Trace trace = folded;
  trace.sections.clear();
  trace.operations.clear();
  trace.instructions.clear();
  std::vector<int> places(folded.operations.size());  // of operations that are in no section
  for (const Instruction& each : folded.instructions) {
    const auto index = static_cast<std::size_t>(each.index);
    if (each.kind == Kind::section) {
      const auto first = static_cast<int>(trace.operations.size());
      const Section& section = folded.sections[index];
      trace.operations.insert(trace.operations.end(), section.operations.begin(),
                              section.operations.end());
      for (Instruction inner : section.instructions) {
        if (inner.kind == Kind::start || inner.kind == Kind::wait) inner.index += first;
        trace.instructions.push_back(inner);
      }
      continue;
    }
    Instruction moved = each;
    if (each.kind == Kind::start) {
      places[index] = static_cast<int>(trace.operations.size());
      trace.operations.push_back(folded.operations[index]);
    }
    if (each.kind == Kind::start || each.kind == Kind::wait) moved.index = places[index];
    trace.instructions.push_back(moved);
  }
  return trace;
}

}  // namespace trireme::plan::test
