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

Walk::Walk(const Schedule& schedule, const std::vector<StageSteps>& lists, const Costs& costs)
    : schedule_(schedule),
      lists_(lists),
      costs_(costs),
      channels_(lists.size()),
      stages_(lists.size()),
      spans_(lists.size()) {
  for (std::size_t s = 0; s < lists.size(); ++s) {
    stages_[s].incoming = {std::vector(at(lists[s].receive_activation_slots), -1),
                           std::vector(at(lists[s].receive_gradient_slots), -1)};
    stages_[s].outgoing = {std::vector(at(lists[s].send_activation_slots), -1),
                           std::vector(at(lists[s].send_gradient_slots), -1)};
  }
}

bool Walk::run() {
  std::vector<int> work;
  for (int stage = schedule_.stages - 1; stage >= 0; --stage) work.push_back(stage);
  while (!work.empty()) {
    const int stage = work.back();
    work.pop_back();
    std::size_t& next = stages_[at(stage)].next;
    const std::size_t before = next;
    const auto& steps = lists_[at(stage)].steps;
    while (next < steps.size() && take(stage, steps[next])) ++next;
    if (next == before) continue;
    for (const bool gradient : {false, true}) {
      work.push_back(sender_to(stage, gradient));
      work.push_back(receiver_of(stage, gradient));
    }
  }
  for (std::size_t s = 0; s < stages_.size(); ++s)
    if (stages_[s].next < lists_[s].steps.size()) return false;
  return true;
}

int Walk::sender_to(int stage, bool gradient) const {
  return (stage + (gradient ? 1 : schedule_.stages - 1)) % schedule_.stages;
}

int Walk::receiver_of(int stage, bool gradient) const { return sender_to(stage, !gradient); }

int Walk::send_slots(int stage, bool gradient) const {
  const Channel& channel = channels_[at(receiver_of(stage, gradient))][gradient];
  std::size_t ended = 0;  // messages of the channel; they end in order
  std::size_t started = 0;
  std::size_t most = 0;
  for (const Span& span : spans_[at(stage)]) {
    const auto target = output_of(schedule_, stage, span.action);
    if (!target || target->gradient != gradient) continue;
    const auto end = [&](std::size_t i) {
      return costs_.latency + std::max(channel.sent[i], channel.received[i]);
    };
    while (ended < started && end(ended) <= span.start) ++ended;
    ++started;
    most = std::max(most, started - ended);
  }
  return static_cast<int>(most);
}

bool Walk::take(int stage, const Step& step) {
  if (step.kind == Step::Kind::compute) return compute(stage, step);
  Stage& here = stages_[at(stage)];
  const bool gradient = step.is_gradient();
  const bool receive = step.is_receive();
  Channel& channel = channels_[at(receive ? stage : receiver_of(stage, gradient))][gradient];
  auto& times = receive ? channel.received : channel.sent;
  auto& slots = (receive ? here.incoming : here.outgoing)[gradient];
  slots[at(step.slot)] = static_cast<int>(times.size());
  times.push_back(here.clock);
  return true;
}

bool Walk::compute(int stage, const Step& step) {
  Stage& here = stages_[at(stage)];
  double start = here.clock;
  // With one stage the slots are local: what they need has run earlier in the list.
  if (schedule_.stages > 1) {
    const bool gradient = step.action.kind != Kind::forward;
    const auto wait = [&](const Channel& channel, int message) {
      if (message < 0) return true;  // nothing was sent from this slot yet
      if (channel.sent.size() <= at(message) || channel.received.size() <= at(message))
        return false;
      start = std::max(start, costs_.latency + std::max(channel.sent[at(message)],
                                                        channel.received[at(message)]));
      return true;
    };
    if (step.input_slot >= 0 &&
        !wait(channels_[at(stage)][gradient], here.incoming[gradient][at(step.input_slot)]))
      return false;
    if (step.output_slot >= 0 && !wait(channels_[at(receiver_of(stage, gradient))][gradient],
                                       here.outgoing[gradient][at(step.output_slot)]))
      return false;
  }
  here.clock = start + cost(stage, step.action);
  spans_[at(stage)].push_back({step.action, start, here.clock});
  return true;
}

double Walk::cost(int stage, const Action& action) const {
  const std::size_t row = at(schedule_.virtual_stage(stage, action.chunk));
  switch (action.kind) {
    case Kind::forward:
      return costs_.forward[row];
    case Kind::backward:
      return costs_.input[row] + costs_.weight[row];
    case Kind::backward_input:
      return costs_.input[row];
    case Kind::backward_weight:
      return costs_.weight[row];
  }
  throw Error("schedule action {}", static_cast<int>(action.kind));
}

std::string Walk::wait_of(int stage) const {
  const Step& step = lists_[at(stage)].steps[stages_[at(stage)].next];
  const bool gradient = step.action.kind != Kind::forward;
  const char* what = gradient ? "gradient" : "activation";
  const std::string cell = to_string(schedule_, stage, step.action);
  if (step.input_slot >= 0) {
    const int message = stages_[at(stage)].incoming[gradient][at(step.input_slot)];
    const Channel& channel = channels_[at(stage)][gradient];
    if (message >= 0 && channel.sent.size() <= at(message))
      return fmt::format("stage {} waits at {} for its {} from stage {}", stage, cell, what,
                         sender_to(stage, gradient));
  }
  return fmt::format("stage {} waits at {} until stage {} takes an earlier {}", stage, cell,
                     receiver_of(stage, gradient), what);
}

std::string Walk::waits() const {
  std::string text;
  int stuck = 0;
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    if (stages_[at(stage)].next == lists_[at(stage)].steps.size()) continue;
    if (++stuck <= 4) text += (text.empty() ? "" : ", ") + wait_of(stage);
  }
  if (stuck > 4) text += fmt::format(" and {} more wait", stuck - 4);
  return text;
}

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
