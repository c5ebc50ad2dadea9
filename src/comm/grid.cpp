#include "trireme/comm/grid.hpp"

#include <algorithm>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/topology.hpp"

#include "operations.hpp"

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
  make_groups();
  backends_ = choose_backends(options.comm, shape_, shard_, backend_facts(options));
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

void Grid::make_groups() {
  for (const GroupKind kind : all_group_kinds) groups_[kind] = make_self_communicator();
  for (auto& channel : channels_) channel = make_self_communicator();
  for (const std::vector<GroupKind>& kinds : shared_divisions(shape_, shard_)) {
    const auto handle = split(session_, members(shape_, kinds.front(), shard_, session_.rank()));
    if (handle == nullptr) continue;
    for (const GroupKind kind : kinds) {
      groups_[kind] = make_mpi_communicator(handle, ledger_, messages_);
      if (kind != GroupKind::pipeline) continue;
      for (auto& channel : channels_) channel = make_mpi_communicator(handle, ledger_, messages_);
    }
  }
}

void Grid::abandon(const std::exception_ptr& why) noexcept {
  if (nccl_) nccl_->abandon(why);
}

std::vector<std::string> Grid::warnings() const {
  std::vector<std::string> all = topology_warnings(shape_, session_.nodes());
  all.insert(all.end(), warnings_.begin(), warnings_.end());
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

}  // namespace trireme::comm
