#include "trireme/schedule/simulate.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/core/config.hpp"

#include "walk.hpp"

namespace trireme::schedule {

namespace {

void check_costs(const Costs& costs, int virtual_stages) {
  const auto fine = [](double cost) { return std::isfinite(cost) && cost >= 0; };
  for (const auto* vector : {&costs.forward, &costs.input, &costs.weight}) {
    TRIREME_ASSERT(vector->size() == static_cast<std::size_t>(virtual_stages),
                   "{} costs for {} virtual stages", vector->size(), virtual_stages);
    TRIREME_ASSERT(std::all_of(vector->begin(), vector->end(), fine), "costs are finite and >= 0");
  }
  TRIREME_ASSERT(fine(costs.latency), "latency {}", costs.latency);
}

void count_peaks(const std::vector<Span>& spans, int& in_flight, int& pending) {
  int flying = 0, waiting = 0;
  in_flight = pending = 0;
  for (const Span& span : spans) {
    const Action& action = span.action;
    if (action.kind == Kind::forward) in_flight = std::max(in_flight, ++flying);
    if (action.kind == Kind::backward_input) pending = std::max(pending, ++waiting);
    if (action.kind == Kind::backward_weight) --waiting;
    if (action.frees_stash()) --flying;
  }
}

}  // namespace

Costs Costs::uniform(int virtual_stages, double forward, double input, double weight,
                     double latency) {
  const auto each = [virtual_stages](double cost) {
    return std::vector(static_cast<std::size_t>(virtual_stages), cost);
  };
  return {each(forward), each(input), each(weight), latency};
}

Timeline simulate(const Schedule& schedule, const std::vector<StageSteps>& lists,
                  const Costs& costs) {
  check_costs(costs, schedule.virtual_stages());
  Walk walk(schedule, lists, costs);
  if (!walk.run())
    throw AgreedError("schedule {}: its stages wait for each other: {}",
                      config::one_line(schedule.name), walk.waits());
  Timeline timeline;
  timeline.spans = walk.spans();
  double busy = 0;
  for (const auto& spans : timeline.spans) {
    for (const Span& span : spans) {
      busy += span.end - span.start;
      timeline.total = std::max(timeline.total, span.end);
    }
    count_peaks(spans, timeline.peak_in_flight.emplace_back(),
                timeline.peak_pending_weights.emplace_back());
  }
  timeline.ideal = busy / schedule.stages;
  if (timeline.ideal > 0) timeline.bubble = (timeline.total - timeline.ideal) / timeline.ideal;
  return timeline;
}

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  return simulate(schedule, add_messages(schedule), costs);
}

}  // namespace trireme::schedule
