#include "trireme/device/timeline.hpp"

#include <utility>

#include "trireme/core/error.hpp"

namespace trireme::device {
namespace {

class HostTimeline final : public Timeline {
 public:
  void mark() override { marks_.push_back(Clock::now()); }
  std::vector<Clock::time_point> read() override { return std::exchange(marks_, {}); }

 private:
  std::vector<Clock::time_point> marks_;
};

}  // namespace

void begin_span(Queue& queue, const char* name) {
  if (auto* timed = dynamic_cast<TimedQueue*>(&queue)) timed->begin_span(name);
}

void end_span(Queue& queue) {
  if (auto* timed = dynamic_cast<TimedQueue*>(&queue)) timed->end_span();
}

std::unique_ptr<Timeline> make_timeline(Device& device) {
  if (device.is_host()) return std::make_unique<HostTimeline>();
  auto* timed = dynamic_cast<Timed*>(&device);
  if (timed == nullptr) {
    throw Error("train.trace: device {} keeps no time of its work; leave tracing off",
                device.name());
  }
  return timed->make_timeline();
}

}  // namespace trireme::device
