#include "trireme/comm/communicator.hpp"

#include <algorithm>
#include <numeric>

namespace trireme::comm {
namespace {

template <class T>
T reduce_value(Communicator& group, T value, Reduction reduction) {
  device::Stream stream;
  group.all_reduce(Tensor(&value, {1}), reduction, stream).wait();
  return value;
}

}  // namespace

std::span<const std::int64_t> Communicator::even_counts(std::int64_t count) {
  counts_.assign(static_cast<std::size_t>(size()), count);
  return counts_;
}

device::Event Communicator::reduce_scatter(const Tensor& output, const Tensor& input,
                                           Reduction reduction, device::Stream& stream) {
  return reduce_scatter_v(output, input, even_counts(output.elements()), reduction, stream);
}

device::Event Communicator::all_gather(const Tensor& output, const Tensor& input,
                                       device::Stream& stream) {
  return all_gather_v(output, input, even_counts(input.elements()), stream);
}

void Communicator::barrier() { all_reduce(std::int64_t{0}, Reduction::max); }

double Communicator::all_reduce(double value, Reduction reduction) {
  return reduce_value(agreement(), value, reduction);
}

std::int64_t Communicator::all_reduce(std::int64_t value, Reduction reduction) {
  return reduce_value(agreement(), value, reduction);
}

void Communicator::broadcast_bytes(std::vector<std::uint8_t>& bytes, int root) {
  device::Stream stream;
  auto count = static_cast<std::int64_t>(bytes.size());
  agreement().broadcast(Tensor(&count, {1}), root, stream).wait();
  bytes.resize(static_cast<std::size_t>(count));
  agreement().broadcast(Tensor(bytes.data(), {count}), root, stream).wait();
}

std::vector<std::vector<std::uint8_t>> Communicator::all_gather_bytes(
    std::span<const std::uint8_t> bytes) {
  device::Stream stream;
  std::vector<std::int64_t> counts(size());
  counts[rank()] = static_cast<std::int64_t>(bytes.size());
  const Tensor all_counts(counts.data(), {size()});
  // With counts of its own: the conveniences may be called beside the streams' operations.
  const std::vector<std::int64_t> ones(size(), 1);
  agreement()
      .all_gather_v(all_counts, all_counts.slice(0, rank(), rank() + 1), ones, stream)
      .wait();

  std::vector<std::int64_t> begins(size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  std::vector<std::uint8_t> flat(static_cast<std::size_t>(begins.back()));
  std::copy(bytes.begin(), bytes.end(), flat.begin() + begins[rank()]);
  const Tensor all(flat.data(), {begins.back()});
  agreement()
      .all_gather_v(all, all.slice(0, begins[rank()], begins[rank() + 1]), counts, stream)
      .wait();

  std::vector<std::vector<std::uint8_t>> result;
  result.reserve(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    result.emplace_back(flat.begin() + begins[r], flat.begin() + begins[r + 1]);
  }
  return result;
}

}  // namespace trireme::comm
