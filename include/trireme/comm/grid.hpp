// The process grid: the coordinates of a rank and the groups that it is in.
#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/backend.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/config.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/shape.hpp"
#include "trireme/comm/shared.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {

/// What travels between neighboring pipeline stages.
enum class Direction : std::uint8_t { activations, gradients };

/// Messages of one kind from one stage to another, both of one pipeline group.
struct StageLink {
  Direction direction = Direction::activations;
  int sender = 0, receiver = 0;                        // stages
  auto operator<=>(const StageLink&) const = default;  // NOLINT(modernize-use-nullptr)
};

class MpiHandle;     // src/comm/operations.hpp
class StageChannel;  // src/comm/stage_channel.hpp

/// What carries a grid's messages.
struct GridOptions {
  CommConfig comm{};
  /// Sums are never NCCL's: numerics.reproducible.
  bool reproducible = true;
  NcclOptions nccl{};
  /// For tests: replace the built-in NCCL, what the MPI library reports, addresses in device
  /// memory, and the free shared memory.
  NcclApi* nccl_api = nullptr;
  std::function<std::optional<bool>()> mpi_reads_device = mpi_reads_cuda;
  MessageAddress address{};
  std::optional<std::size_t> shared_space{};  // see SharedWindow::make
};

/// The groups of this rank, all made at the start by MPI_Comm_split, collectively. Groups of the
/// same ranks share one MPI communicator and differ in message tags, so each may be used with a
/// stream of its own. On GPUs a group that uses NCCL has an NCCL communicator of its own, split
/// from that of its key of the configuration (NcclRuntime::make), unless ranks share a GPU. On CPUs
/// groups inside a node use shared memory; without space for that they send messages, with a
/// warning, unless the configuration names shared memory. Where messages from GPU memory do not
/// arrive, they are staged, with a warning, unless the configuration says comm.staging = no.
class Grid {
 public:
  /// Throws ConfigError where a group cannot be what `options` ask for, on all ranks.
  Grid(const Session& session, const GridShape& shape, device::MemoryLedger& ledger,
       const GridOptions& options = {});
  /// A rank's place in a grid whose groups of several ranks `make` makes: without MPI, for plans.
  /// `direction`: of a pipeline channel; absent for a group.
  using MakeGroup = std::function<std::unique_ptr<Communicator>(
      GroupKind kind, std::optional<Direction> direction)>;
  Grid(const GridShape& shape, int rank, device::MemoryLedger& ledger, const MakeGroup& make);
  const GridShape& shape() const { return shape_; }
  int coordinate(Axis axis) const { return coordinates_[static_cast<int>(axis)]; }

  Communicator& group(GroupKind kind) { return *groups_[kind]; }
  /// Along one axis, ordered by its coordinate; of data: see GroupKind.
  Communicator& group(Axis axis) { return group(group_along(axis)); }
  Communicator& world() { return group(GroupKind::world); }
  /// One replica of the model: pipeline × context × tensor.
  Communicator& model_group() { return group(GroupKind::model); }
  /// The data group in two factors, for hybrid sharding: shard_size() consecutive ranks …
  Communicator& shard_group() { return group(GroupKind::shard); }
  /// … and the ranks of equal place in the shard groups.
  Communicator& replica_group() { return group(GroupKind::replica); }
  /// First and last pipeline stage at equal other coordinates, for tied embeddings; this rank alone
  /// where there is one stage, and in the stages between.
  Communicator& embedding_group() { return group(GroupKind::embedding); }
  /// The ranks of group(Axis::pipeline), once for each direction. MPI's, unless connect_stages has
  /// been called with comm.pipeline = nccl.
  Communicator& pipeline_channel(Direction direction) {
    return *channels_[static_cast<std::size_t>(direction)];
  }

  /// Gives each of this rank's links an NCCL communicator of its own where comm.pipeline = nccl,
  /// and does nothing elsewhere: sends and receives are under way at once, and one communicator
  /// would do them one after another. Collective over the two stages of each link, while no message
  /// is under way. Not before the device's libraries are loaded and its work space has grown: both
  /// may wait for all work on the device, and a receive that is queued there ends only when its
  /// peer sends.
  void connect_stages(std::vector<StageLink> links);

  Backend backend(GroupKind kind) const { return backends_[kind]; }
  const Backends& backends() const { return backends_; }
  /// Ends what NCCL has under way. To be called where an exception is caught that will end the
  /// job's work, before streams and memory are freed, which would wait for the device. Only
  /// agreement may follow.
  void abandon(const std::exception_ptr& why) noexcept;

  /// What costs speed in this placement and its backends, one line each; the same on every rank,
  /// but for a refusal of NCCL to register memory. Not of a plan.
  std::vector<std::string> warnings() const;
  /// "rank 3 of 4: tensor 0, pipeline 0, data 3 on node01"; context after tensor if it is split.
  std::string to_string() const { return where_; }

  /// Stream traffic of every group and channel by name ("tensor", …, "activations", "gradients").
  std::vector<std::pair<std::string, TrafficByKind>> traffic() const;
  void reset_traffic();

 private:
  void choose_messages(const GridOptions& options);
  void make_groups();
  BackendFacts backend_facts(const GridOptions& options);
  void use_nccl(const GridOptions& options, bool devices_differ);
  void use_shared(const GridOptions& options);
  const Session* session_ = nullptr;  // null: a plan
  GridShape shape_;
  std::array<int, axis_count> coordinates_{};
  device::MemoryLedger& ledger_;
  DeviceMessages messages_;
  Backends backends_{};
  std::vector<std::string> warnings_;
  std::unique_ptr<NcclRuntime> nccl_;     // outlives the groups
  std::unique_ptr<SharedWindow> window_;  // likewise
  ByKind<std::unique_ptr<Communicator>> groups_;
  std::shared_ptr<MpiHandle> pipeline_;  // null: of this rank alone, or a plan
  std::array<std::unique_ptr<Communicator>, 2> channels_;
  std::array<StageChannel*, 2> stage_channels_{};  // the same; null: MPI's alone
  std::string where_;
};

/// What `work` returns; where it throws, the grid is abandoned before the exception continues.
template <class Work>
auto or_abandon(Grid& grid, const Work& work) {
  try {
    return work();
  } catch (...) {
    grid.abandon(std::current_exception());
    throw;
  }
}

/// Bytes that a Grid of this shape enters in the ledger of `rank` when it is made: the scratch of
/// all its groups' conveniences, and its part of a window where groups share memory. What
/// reductions add is scratch_bytes(size, largest) − scratch_bytes(size, 0) for each group used by
/// messages, and nothing for the others.
std::size_t grid_bytes(const GridShape& shape, int rank, const Backends& backends = {});

}  // namespace trireme::comm
