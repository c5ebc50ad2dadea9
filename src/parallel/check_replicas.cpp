#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/agree.hpp"
#include "trireme/core/random.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::parallel {

namespace {

/// The hash of a replica, and its name, the same on every rank that holds it.
struct Fingerprint {
  std::string name;
  std::uint64_t hash = 0;
};

std::uint64_t hash_of(device::Device& device, const Tensor& values) {
  data::Xxh3 hash;
  if (device.is_host()) {
    hash.update(values.data(), values.bytes());
  } else {
    std::vector<std::byte> copy(values.bytes());
    device::read(device, copy.data(), values);
    hash.update(copy.data(), copy.size());
  }
  return hash.value();
}

/// One flat buffer of the rank: whole, or own shards one after the other.
struct Values {
  std::string prefix;
  Tensor flat;
  bool sharded = false;
};

std::vector<Values> values_of(const Replica& replica, Alike alike = Alike::state) {
  const state::ModelState& state = replica.state();
  std::vector<Values> result{{"", state.parameters(), state.parameters_sharded()}};
  if (alike == Alike::parameters || !state.options().updates()) return result;
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

/// Of the parts of blocks for which keep(values, block) holds.
template <class Keep>
std::vector<Fingerprint> prints_of(const Replica& replica, Alike alike, const Keep& keep) {
  std::vector<Fingerprint> result;
  for (const Values& values : values_of(replica, alike)) {
    for_each_part(replica.stage(), values,
                  [&](const params::Block& block, const params::Range& part, const Tensor& own) {
                    if (!keep(values, block)) return;
                    result.push_back({part_name(replica.stage(), values, block, part),
                                      hash_of(replica.state().optimizer_device(), own)});
                  });
  }
  return result;
}

/// What is equal on all ranks of the data axis, or of a replica group.
std::vector<Fingerprint> of_data(const Replica& replica, bool sharded, Alike alike) {
  return prints_of(replica, alike, [&](const Values& values, const params::Block& /*block*/) {
    return values.sharded == sharded;
  });
}

/// Rows that are not split, and key/value heads that several tiles hold. Shards of tensor ranks may
/// be cut in different places, so that only whole values are compared.
std::vector<Fingerprint> of_tensor(const Replica& replica) {
  const Stage& stage = replica.stage();
  std::vector<Fingerprint> result =
      prints_of(replica, Alike::state, [](const Values& values, const params::Block& block) {
        return !values.sharded && block.slices.empty();
      });
  for (const Values& values : values_of(replica)) {
    if (values.sharded) continue;
    for (const params::Block& block : stage.layout().blocks()) {
      const params::Parameter& row = stage.model().table().row(block.row);
      for (const params::SharedGrain& grain :
           params::shared_grains(row, stage.shares().tiles.all)) {
        const params::Range held = params::elements_of(row, block, grain);
        if (held.size() == 0) continue;
        result.push_back(
            {fmt::format("{}{} rows [{}, {})", values.prefix, row.name, grain.along.begin,
                         grain.along.end),
             hash_of(replica.state().optimizer_device(),
                     values.flat.slice(0, block.offset + held.begin, block.offset + held.end))});
      }
    }
  }
  return result;
}

std::vector<Fingerprint> of_embedding(const Replica& replica) {
  const params::ParameterTable& table = replica.stage().model().table();
  return prints_of(replica, Alike::state,
                   [&](const Values& /*values*/, const params::Block& block) {
                     return table.row(block.row).units.size() > 1;
                   });
}

/// What one rank, of the world, holds under a name.
struct Held {
  std::uint64_t hash = 0;
  std::uint64_t rank = 0;
};

/// For replicas that differ: "between ranks 0 and 2 (rank 2 is alone with its values, 3 others
/// agree)", a rank of the largest set of equal replicas and the first outside it.
std::string parties_of(const std::vector<Held>& replicas) {
  const auto size_of = [&](const Held& held) {
    return std::count_if(replicas.begin(), replicas.end(),
                         [&](const Held& other) { return other.hash == held.hash; });
  };
  const Held& most =
      *std::max_element(replicas.begin(), replicas.end(),
                        [&](const Held& a, const Held& b) { return size_of(a) < size_of(b); });
  const Held& odd = *std::find_if(replicas.begin(), replicas.end(),
                                  [&](const Held& held) { return held.hash != most.hash; });
  std::string text = fmt::format("between ranks {} and {}", std::min(most.rank, odd.rank),
                                 std::max(most.rank, odd.rank));
  const auto agree = static_cast<std::size_t>(size_of(most));
  if (agree >= 2 && agree + 1 == replicas.size()) {
    text += fmt::format(" (rank {} is alone with its values, {} others agree)", odd.rank, agree);
  }
  return text;
}

/// Compares values of the same name on all ranks of the group that hold them. Reports the first
/// that differs in `complaint`, unless it has text already.
void compare(comm::Communicator& group, const std::vector<Fingerprint>& own, const char* axis,
             int world_rank, std::int64_t step, std::string& complaint) {
  struct Entry {
    std::uint64_t name = 0;
    Held held;
  };
  std::vector<Entry> entries;
  std::map<std::uint64_t, std::string> names;
  for (const Fingerprint& print : own) {
    data::Xxh3 hash;
    hash.update(print.name.data(), print.name.size());
    entries.push_back({hash.value(), {print.hash, static_cast<std::uint64_t>(world_rank)}});
    names.emplace(entries.back().name, print.name);
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(entries.data());
  const auto all = group.all_gather_bytes({bytes, entries.size() * sizeof(Entry)});
  std::map<std::uint64_t, std::vector<Held>> replicas;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::size_t at = 0; at < all[rank].size(); at += sizeof(Entry)) {
      Entry entry;
      std::memcpy(&entry, all[rank].data() + at, sizeof entry);
      // Ranks that do not hold it do not check it.
      if (names.contains(entry.name)) replicas[entry.name].push_back(entry.held);
    }
  }
  for (const auto& [name, held] : replicas) {
    const std::uint64_t first = held.front().hash;
    const bool alike =
        std::all_of(held.begin(), held.end(), [&](const Held& each) { return each.hash == first; });
    if (alike || !complaint.empty()) continue;
    complaint = fmt::format(
        "step {}: replicas of {} differ on the {} axis {}: memory or a message was damaged, or a "
        "reduction is missing; resume from the last checkpoint",
        step, names.at(name), axis, parties_of(held));
  }
}

}  // namespace

