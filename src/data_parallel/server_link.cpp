#include "trireme/data_parallel/server_link.hpp"

#include <memory>

#include "trireme/data_parallel/server_messages.hpp"

namespace trireme::data_parallel {

ServerLink::ServerLink(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts),
      shards_(server_parts(parts.stage.layout(), parts.place.servers)),
      staging_(parts.state, parts.ops, parts.place.gradients, ledger) {}

ServerLink::Bucket& ServerLink::bucket_of(const params::Range& elements) {
  const auto [at, fresh] = buckets_.try_emplace({elements.begin, elements.end});
  Bucket& bucket = at->second;
  if (!fresh) return bucket;
  for (const ServerPart& part : shards_) {
    if (part.elements.begin < elements.begin || part.elements.end > elements.end) continue;
    bucket.parts.push_back(part);
  }
  bucket.futures.reserve(bucket.parts.size());
  return bucket;
}

device::Event ServerLink::reduce(const params::Range& elements, const Tensor& /*gradient*/,
                                 device::Stream& stream) {
  Bucket& bucket = bucket_of(elements);
  return stream.enqueue(
      std::make_unique<Push>(staging_.take(elements), bucket.futures, [this, &bucket] {
        for (const ServerPart& part : bucket.parts) {
          const Tensor gradient = staging_.outgoing(part.elements);
          sent_ += static_cast<std::int64_t>(gradient.bytes());
          bucket.futures.push_back(push(part, messages::bytes_of(gradient)));
        }
      }));
}

}  // namespace trireme::data_parallel
