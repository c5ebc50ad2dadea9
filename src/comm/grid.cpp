#include "trireme/comm/grid.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/topology.hpp"

#include "mpi_handle.hpp"

namespace trireme::comm {
namespace {

constexpr std::array<std::string_view, 2> channel_names = {"activations", "gradients"};

/// Collective over the world: the group of `own`, ascending world ranks; null where it is this rank
/// alone.
std::shared_ptr<MpiHandle> split(const Session& session, const std::vector<int>& own) {
  MPI_Comm comm = MPI_COMM_NULL;
  const int color = own.size() == 1 ? MPI_UNDEFINED : own.front();
  mpi_check(MPI_Comm_split(session.world(), color, session.rank(), &comm), "MPI_Comm_split");
  return comm == MPI_COMM_NULL ? nullptr : std::make_shared<MpiHandle>(comm);
}

std::unique_ptr<Communicator> on(const std::shared_ptr<MpiHandle>& handle,
                                 device::MemoryLedger& ledger, const DeviceMessages& messages) {
  return handle == nullptr ? make_self_communicator()
                           : make_mpi_communicator(handle, ledger, messages);
}

/// Every rank's text, in rank order.
std::vector<std::string> gather_texts(Communicator& group, const std::string& own) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(own.data());
  std::vector<std::string> all;
  for (const auto& text : group.all_gather_bytes({bytes, own.size()})) {
    all.emplace_back(text.begin(), text.end());
  }
  return all;
}

/// How the device's memory gets to MPI. Ranks need not be alike in it.
DeviceMessages device_messages(device::Device& device, const GridOptions& options) {
  DeviceMessages messages{.direct = false, .address = options.address};
  if (device.is_host()) return messages;
  messages.direct = choose_direct(options.comm.staging, mpi_reads_cuda());
  if (messages.direct && !message_arrives(device, messages)) {
    throw Error(
        "comm.staging = {}: a message in the memory of {} did not arrive as it was sent; use "
        "comm.staging = yes",
        options.comm.staging, device.name());
  }
  return messages;
}

bool shares(const Backends& backends, int kind) {
  return backends.at(static_cast<std::size_t>(kind)) == Backend::shared;
}

/// Where the areas of `rank` in a window of shared memory begin, by kind, and where the last ends.
std::vector<std::size_t> shared_areas(const GridShape& shape, int shard, int rank,
                                      const Backends& backends) {
  std::vector<std::size_t> begins = {0};
  for (int kind = 0; kind < group_kinds; ++kind) {
    std::size_t bytes = 0;
    if (shares(backends, kind)) {
      const auto group = members(shape, static_cast<GroupKind>(kind), shard, rank);
      bytes = shared_area_bytes(static_cast<int>(group.size()));
    }
    begins.push_back(begins.back() + bytes);
  }
  return begins;
}

}  // namespace

Grid::Grid(const Session& session, const GridShape& shape, device::MemoryLedger& ledger, int shard,
           const GridOptions& options)
    : session_(session),
      shape_(shape),
      shard_(shard == 0 ? shape.of(Axis::data) : shard),
      coordinates_(shape.coordinates(session.rank())),
      ledger_(ledger),
      messages_(device_messages(ledger.device(), options)) {
  TRIREME_ASSERT(shape.size() == session.size(), "{} over {} ranks", shape.to_string(),
                 session.size());
  TRIREME_ASSERT(shard_ >= 1 && shape.of(Axis::data) % shard_ == 0, "shard groups of {} in {}",
                 shard_, shape.to_string());
  // Kinds that divide the world alike share a handle. They are told by the group of rank 0, which
  // has the smallest coordinate everywhere, so that all ranks come to the same conclusion.
  std::map<std::vector<int>, std::shared_ptr<MpiHandle>> handles;
  for (int index = 0; index < group_kinds; ++index) {
    const auto kind = static_cast<GroupKind>(index);
    const std::vector<int> zero = members(shape_, kind, shard_, 0);
    auto known = handles.find(zero);
    if (known == handles.end()) {
      const auto own = members(shape_, kind, shard_, session.rank());
      known = handles.emplace(zero, zero.size() == 1 ? nullptr : split(session, own)).first;
    }
    groups_[index] = on(known->second, ledger, messages_);
  }
  const auto pipeline = handles.at(members(shape_, GroupKind::pipeline, shard_, 0));
  for (auto& channel : channels_) channel = on(pipeline, ledger, messages_);
  choose_backends(options);
  use_nccl(options);
  use_shared(options);

  char host[MPI_MAX_PROCESSOR_NAME + 1] = {};
  int length = 0;
  mpi_check(MPI_Get_processor_name(host, &length), "MPI_Get_processor_name");
  where_ = fmt::format("rank {} of {}:", session.rank(), session.size());
  for (const Axis axis : {Axis::pipeline, Axis::data, Axis::context, Axis::tensor}) {
    where_ +=
        fmt::format(" {} {}{}", name_of(axis), coordinate(axis), axis == Axis::tensor ? "" : ",");
  }
  where_ += fmt::format(" on {}", std::string_view(host, static_cast<std::size_t>(length)));
}

