// The traces of a step's ranks on a machine, event by event: what computes, what is on its way, and
// who waits for what.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
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

/// What a rank, or one of its streams, does from `begin` to `end`, in seconds.
struct Span {
  std::size_t of = 0;  // class
  /// Of a stream: communicates, from the moment when all sides have reached it. Null: the rank
  /// computes or waits.
  const StreamOperation* operation = nullptr;
  std::string_view part;  // as in RankTimes; of a stream: what waiting for it belongs to
  double begin = 0, end = 0;
};
/// Gets the spans of each rank, and of each stream, in the order of time. None overlap there, and
/// those without operation sum up to RankTimes::parts. Their `part` ends with the call.
using SpanObserver = std::function<void(const Span&)>;

/// Rules: a rank's computation is one queue, in the order of the calls. On GPUs the host runs ahead
/// of it by the cost of its launches, and waits only where the program does. A stream's operations
/// are done one after another; each begins when all of its group have reached it, after the
/// computation that came before it. Without overlap on CPUs it also begins no sooner than its rank
/// waits. Computation is slower by a link's slowdown while messages pass over it, of both links by
/// the greater one; messages by the link's stretch while one of their ranks computes. Messages
/// match in order. Throws Error where a rank waits for what never comes, or a group's ranks do not
/// agree on what they do. With an observer sections are simulated call by call, which takes longer.
StepTimes simulate(const comm::GridShape& shape, const std::vector<RankClass>& classes,
                   const ClassOf& class_of, const Machine& machine,
                   const SpanObserver& observe = {});

}  // namespace trireme::plan
