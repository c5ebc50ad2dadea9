#include "trireme/data_parallel/server_shards.hpp"

#include <algorithm>
#include <array>

#include "trireme/core/half.hpp"
#include "trireme/device/device.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::data_parallel {

namespace {

/// out[i] = Σ over contributions, which are bf16, in fp32 and in the order of reduce_tree.
void add_bf16(const std::vector<const std::byte*>& contributions, float* out,
              std::int64_t elements) {
  constexpr std::int64_t most = 1024;
  std::vector<std::array<float, most>> wide(contributions.size());
  std::vector<const std::byte*> parts;
  for (const auto& part : wide) parts.push_back(reinterpret_cast<const std::byte*>(part.data()));
  for (std::int64_t begin = 0; begin < elements; begin += most) {
    const std::int64_t count = std::min(most, elements - begin);
    for (std::size_t c = 0; c < contributions.size(); ++c) {
      const auto* narrow = reinterpret_cast<const std::uint16_t*>(contributions[c]) + begin;
      std::transform(narrow, narrow + count, wide[c].begin(), bf16_to_float);
    }
    device::reduce_tree(DType::f32, device::Reduction::sum, parts,
                        reinterpret_cast<std::byte*>(out + begin), count);
  }
}

}  // namespace

std::vector<ServerPart> server_parts(const params::Layout& layout, int servers) {
  const state::ShardMap map(layout, servers, 0);
  std::vector<ServerPart> parts;
  for (int group = 0; group < map.groups(); ++group) {
    const std::int64_t first = layout.groups()[static_cast<std::size_t>(group)].elements.begin;
    for (int s = 0; s < servers; ++s) {
      const std::int64_t begin = first + map.bounds(group)[static_cast<std::size_t>(s)];
      const std::int64_t count = map.counts(group)[static_cast<std::size_t>(s)];
      if (count > 0) parts.push_back({s, group, {begin, begin + count}});
    }
  }
  return parts;
}

Tensor values_of(const state::ModelState& worker, const ServerPart& part) {
  const std::int64_t first =
      worker.layout().groups()[static_cast<std::size_t>(part.group)].elements.begin;
  return worker.group_values(part.group)
      .slice(0, part.elements.begin - first, part.elements.end - first);
}

state::StateOptions ServerShards::state_options(const parallel::Stage& worker) {
  state::StateOptions options = worker.state_options();
  options.zero = 3;
  options.sets = 1;
  options.served = false;
  options.serves = true;
  return options;
}

std::int64_t ServerShards::slot_bytes(const state::ShardMap& shards, const ServerPlace& place) {
  const int apart = place.gradients == DType::f32 ? place.workers - 1 : place.workers;
  return apart * shards.elements() * static_cast<std::int64_t>(size_of(place.gradients));
}

ServerShards::ServerShards(const parallel::Stage& worker, const ServerPlace& place,
                           const optim::OptimConfig& optim, int threads,
                           device::MemoryLedger& ledger)
    : place_(place),
      threads_(threads),
      ops_(ops::make_cpu_ops(threads, &ledger, worker.options().reproducible)),
      state_(worker.layout(), state::ShardMap(worker.layout(), place.servers, place.index),
             state_options(worker), ledger),
      optimizer_(optim, state_.shards().elements(), ledger),
      norm_(state_, state_.shards(), true, ledger),
      ranges_(state::update_ranges(state_)),
      slot_buffer_(ledger, device::Use::communication,
                   static_cast<std::size_t>(slot_bytes(state_.shards(), place))),
      came_(state_.layout().groups().size(),
            std::vector<char>(static_cast<std::size_t>(place.workers), 0)) {
  const int apart = sums_in_place() ? place.workers - 1 : place.workers;
  slots_ = slot_buffer_.view(place.gradients, {apart, state_.shards().elements()});
  end_step();
}

void ServerShards::check_worker(int rank) const {
  if (rank < place_.workers) return;
  throw Error("rank {} is no worker: the first {} are", rank, place_.workers);
}

void ServerShards::check_group(std::int64_t group) const {
  const bool held = group >= 0 && group < groups() && holds(static_cast<int>(group));
  if (!held) throw Error("group {} is not this server's", group);
}

Tensor ServerShards::slot_for(int rank, std::int64_t group, std::size_t bytes) const {
  check_worker(rank);
  check_group(group);
  const Tensor own = slot(rank, static_cast<int>(group));
  if (bytes == own.bytes()) return own;
  throw Error("{} bytes of gradients for group {}, of which this server has {}", bytes, group,
              own.bytes());
}

