#include "trireme/data_parallel/tickets.hpp"

#include <algorithm>

#include "trireme/core/error.hpp"

namespace trireme::data_parallel {

Tickets::Tickets(const Plan& plan)
    : plan_(plan), next_(plan.first_step * plan.workers), fence_(plan.first_step) {
  TRIREME_ASSERT(plan.workers >= 1 && plan.batch % plan.workers == 0 && plan.staleness >= 0,
                 "{} workers, batch {}", plan.workers, plan.batch);
  for (int worker = 0; worker < plan.workers; ++worker) clocks_[worker] = 0;
}

void Tickets::close_fence() {
  fence_ = std::min(fence_, (next_ + plan_.workers - 1) / plan_.workers);
}

void Tickets::evaluate(std::int64_t parts, std::int64_t split) {
  for (std::int64_t part = 0; part < parts; ++part) {
    waiting_.push_back(
        {.kind = Ticket::Kind::evaluate, .number = part, .share = part, .first = split});
  }
}

std::int64_t Tickets::lead(int worker) const {
  const auto slowest =
      std::min_element(clocks_.begin(), clocks_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return clocks_.at(worker) - slowest->second;
}

std::optional<Ticket> Tickets::next(int worker) {
  if (!clocks_.contains(worker) || under_way_.contains(worker)) {
    throw Error("worker {} asks for a ticket, and {}", worker,
                clocks_.contains(worker) ? "has one" : "counts as dead");
  }
  if (!waiting_.empty()) {
    // What somebody left undone is no reason to be further ahead.
    const bool trains = waiting_.front().kind == Ticket::Kind::train;
    if (trains && lead(worker) > plan_.staleness) return std::nullopt;
    const Ticket ticket = waiting_.front();
    waiting_.pop_front();
    under_way_[worker] = ticket;
    return ticket;
  }
  if (next_ >= fence_ * plan_.workers || lead(worker) > plan_.staleness) return std::nullopt;
  const std::int64_t count = plan_.batch / plan_.workers;
  const std::int64_t since = next_ - plan_.first_step * plan_.workers;
  const Ticket ticket{.kind = Ticket::Kind::train,
                      .number = next_,
                      .step = next_ / plan_.workers,
                      .share = next_ % plan_.workers,
                      .first = plan_.first_sample + since * count,
                      .count = count};
  ++next_;
  under_way_[worker] = ticket;
  return ticket;
}

Ticket Tickets::finish(int worker) {
  const auto found = under_way_.extract(worker);
  if (!found) throw Error("worker {} has finished what it was not given", worker);
  const Ticket ticket = found.mapped();
  if (ticket.kind == Ticket::Kind::train) ++clocks_.at(worker);
  return ticket;
}

std::optional<Ticket> Tickets::lose(int worker) {
  clocks_.erase(worker);
  const auto found = under_way_.extract(worker);
  if (!found) return std::nullopt;
  const Ticket ticket = found.mapped();
  waiting_.push_front(ticket);
  return ticket;
}

bool Tickets::drained() const {
  return waiting_.empty() && under_way_.empty() && next_ >= fence_ * plan_.workers;
}

}  // namespace trireme::data_parallel
