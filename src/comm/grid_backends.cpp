// The groups of a grid that do not send MPI messages: which they are, their NCCL communicators, and
// the window of shared memory that those of a node have in common.
#include <algorithm>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {
namespace {

/// Where the areas of a rank in a window of shared memory begin, by kind, and their bytes.
struct SharedAreas {
  ByKind<std::size_t> begin;
  std::size_t bytes = 0;
};

SharedAreas shared_areas(const GridShape& shape, int shard, int rank, const Backends& backends) {
  SharedAreas areas;
  for (const GroupKind kind : all_group_kinds) {
    areas.begin[kind] = areas.bytes;
    if (backends[kind] != Backend::shared) continue;
    areas.bytes += shared_area_bytes(static_cast<int>(members(shape, kind, shard, rank).size()));
  }
  return areas;
}

}  // namespace

BackendFacts Grid::backend_facts(const GridOptions& options) {
  device::Device& device = ledger_.device();
  BackendFacts facts{.device = device.name(), .is_host = device.is_host()};
  if (facts.is_host) {
    facts.node_of = session_.nodes();
  } else {
    facts.nccl = options.nccl_api != nullptr || nccl_built_in();
    if (facts.nccl) facts.devices = world().all_gather_texts(device.identity());
  }
  return facts;
}

/// Kind by kind in the same order everywhere, so that no two groups wait for each other.
void Grid::use_nccl(const GridOptions& options) {
  const auto& chosen = backends_.values;
  if (std::find(chosen.begin(), chosen.end(), Backend::nccl) == chosen.end()) return;
  NcclOptions nccl = options.nccl;
  nccl.library_sums = !options.reproducible;
  nccl_ = std::make_unique<NcclRuntime>(
      options.nccl_api != nullptr ? *options.nccl_api : nccl_library(), ledger_, nccl);
  for (const GroupKind kind : all_group_kinds) {
    if (backend(kind) != Backend::nccl) continue;
    groups_[kind] =
        nccl_->make(std::move(groups_[kind]), std::string(name_of(kind)), backend_key(kind));
  }
}

/// One window for all groups of all ranks of the node.
void Grid::use_shared(const GridOptions& options) {
  const auto areas_of = [this](int rank) { return shared_areas(shape_, shard_, rank, backends_); };
  if (areas_of(0).bytes == 0) return;  // rank 0 has every kind of group that any rank has
  std::string why;
  window_ = SharedWindow::make(session_.node(), areas_of(session_.rank()).bytes, ledger_, why,
                               options.shared_room);
  if (!world().all_agree(window_ != nullptr)) {
    window_.reset();
    for (const std::string& reason : world().all_gather_texts(why)) {
      if (why.empty()) why = reason;
    }
    BackendFacts facts = backend_facts(options);
    facts.no_room = why;
    backends_ = choose_backends(options.comm, shape_, shard_, facts);
    warnings_.push_back(why + ": ranks of a node send messages instead");
    return;
  }
  const std::vector<int>& nodes = session_.nodes();
  const auto place_in_node = [&](int rank) {
    return static_cast<int>(
        std::count(nodes.begin(), nodes.begin() + rank, nodes[static_cast<std::size_t>(rank)]));
  };
  for (const GroupKind kind : all_group_kinds) {
    if (backend(kind) != Backend::shared || groups_[kind]->size() == 1) continue;
    std::vector<std::byte*> areas;
    for (const int rank : members(shape_, kind, shard_, session_.rank())) {
      areas.push_back(window_->segment(place_in_node(rank)) + areas_of(rank).begin[kind]);
    }
    groups_[kind] = make_shared_communicator(std::move(groups_[kind]), areas);
  }
}

std::size_t grid_bytes(const GridShape& shape, int shard, int rank, const Backends& backends) {
  std::size_t bytes = shared_areas(shape, shard, rank, backends).bytes;
  for (const GroupKind kind : all_group_kinds) {
    const auto size = static_cast<int>(members(shape, kind, shard, rank).size());
    // The pipeline's group and its two channels.
    bytes += scratch_bytes(size, 0) * (kind == GroupKind::pipeline ? 3 : 1);
  }
  return bytes;
}

}  // namespace trireme::comm
