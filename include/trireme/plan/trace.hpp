// What one step of a rank asks of its device and of its groups, found by running the step itself:
// parallel::Replica on operations that compute nothing, groups that move nothing, and memory of
// which only addresses exist. No list of layers, formulas or axes is kept beside the program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/planned_communicator.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/work.hpp"

namespace trireme::plan {

/// A group or pipeline channel of a rank.
struct Channel {
  comm::GroupKind kind = comm::GroupKind::world;
  std::optional<comm::Direction> direction{};        // of a channel between stages
  auto operator<=>(const Channel&) const = default;  // NOLINT(modernize-use-nullptr)
};
std::string to_string(const Channel& channel);

/// An operation on a stream: of a channel, or of this rank's memory alone (`local`: its bytes).
struct StreamOperation {
  comm::PlannedOperation planned;
  Channel channel;
  std::int64_t local = 0;
  int stream = 0;
  bool blocking = false;  // on a stream of the host, which waits for it
  bool operator==(const StreamOperation&) const = default;
};

/// Calls in the order in which the host makes them.
struct Instruction {
  /// compute: `index` of works. start, wait: `index` of operations; computation that comes later
  /// follows a wait. wait_for_device: the host waits for all computation so far. section: all of
  /// section `index`.
  enum class Kind : std::uint8_t { compute, start, wait, wait_for_device, section };
  Kind kind = Kind::compute;
  int index = 0;
  bool operator==(const Instruction&) const = default;
};

/// The calls of one action of a unit, which other micro-batches and units like it make too. It
/// waits for all that it starts, and for nothing else.
struct Section {
  std::vector<StreamOperation> operations;
  std::vector<Instruction> instructions;  // without sections; start and wait: of these operations
};

struct Trace {
  std::vector<Work> works;  // that differ
  std::vector<StreamOperation> operations;
  std::vector<Instruction> instructions;
  std::vector<Section> sections;
  bool overlap = true;  // streams advance while the rank computes
  /// Bytes that the rank held at most, by use, without what backends and groups work in.
  std::map<device::Use, std::int64_t> memory;
  /// Bytes sent to others, by the group's name as in Grid::traffic.
  std::map<std::string, std::int64_t> sent() const;
};

/// One training step of `rank` with its update, on `batches`: all micro-batches of a replica, with
/// or without documents all of them. `options` as in a run on that device. Methods other than
/// all-reduce, offloaded optimizers and parameter servers throw Error. `sections` = false: records
/// every call.
Trace trace_step(const model::Transformer& model, parallel::ReplicaOptions options,
                 const comm::GridShape& shape, int rank, bool host,
                 const std::vector<parallel::HostMicrobatch>& batches, bool sections = true);
/// On blank batches; `documents`: with document numbers.
Trace trace_step(const model::Transformer& model, const parallel::ReplicaOptions& options,
                 const comm::GridShape& shape, int rank, bool host, bool documents = false);

}  // namespace trireme::plan