Tensor ServerShards::values_for(int rank, std::int64_t group, std::size_t bytes) const {
  check_worker(rank);
  check_group(group);
  const Tensor own = values(static_cast<int>(group));
  if (bytes == own.bytes()) return own;
  throw Error("a buffer of {} bytes for group {}, of which this server has {}", bytes, group,
              own.bytes());
}

std::int64_t ServerShards::held() const {
  std::int64_t elements = 0;
  for (int g = 0; g < groups(); ++g) elements += shards().own(g).size();
  return elements;
}

void ServerShards::initialize(std::uint64_t seed) {
  params::initialize(state_.layout(), seed, shards().own_ranges(), state_.parameters());
  refresh();
}

void ServerShards::refresh() {
  if (!state_.has_masters()) return;
  for (int g = 0; g < groups(); ++g) ops_->copy(state_.own_values(g), state_.own_parameters(g));
}

Tensor ServerShards::slot(int worker, int group) const {
  // The sum is where the first worker's gradient was received.
  if (sums_in_place() && worker == 0) return state_.own_gradient(group);
  const int row = sums_in_place() ? worker - 1 : worker;
  const std::int64_t first = shards().offset(group);
  return slots_.slice(0, row, row + 1)
      .reshape({slots_.extent(1)})
      .slice(0, first, first + shards().own(group).size());
}

bool ServerShards::arrived(int worker, int group) {
  std::vector<char>& came = came_[static_cast<std::size_t>(group)];
  char& own = came[static_cast<std::size_t>(worker)];
  if (own != 0) throw Error("a second gradient of group {} in one step", group);
  own = 1;
  return std::all_of(came.begin(), came.end(), [](char each) { return each != 0; });
}

bool ServerShards::add(int group) {
  std::vector<const std::byte*> contributions;
  for (int worker = 0; worker < place_.workers; ++worker) {
    contributions.push_back(static_cast<const std::byte*>(slot(worker, group).data()));
  }
  const Tensor sum = state_.own_gradient(group);
  const std::int64_t elements = sum.elements();
  const auto width = static_cast<std::int64_t>(size_of(place_.gradients));
  // Elements are independent: threads share out their sums.
  constexpr std::int64_t chunk = 16384;
#pragma omp parallel for num_threads(threads_) schedule(static) if (elements >= 2 * chunk)
  for (std::int64_t begin = 0; begin < elements; begin += chunk) {
    const std::int64_t count = std::min(chunk, elements - begin);
    std::vector<const std::byte*> parts;
    for (const std::byte* from : contributions) parts.push_back(from + begin * width);
    if (sums_in_place()) {
      device::reduce_tree(DType::f32, device::Reduction::sum, parts,
                          reinterpret_cast<std::byte*>(sum.as<float>() + begin), count);
    } else {
      add_bf16(parts, sum.as<float>() + begin, count);
    }
  }
  return --missing_ == 0;
}

void ServerShards::require_all_of(int worker) const {
  for (int g = 0; g < groups(); ++g) {
    if (!holds(g) || came_[static_cast<std::size_t>(g)][static_cast<std::size_t>(worker)] != 0) {
      continue;
    }
    throw Error("no gradient of group {} has come from worker {} in this step", g, worker);
  }
}

double ServerShards::norm(comm::Communicator& servers) {
  norm_.start(*ops_);
  return norm_.finish(servers);
}

void ServerShards::update(double learning_rate, std::int64_t step, double gradient_scale) {
  optimizer_.update(*ops_, ranges_, learning_rate, step, gradient_scale);
}

void ServerShards::update_from(int worker, double learning_rate, std::int64_t step,
                               double gradient_scale) {
  require_all_of(worker);
  std::vector<optim::UpdateRange> ranges = ranges_;
  if (!sums_in_place()) {
    for (int g = 0; g < groups(); ++g) {
      if (holds(g)) ops_->copy(state_.own_gradient(g), slot(worker, g));
    }
  } else if (worker > 0) {
    const Tensor own = slots_.slice(0, worker - 1, worker).reshape({slots_.extent(1)});
    for (optim::UpdateRange& range : ranges) {
      range.gradients = own.slice(0, range.offset, range.offset + range.parameters.elements());
    }
  }
  optimizer_.update(*ops_, ranges, learning_rate, step, gradient_scale);
  drop(worker);
}

void ServerShards::drop(int worker) {
  for (std::vector<char>& came : came_) came[static_cast<std::size_t>(worker)] = 0;
}

void ServerShards::end_step() {
  missing_ = 0;
  for (int g = 0; g < groups(); ++g) {
    std::vector<char>& came = came_[static_cast<std::size_t>(g)];
    std::fill(came.begin(), came.end(), 0);
    if (holds(g)) ++missing_;
  }
}

}  // namespace trireme::data_parallel
