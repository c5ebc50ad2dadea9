#include "trireme/parallel/placement.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "trireme/comm/agree.hpp"
#include "trireme/data/hash.hpp"

namespace trireme::parallel {

namespace {

/// The hash of a replica, under the name it has on every rank that holds it.
struct Fingerprint {
  std::string name;
  std::uint64_t hash = 0;
};

std::uint64_t hash_of(const Tensor& values) {
  data::Xxh3 hash;
  hash.update(values.data(), values.bytes());
  return hash.value();
}

/// One flat buffer of the rank: whole, or own shards one after the other.
struct Values {
  std::string prefix;
  Tensor flat;
  bool sharded = false;
};

std::vector<Values> values_of(const Replica& replica) {
  const state::ModelState& state = replica.state();
  std::vector<Values> result{{"", state.parameters(), state.parameters_sharded()}};
  for (const auto& kept : replica.optimizer().states()) {
    result.push_back({kept.name + "/", kept.flat, replica.stage().options().zero > 0});
  }
  return result;
}

/// Visits the part of each block that this rank holds: visit(block, part of the block, values).
template <class Visit>
void for_each_part(const Stage& stage, const Values& values, const Visit& visit) {
  const params::Layout& layout = stage.layout();
  std::vector<params::FlatRange> ranges{{{0, layout.elements()}, 0}};
  if (values.sharded) ranges = stage.shards().own_ranges();
  for (const params::FlatRange& range : ranges) {
    for (const params::Block& block : layout.blocks()) {
      const std::int64_t begin = std::max(block.offset, range.elements.begin);
      const std::int64_t end = std::min(block.offset + block.elements(), range.elements.end);
      if (begin >= end) continue;
      const std::int64_t first = range.offset + begin - range.elements.begin;
      visit(block, params::Range{begin - block.offset, end - block.offset},
            values.flat.slice(0, first, first + end - begin));
    }
  }
}

std::string part_name(const Stage& stage, const Values& values, const params::Block& block,
                      const params::Range& part) {
  const params::Parameter& row = stage.model().table().row(block.row);
  std::string name = values.prefix + row.name;
  if (!block.slices.empty()) name += fmt::format(" tile {}", block.tile);
  if (part.size() < block.elements()) name += fmt::format(" [{}, {})", part.begin, part.end);
  return name;
}

/// What all ranks of the data axis, or of a replica group, hold alike.
std::vector<Fingerprint> of_data(const Replica& replica, bool sharded) {
  std::vector<Fingerprint> result;
  for (const Values& values : values_of(replica)) {
    if (values.sharded != sharded) continue;
    for_each_part(
        replica.stage(), values,
        [&](const params::Block& block, const params::Range& part, const Tensor& own) {
          result.push_back({part_name(replica.stage(), values, block, part), hash_of(own)});
        });
  }
  return result;
}

/// Rows that are not split. Shards of tensor ranks may be cut in different places, so that only
/// whole values are compared.
std::vector<Fingerprint> of_tensor(const Replica& replica) {
  std::vector<Fingerprint> result;
  for (const Values& values : values_of(replica)) {
    if (values.sharded) continue;
    for_each_part(
        replica.stage(), values,
        [&](const params::Block& block, const params::Range& part, const Tensor& own) {
          if (!block.slices.empty()) return;
          result.push_back({part_name(replica.stage(), values, block, part), hash_of(own)});
        });
  }
  return result;
}

/// Tied weights.
std::vector<Fingerprint> of_embedding(const Replica& replica) {
  std::vector<Fingerprint> result;
  for (const Values& values : values_of(replica)) {
    for_each_part(
        replica.stage(), values,
        [&](const params::Block& block, const params::Range& part, const Tensor& own) {
          if (replica.stage().model().table().row(block.row).units.size() < 2) return;
          result.push_back({part_name(replica.stage(), values, block, part), hash_of(own)});
        });
  }
  return result;
}

/// Throws Error where two ranks of the group differ.
void compare(comm::Communicator& group, const std::vector<Fingerprint>& own, const char* axis,
             std::int64_t step, std::string& complaint) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(own.size());
  for (const Fingerprint& print : own) hashes.push_back(print.hash);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(hashes.data());
  const auto all = group.all_gather_bytes({bytes, hashes.size() * sizeof(std::uint64_t)});
  for (std::size_t rank = 1; rank < all.size() && complaint.empty(); ++rank) {
    TRIREME_ASSERT(all[rank].size() == all[0].size(), "{} replicas on rank {} of the {} group",
                   all[rank].size(), rank, axis);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::size_t at = i * sizeof(std::uint64_t);
      if (std::memcmp(all[0].data() + at, all[rank].data() + at, sizeof(std::uint64_t)) == 0) {
        continue;
      }
      complaint = fmt::format(
          "step {}: replicas of {} differ on the {} axis between ranks 0 and {} of the group: "
          "memory or a message was damaged, or a reduction is missing; resume from the last "
          "checkpoint",
          step, own[i].name, axis, rank);
      break;
    }
  }
}

}  // namespace

void check_replicas(const Replica& replica, comm::Grid& grid, std::int64_t step) {
  std::string complaint;
  compare(grid.group(comm::Axis::data), of_data(replica, false), "data", step, complaint);
  compare(grid.replica_group(), of_data(replica, true), "data (replica)", step, complaint);
  compare(grid.group(comm::Axis::tensor), of_tensor(replica), "tensor", step, complaint);
  if (grid.embedding_group().size() > 1) {
    compare(grid.embedding_group(), of_embedding(replica), "pipeline", step, complaint);
  }
  comm::agree(grid.world(), [&] {
    if (!complaint.empty()) throw Error("{} ({})", complaint, grid.to_string());
  });
}

}  // namespace trireme::parallel