std::string Flip::to_string() const {
  return fmt::format("bit {} of element {} of {}", bit, element, tensor);
}

void Flip::apply() const {
  std::uint32_t value = 0;
  device::read(*device, &value, word);
  value ^= 1U << bit;
  device::write(*device, word, &value);
}

Flip flip_bit(const Replica& replica, std::uint64_t seed, std::uint64_t number) {
  std::vector<std::pair<std::string, Tensor>> parts;
  for (const Values& values : values_of(replica)) {
    for_each_part(replica.stage(), values,
                  [&](const params::Block& block, const params::Range& part, const Tensor& own) {
                    parts.emplace_back(part_name(replica.stage(), values, block, part), own);
                  });
  }
  if (parts.empty()) return {};
  const auto drawn = random_block({seed, Purpose::fault, 0}, number);
  const auto& [name, values] = parts[drawn[0] % parts.size()];
  Flip flip{.tensor = name,
            .element = static_cast<std::int64_t>(drawn[1]) % values.elements(),
            .bit = static_cast<int>(drawn[2] % (8 * size_of(values.type())))};
  flip.word = values.slice(0, flip.element, flip.element + 1);
  flip.device = &replica.state().optimizer_device();
  flip.apply();
  return flip;
}

void check_replicas(const Replica& replica, comm::Grid& grid, std::int64_t step, Alike alike) {
  std::string complaint;
  const int rank = grid.world().rank();
  compare(grid.group(comm::Axis::data), of_data(replica, false, alike), "data", rank, step,
          complaint);
  compare(grid.replica_group(), of_data(replica, true, alike), "data (replica)", rank, step,
          complaint);
  compare(grid.group(comm::Axis::tensor), of_tensor(replica), "tensor", rank, step, complaint);
  if (grid.embedding_group().size() > 1) {
    compare(grid.embedding_group(), of_embedding(replica), "pipeline", rank, step, complaint);
  }
  comm::agree(grid.world(), [&] {
    if (!complaint.empty()) throw Error("{} ({})", complaint, grid.to_string());
  });
}

}  // namespace trireme::parallel