void Grid::choose_backends(const GridOptions& options) {
  device::Device& device = ledger_.device();
  if (device.is_host()) {
    backends_ = choose_host_backends(options.comm, shape_, shard_, session_.nodes());
    return;
  }
  BackendFacts facts{.device = device.name(),
                     .is_host = false,
                     .nccl = options.nccl_api != nullptr || nccl_built_in()};
  std::array<std::string, group_kinds> crowded;
  if (facts.nccl) {
    const std::vector<std::string> devices = gather_texts(world(), device.identity());
    std::string own;  // a line for each kind
    for (int index = 0; index < group_kinds; ++index) {
      const auto group = members(shape_, static_cast<GroupKind>(index), shard_, session_.rank());
      own += (group.size() > 1 ? crowded_device(group, devices) : std::string()) + '\n';
    }
    // What holds for one group of a kind holds for all, and everyone says the same.
    for (const std::string& text : gather_texts(world(), own)) {
      std::istringstream lines(text);
      for (std::string& known : crowded) {
        std::string line;
        std::getline(lines, line);
        if (known.empty()) known = line;
      }
    }
  }
  for (std::size_t kind = 0; kind < crowded.size(); ++kind) {
    facts.crowded = crowded.at(kind);
    backends_.at(kind) = choose_backend(options.comm, static_cast<GroupKind>(kind), facts);
  }
}

/// Kind by kind in the same order everywhere, so that no two groups wait for each other.
void Grid::use_nccl(const GridOptions& options) {
  const auto uses = [this](GroupKind kind) { return backend(kind) == Backend::nccl; };
  if (std::find(backends_.begin(), backends_.end(), Backend::nccl) == backends_.end()) return;
  NcclOptions nccl = options.nccl;
  nccl.library_sums = !options.reproducible;
  nccl_ = std::make_unique<NcclRuntime>(
      options.nccl_api != nullptr ? *options.nccl_api : nccl_library(), ledger_, nccl);
  for (int index = 0; index < group_kinds; ++index) {
    const auto kind = static_cast<GroupKind>(index);
    auto& group = groups_[index];
    if (!uses(kind)) continue;
    group = nccl_->make(std::move(group), std::string(name_of(kind)), backend_key(kind));
  }
}

/// One window for all groups of all ranks of the node.
void Grid::use_shared(const GridOptions& options) {
  bool any = false;  // the same on all ranks: rank 0 has every kind of group that anyone has
  for (int kind = 0; kind < group_kinds; ++kind) {
    any = any || (shares(backends_, kind) &&
                  members(shape_, static_cast<GroupKind>(kind), shard_, 0).size() > 1);
  }
  if (!any) return;
  const auto areas_of = [this](int rank) { return shared_areas(shape_, shard_, rank, backends_); };
  std::string why;
  window_ = SharedWindow::make(session_.node(), areas_of(session_.rank()).back(), ledger_, why,
                               options.shared_room);
  if (!world().all_agree(window_ != nullptr)) {
    window_.reset();
    for (const std::string& reason : gather_texts(world(), why)) {
      if (why.empty()) why = reason;
    }
    backends_ = choose_host_backends(options.comm, shape_, shard_, session_.nodes(), why);
    warnings_.push_back(why + ": ranks of a node send messages instead");
    return;
  }
  const std::vector<int>& nodes = session_.nodes();
  const auto place_in_node = [&](int rank) {
    return static_cast<int>(
        std::count(nodes.begin(), nodes.begin() + rank, nodes[static_cast<std::size_t>(rank)]));
  };
  for (int index = 0; index < group_kinds; ++index) {
    if (!shares(backends_, index) || groups_[index]->size() == 1) continue;
    std::vector<std::byte*> areas;
    for (const int rank : members(shape_, static_cast<GroupKind>(index), shard_, session_.rank())) {
      areas.push_back(window_->segment(place_in_node(rank)) +
                      areas_of(rank)[static_cast<std::size_t>(index)]);
    }
    groups_[index] = make_shared_communicator(std::move(groups_[index]), areas);
  }
}

void Grid::abandon(const std::exception_ptr& why) noexcept {
  if (nccl_) nccl_->abandon(why);
}

std::unique_ptr<Communicator> Grid::make_group(Axes axes) {
  return on(split(session_, members(shape_, axes, session_.rank())), ledger_, messages_);
}

std::vector<std::string> Grid::warnings() const {
  std::vector<std::string> all = topology_warnings(shape_, session_.nodes());
  all.insert(all.end(), warnings_.begin(), warnings_.end());
  return all;
}

std::vector<std::pair<std::string, TrafficByKind>> Grid::traffic() const {
  std::vector<std::pair<std::string, TrafficByKind>> result;
  for (int kind = 0; kind < group_kinds; ++kind) {
    result.emplace_back(name_of(static_cast<GroupKind>(kind)), groups_[kind]->traffic());
  }
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    result.emplace_back(channel_names.at(i), channels_[i]->traffic());
  }
  return result;
}

void Grid::reset_traffic() {
  for (const auto& group : groups_) group->reset_traffic();
  for (const auto& channel : channels_) channel->reset_traffic();
}

std::size_t grid_bytes(const GridShape& shape, int shard, int rank, const Backends& backends) {
  std::size_t bytes = shared_areas(shape, shard, rank, backends).back();
  for (int index = 0; index < group_kinds; ++index) {
    const auto kind = static_cast<GroupKind>(index);
    const auto size = static_cast<int>(members(shape, kind, shard, rank).size());
    // The pipeline's group and its two channels.
    bytes += scratch_bytes(size, 0) * (kind == GroupKind::pipeline ? 3 : 1);
  }
  return bytes;
}

}  // namespace trireme::comm
