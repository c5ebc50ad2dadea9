#include "trireme/comm/grid.hpp"

#include <algorithm>
#include <map>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/shape.hpp"

#include "operations.hpp"
#include "stage_channel.hpp"

namespace trireme::comm {
namespace {

/// Collective over the world: the group of `own`, ascending world ranks; null where it is this rank
/// alone.
std::shared_ptr<MpiHandle> split(const Session& session, const std::vector<int>& own) {
  MPI_Comm comm = MPI_COMM_NULL;
  const int color = own.size() == 1 ? MPI_UNDEFINED : own.front();
  mpi_check(MPI_Comm_split(session.world(), color, session.rank(), &comm), "MPI_Comm_split");
  return comm == MPI_COMM_NULL ? nullptr : std::make_shared<MpiHandle>(comm);
}

/// BackendFacts::device_of. Ranks that share a device are on one node. Only one number per rank
/// passes between nodes.
std::vector<int> first_with_device(const Session& session, Communicator& world,
                                   const std::string& identity) {
  device::MemoryLedger ledger;  // of an agreement that ends here
  const auto node = make_mpi_communicator(session.node(), ledger);
  const std::vector<std::string> near = node->all_gather_texts(identity);
  const std::vector<int>& nodes = session.nodes();
  std::vector<int> here;  // world ranks of the node, in the order of `near`
  for (int rank = 0; rank < session.size(); ++rank) {
    if (nodes[static_cast<std::size_t>(rank)] == nodes[static_cast<std::size_t>(session.rank())]) {
      here.push_back(rank);
    }
  }
  const auto place = std::find(near.begin(), near.end(), identity) - near.begin();
  const int first = identity.empty() ? -1 : here[static_cast<std::size_t>(place)];
  std::vector<int> result;
  for (const std::string& text : world.all_gather_texts(std::to_string(first))) {
    result.push_back(std::stoi(text));
  }
  return result;
}

/// Where the areas of a rank in a window of shared memory begin, by kind, and their bytes.
struct SharedAreas {
  ByKind<std::size_t> begin;
  std::size_t bytes = 0;
};

SharedAreas shared_areas(const GridShape& shape, int rank, const Backends& backends) {
  SharedAreas areas;
  for (const GroupKind kind : all_group_kinds) {
    areas.begin[kind] = areas.bytes;
    if (backends[kind] != Backend::shared) continue;
    areas.bytes += shared_area_bytes(group_size(shape, kind, rank));
  }
  return areas;
}

}  // namespace

Grid::Grid(const Session& session, const GridShape& shape, device::MemoryLedger& ledger,
           const GridOptions& options)
    : session_(&session),
      shape_(shape),
      coordinates_(shape.coordinates(session.rank())),
      ledger_(ledger) {
  TRIREME_ASSERT(shape.size() == session.size(), "{} over {} ranks", shape.to_string(),
                 session.size());
  TRIREME_ASSERT(
      shape.copies() % shape.shard_size() == 0 && shape.of(Axis::tensor) % shape.kv_size() == 0,
      "shard groups of {}, key/value groups of {} in {}", shape.shard_size(), shape.kv_size(),
      shape.to_string());
  choose_messages(options);
  make_groups();
  const BackendFacts facts = backend_facts(options);
  backends_ = choose_backends(options.comm, shape_, facts);
  use_nccl(options, devices_differ(facts));
  use_shared(options);

  char host[MPI_MAX_PROCESSOR_NAME + 1] = {};
  int length = 0;
  mpi_check(MPI_Get_processor_name(host, &length), "MPI_Get_processor_name");
  where_ = fmt::format("rank {} of {}:", session.rank(), session.size());
  for (const Axis axis : settable_axes) {
    if (axis == Axis::context && shape.of(axis) == 1) continue;
    where_ += fmt::format(" {} {}{}", name_of(axis), coordinate(axis),
                          axis == settable_axes.back() ? "" : ",");
  }
  where_ += fmt::format(" on {}", std::string_view(host, static_cast<std::size_t>(length)));
}

Grid::Grid(const GridShape& shape, int rank, device::MemoryLedger& ledger, const MakeGroup& make)
    : shape_(shape), coordinates_(shape.coordinates(rank)), ledger_(ledger) {
  for (const GroupKind kind : all_group_kinds) {
    const bool alone = group_size(shape, kind, rank) == 1;
    groups_[kind] = alone ? make_self_communicator() : make(kind, std::nullopt);
  }
  for (const Direction direction : {Direction::activations, Direction::gradients}) {
    const bool alone = shape.of(Axis::pipeline) == 1;
    channels_[static_cast<std::size_t>(direction)] =
        alone ? make_self_communicator() : make(GroupKind::pipeline, direction);
  }
}

/// How the device's memory gets to MPI. Nodes need not be alike in what the library reports.
void Grid::choose_messages(const GridOptions& options) {
  device::Device& device = ledger_.device();
  if (device.is_host()) return;
  messages_.address = options.address;
  const std::optional<bool> reads = options.mpi_reads_device();
  // The least of all ranks: 1: as chosen; 0: messages do not arrive; −1: the library refuses.
  int arrive = 1;
  if (options.comm.staging == "no" && reads == false) {
    arrive = -1;
  } else {
    messages_.direct = choose_direct(options.comm.staging, reads);
    if (messages_.direct && !messages_arrive(device, messages_, session_->node())) arrive = 0;
  }
  mpi_check(MPI_Allreduce(MPI_IN_PLACE, &arrive, 1, MPI_INT, MPI_MIN, session_->world()),
            "MPI_Allreduce");
  if (arrive == -1) choose_direct("no", false);  // throws, on all ranks
  if (arrive == 1) return;
  const std::string why = "a message from GPU memory to a neighbor did not arrive as it was sent";
  if (options.comm.staging == "no") throw ConfigError("comm.staging", "no", why, "use auto or yes");
  messages_.direct = false;
  warnings_.push_back("comm.staging = auto: " + why + "; messages pass through host memory");
}

void Grid::make_groups() {
  for (const GroupKind kind : all_group_kinds) groups_[kind] = make_self_communicator();
  for (auto& channel : channels_) channel = make_self_communicator();
  for (const std::vector<GroupKind>& kinds : shared_divisions(shape_)) {
    const auto handle = split(*session_, members(shape_, kinds.front(), session_->rank()));
    if (handle == nullptr) continue;
    for (const GroupKind kind : kinds) {
      groups_[kind] = make_mpi_communicator(handle, ledger_, messages_);
      if (kind != GroupKind::pipeline) continue;
      pipeline_ = handle;
      for (auto& channel : channels_) channel = make_mpi_communicator(handle, ledger_, messages_);
    }
  }
}

BackendFacts Grid::backend_facts(const GridOptions& options) {
  device::Device& device = ledger_.device();
  BackendFacts facts{.device = device.name(), .is_host = device.is_host()};
  if (facts.is_host) {
    facts.node_of = session_->nodes();
  } else {
    facts.nccl = options.nccl_api != nullptr || nccl_built_in();
    if (facts.nccl) facts.device_of = first_with_device(*session_, world(), device.identity());
  }
  return facts;
}

/// Kind by kind in the same order everywhere, so that no two groups wait for each other. A parent
/// pays where two kinds are split from it.
void Grid::use_nccl(const GridOptions& options, bool devices_differ) {
  const auto& chosen = backends_.values;
  if (std::find(chosen.begin(), chosen.end(), Backend::nccl) == chosen.end()) return;
  NcclOptions nccl = options.nccl;
  nccl.library_sums = !options.reproducible;
  nccl_ = std::make_unique<NcclRuntime>(
      options.nccl_api != nullptr ? *options.nccl_api : nccl_library(), ledger_, nccl);
  Communicator& everyone = world();  // the MPI communicator, which stays where it is
  const bool splits = everyone.all_agree(nccl_->api().splits()) && devices_differ;
  std::map<std::string, std::vector<GroupKind>> kinds_of;  // by key
  for (const GroupKind kind : all_group_kinds) {
    // Rank 0 has every kind of group that any rank has.
    const bool any = group_size(shape_, kind, 0) > 1 || nccl.alone;
    if (backend(kind) == Backend::nccl && any) kinds_of[backend_key(kind)].push_back(kind);
  }
  if (backend(GroupKind::pipeline) == Backend::nccl && shape_.of(Axis::pipeline) > 1) {
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      auto channel = std::make_unique<StageChannel>(std::move(channels_[i]));
      stage_channels_[i] = channel.get();
      channels_[i] = std::move(channel);
    }
  }
  for (const auto& [key, kinds] : kinds_of) {
    for (const GroupKind kind : kinds) {
      auto mpi = std::move(groups_[kind]);
      const std::string name(name_of(kind));
      const int color = members(shape_, kind, session_->rank()).front();
      groups_[kind] = splits && kinds.size() > 1
                          ? nccl_->make(std::move(mpi), name, key, {everyone, color})
                          : nccl_->make(std::move(mpi), name, key);
    }
  }
}

