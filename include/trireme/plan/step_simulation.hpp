// The traces of a step's ranks on a machine, event by event: what computes, what is on its way, and
// who waits for what.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/shape.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/trace.hpp"

namespace trireme::plan {

/// Ranks whose steps are alike are simulated once.
struct RankClass {
  int rank = 0;  // the one whose trace it is
  Trace trace;
};

/// Which class a rank of the world is of. Ranks of a class have groups with ranks of the same
/// classes.
using ClassOf = std::function<std::size_t(int rank)>;

struct RankTimes {
  int rank = 0;
  double end = 0;                       // seconds
  std::map<std::string, double> parts;  // seconds by kind of work, or channel waited for
  double busy = 0;                      // of computation
};

struct StepTimes {
  double seconds = 0;            // until the last rank ends, and the host's work between steps
  std::vector<RankTimes> ranks;  // by class
  /// Of the rank that computes longest: what bounds the step.
  const RankTimes& longest() const;
};

/// Rules: a rank's computation is one queue, in the order of the calls. On GPUs the host runs ahead
/// of it by the cost of its launches, and waits only where the program does. A stream's operations
/// are done one after another; each begins when all of its group have reached it, after the
/// computation that came before it. Without overlap on CPUs it also begins no sooner than its rank
/// waits. Computation is slower by links.slowdown while any is under way. Messages match in order.
/// Throws Error where a rank waits for what never comes, or a group's ranks do not agree on what
/// they do.
StepTimes simulate(const comm::GridShape& shape, const std::vector<RankClass>& classes,
                   const ClassOf& class_of, const Machine& machine);

}  // namespace trireme::plan
