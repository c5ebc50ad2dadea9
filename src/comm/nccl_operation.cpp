#include "nccl_operation.hpp"

#include <algorithm>

namespace trireme::comm {

bool NcclOperation::test() {
  while (handle_.settled(name())) {
    if (next_ == steps_.size()) {
      device::end_span(queue_);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
      traffic_.add(job_.kind, {.bytes = job_.sent, .operations = 1, .seconds = spent.count()});
      return true;
    }
    if (!steps_[next_]()) return false;  // another stream's operation came between
    ++next_;
  }
  return false;
}

bool issue_parts(NcclHandle& handle, const char* operation, const std::vector<NcclPart>& parts,
                 device::Queue& queue) {
  const auto empty = [](const NcclPart& part) { return part.bytes == 0; };
  if (std::all_of(parts.begin(), parts.end(), empty)) return true;
  void* const native = queue.native();
  return handle.issue_group(operation, [&](NcclApi& api, NcclApi::Comm comm) {
    for (const NcclPart& part : parts) {
      if (part.bytes == 0) continue;
      const NcclApi::Result result =
          part.send ? api.send(part.data, part.bytes, part.peer, comm, native)
                    : api.receive(part.data, part.bytes, part.peer, comm, native);
      if (result != NcclApi::Result::success && result != NcclApi::Result::in_progress) {
        return result;
      }
    }
    return NcclApi::Result::success;
  });
}

}  // namespace trireme::comm
