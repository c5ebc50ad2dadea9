#include "trireme/comm/environment.hpp"

#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

std::string line(std::string_view what, int rank, const std::string& value, std::size_t ranks,
                 const std::string& first, std::string_view remedy) {
  return fmt::format(
      "environment: rank {} of {} has {} {}, rank 0 has {}: all ranks must compute alike; {}", rank,
      ranks, what, value, first, remedy);
}

}  // namespace

std::string environment_complaint(std::span<const Environment> ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const Environment& own = ranks[rank];
    if (own.instructions != ranks[0].instructions) {
      return line("instruction set", static_cast<int>(rank), own.instructions, ranks.size(),
                  ranks[0].instructions, "use nodes of one kind of processor");
    }
    if (own.libraries != ranks[0].libraries) {
      return line("libraries", static_cast<int>(rank), own.libraries, ranks.size(),
                  ranks[0].libraries, "start the same installation on all nodes");
    }
  }
  return {};
}

void require_same_environment(Communicator& world, const Environment& own) {
  const auto instructions = world.all_gather_texts(own.instructions);
  const auto libraries = world.all_gather_texts(own.libraries);
  std::vector<Environment> ranks;
  for (std::size_t rank = 0; rank < instructions.size(); ++rank) {
    ranks.push_back({instructions[rank], libraries[rank]});
  }
  if (const std::string complaint = environment_complaint(ranks); !complaint.empty()) {
    throw AgreedError(complaint);
  }
}

}  // namespace trireme::comm