void Grid::connect_stages(std::vector<StageLink> links) {
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  // In one order on all stages: the first link that any of them waits for has both its ranks.
  for (const StageLink& link : links) {
    StageChannel* const channel = stage_channels_[static_cast<std::size_t>(link.direction)];
    const int own = coordinate(Axis::pipeline);
    const bool send = link.sender == own;
    const int peer = send ? link.receiver : link.sender;
    if (channel == nullptr || channel->has(peer, send)) continue;
    TRIREME_ASSERT(send != (link.receiver == own), "stage {} in a link from {} to {}", own,
                   link.sender, link.receiver);
    const int ranks[] = {link.sender, link.receiver};
    MPI_Group all = MPI_GROUP_NULL, two = MPI_GROUP_NULL;
    mpi_check(MPI_Comm_group(pipeline_->comm(), &all), "MPI_Comm_group");
    mpi_check(MPI_Group_incl(all, 2, ranks, &two), "MPI_Group_incl");
    MPI_Comm comm = MPI_COMM_NULL;
    mpi_check(MPI_Comm_create_group(pipeline_->comm(), two, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&two);
    MPI_Group_free(&all);
    auto mpi = make_mpi_communicator(std::make_shared<MpiHandle>(comm), ledger_, messages_);
    const std::string name =
        fmt::format("{} from stage {} to {}",
                    link.direction == Direction::activations ? "activations" : "gradients",
                    link.sender, link.receiver);
    channel->add(peer, send,
                 nccl_->make_pair(std::move(mpi), name, backend_key(GroupKind::pipeline), send));
  }
}

/// One window for all groups of all ranks of the node.
void Grid::use_shared(const GridOptions& options) {
  const auto areas_of = [this](int rank) { return shared_areas(shape_, rank, backends_); };
  if (areas_of(0).bytes == 0) return;  // rank 0 has every kind of group that any rank has
  std::string why;
  window_ = SharedWindow::make(session_->node(), areas_of(session_->rank()).bytes, ledger_, why,
                               options.shared_space);
  if (!world().all_agree(window_ != nullptr)) {
    window_.reset();
    for (const std::string& reason : world().all_gather_texts(why)) {
      if (why.empty()) why = reason;
    }
    BackendFacts facts = backend_facts(options);
    facts.no_space = why;
    backends_ = choose_backends(options.comm, shape_, facts);
    warnings_.push_back(why + ": ranks of a node send messages instead");
    return;
  }
  const std::vector<int>& nodes = session_->nodes();
  const auto place_in_node = [&](int rank) {
    return static_cast<int>(
        std::count(nodes.begin(), nodes.begin() + rank, nodes[static_cast<std::size_t>(rank)]));
  };
  for (const GroupKind kind : all_group_kinds) {
    if (backend(kind) != Backend::shared || groups_[kind]->size() == 1) continue;
    std::vector<std::byte*> areas;
    for (const int rank : members(shape_, kind, session_->rank())) {
      areas.push_back(window_->segment(place_in_node(rank)) + areas_of(rank).begin[kind]);
    }
    groups_[kind] = make_shared_communicator(std::move(groups_[kind]), areas);
  }
}

void Grid::abandon(const std::exception_ptr& why) noexcept {
  if (nccl_) nccl_->abandon(why);
}

std::vector<std::string> Grid::warnings() const {
  std::vector<std::string> all = topology_warnings(shape_, session_->nodes());
  all.insert(all.end(), warnings_.begin(), warnings_.end());
  if (nccl_ && !nccl_->refusal().empty()) all.push_back(nccl_->refusal());
  return all;
}

std::vector<std::pair<std::string, TrafficByKind>> Grid::traffic() const {
  std::vector<std::pair<std::string, TrafficByKind>> result;
  for (const GroupKind kind : all_group_kinds) {
    result.emplace_back(name_of(kind), groups_[kind]->traffic());
  }
  for (const Direction direction : {Direction::activations, Direction::gradients}) {
    result.emplace_back(direction == Direction::activations ? "activations" : "gradients",
                        channels_[static_cast<std::size_t>(direction)]->traffic());
  }
  return result;
}

void Grid::reset_traffic() {
  for (const auto& group : groups_.values) group->reset_traffic();
  for (const auto& channel : channels_) channel->reset_traffic();
}

std::size_t grid_bytes(const GridShape& shape, int rank, const Backends& backends) {
  std::size_t bytes = shared_areas(shape, rank, backends).bytes;
  for (const GroupKind kind : all_group_kinds) {
    const int size = group_size(shape, kind, rank);
    // The pipeline's group and its two channels.
    bytes += scratch_bytes(size, 0) * (kind == GroupKind::pipeline ? 3 : 1);
  }
  return bytes;
}

}  // namespace trireme::comm
