#include "trireme/comm/grid.hpp"

#include <numeric>

#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, axis_count> names = {"tensor", "context", "data",
                                                              "pipeline"};
  return names.at(static_cast<std::size_t>(axis));
}

int GridShape::size() const {
  return std::accumulate(degree.begin(), degree.end(), 1, std::multiplies<>());
}

std::array<int, axis_count> GridShape::coordinates(int rank) const {
  TRIREME_ASSERT(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
  std::array<int, axis_count> result{};
  for (int axis = 0; axis < axis_count; ++axis) {
    result[axis] = rank % degree[axis];
    rank /= degree[axis];
  }
  return result;
}

int GridShape::rank(const std::array<int, axis_count>& coordinates) const {
  int result = 0;
  for (int axis = axis_count - 1; axis >= 0; --axis) {
    TRIREME_ASSERT(coordinates[axis] >= 0 && coordinates[axis] < degree[axis],
                   "coordinate {} of {} on axis {}", coordinates[axis], degree[axis], axis);
    result = result * degree[axis] + coordinates[axis];
  }
  return result;
}

std::string GridShape::to_string() const {
  std::string text;
  for (const Axis axis : {Axis::pipeline, Axis::data, Axis::context, Axis::tensor}) {
    if (!text.empty()) text += " × ";
    text += fmt::format("{} {}", name_of(axis), degree[static_cast<int>(axis)]);
  }
  return text;
}

GridShape make_grid_shape(int world, int data) {
  TRIREME_ASSERT(world >= 1, "a world of {} ranks", world);
  if (data != 0 && data != world) {
    throw ConfigError(
        "parallel.data", std::to_string(data),
        fmt::format("must be the number of ranks, {}, as the other axes have degree 1", world),
        fmt::format("use {}, or 0 for all ranks{}", world,
                    data > 1 ? fmt::format(", or start {} ranks", data) : std::string()));
  }
  GridShape shape;
  shape.degree[static_cast<int>(Axis::data)] = world;
  return shape;
}

Grid::Grid(const Session& session, const GridShape& shape, device::MemoryLedger& ledger)
    : shape_(shape), coordinates_(shape.coordinates(session.rank())) {
  TRIREME_ASSERT(shape.size() == session.size(), "{} over {} ranks", shape.to_string(),
                 session.size());
  for (int axis = 0; axis < axis_count; ++axis) {
    // A group's colour is the world rank of its first member.
    std::array<int, axis_count> first = coordinates_;
    first[axis] = 0;
    MPI_Comm split = MPI_COMM_NULL;
    mpi_check(MPI_Comm_split(session.world(), shape_.rank(first), coordinates_[axis], &split),
              "MPI_Comm_split");
    groups_[axis] = make_mpi_communicator(split, ledger);
    mpi_check(MPI_Comm_free(&split), "MPI_Comm_free");
  }
  world_ = make_mpi_communicator(session.world(), ledger);

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

std::string Grid::to_string() const { return where_; }

}  // namespace trireme::comm
