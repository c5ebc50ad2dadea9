// Collectives on tensors of a simulated device, compared bit by bit with the same ones on the host.
#pragma once

#include <cmath>
#include <functional>
#include <numeric>
#include <thread>

#include "trireme/core/random.hpp"

#include "groups.hpp"
#include "support/simulated_device.hpp"

namespace trireme::comm::testing {

using testing_support::SimulatedDevice;

/// A device, its ledger, and a device group for each host group of the same ranks.
struct DeviceGroups {
  struct Group {
    std::string name;
    std::unique_ptr<Communicator> tested;
    Communicator* host = nullptr;
    Communicator* operator->() const { return tested.get(); }
  };
  using Make = std::function<std::unique_ptr<Communicator>(const TestGroup&)>;

  explicit DeviceGroups(unsigned seed) : device(seed), ledger(device) {}
  void make(const Make& each) {
    for (const TestGroup& group : hosts.all()) {
      groups.push_back({group.name, each(group), group.communicator.get()});
    }
  }
  Groups hosts;
  SimulatedDevice device;
  device::MemoryLedger ledger;
  std::vector<Group> groups;  // as hosts
};

/// Contiguous elements on a device, with one guard element at the end.
class OnDevice {
 public:
  OnDevice(DeviceGroups& groups, DType type, std::int64_t count)
      : device_(groups.device),
        count_(count),
        buffer_(groups.ledger, device::Use::workspace,
                static_cast<std::size_t>(count + 1) * size_of(type)),
        all_(buffer_.view(type, {count + 1})) {}
  Tensor tensor() const { return tensor(0, count_); }
  Tensor tensor(std::int64_t begin, std::int64_t count) const {
    return all_.slice(0, begin, begin + count);
  }
  /// Queues the copy behind computation.
  void put(Elements& values) { device_.copy(all_.data(), values.whole().data(), all_.bytes()); }
  Elements get() const {
    Elements values(all_.type(), count_);
    device::read(device_, values.whole().data(), all_);
    return values;
  }

 private:
  SimulatedDevice& device_;
  std::int64_t count_;
  device::Buffer buffer_;
  Tensor all_;
};

/// Initial values of rank `rank`: numbers of many magnitudes, so that any other order of addition
/// rounds differently; or whole numbers whose sums are exact.
inline Elements begin_with(DType type, std::int64_t count, int rank, bool whole) {
  Elements values(type, count);
  const RandomKey key{3, Purpose::dropout, static_cast<std::uint32_t>(rank)};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const int exponent = static_cast<int>(random_bits(key, index) % 9) - 4;
    const double wild = 100 * std::ldexp(normal(key, index), exponent);
    values.set(i, whole || !has_sign(type) ? pattern(rank, i, has_sign(type)) : wild);
  }
  return values;
}

/// Properties of the tested group.
struct Trial {
  DeviceGroups& all;
  const DeviceGroups::Group& group;
  bool whole = false;  // start with whole numbers

  int rank() const { return group.tested->rank(); }
  int size() const { return group.tested->size(); }
  Elements begin(DType type, std::int64_t count) const {
    return begin_with(type, count, rank(), whole);
  }
  /// Runs `run(communicator, tensors, stream)` on the tested group's device tensors and on the
  /// host's. Each starts with its own values; results must match bit for bit.
  template <class Run>
  void expect_same(DType type, const std::vector<std::int64_t>& counts, const Run& run) const {
    std::vector<Elements> values;
    std::vector<OnDevice> there;
    std::vector<Tensor> here_tensors, there_tensors;
    for (const std::int64_t count : counts) {
      values.push_back(begin(type, count));
      there.emplace_back(all, type, count);
      there.back().put(values.back());
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      here_tensors.push_back(values[i].tensor());
      there_tensors.push_back(there[i].tensor());
    }
    device::Stream stream(all.device), host_stream;
    run(*group.tested, there_tensors, stream);
    run(*group.host, here_tensors, host_stream);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const Elements result = there[i].get();
      EXPECT_TRUE(result.same_bytes(values[i]))
          << group.name << " " << name_of(type) << ", tensor " << i << " of " << counts[i];
    }
  }
};

/// Small and large for fp32; large only for other types, to save time.
inline std::vector<std::int64_t> counts_for(DType type, std::int64_t large) {
  if (type == DType::f32) return {0, 1, 1001, large};
  return {large};
}
using Tensors = std::vector<Tensor>;

inline void try_all_reduce(const Trial& trial, std::int64_t large) {
  for (const DType type : reducible_types) {
    for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
      for (const std::int64_t count : counts_for(type, large)) {
        if (count == large && reduction == Reduction::max) continue;  // saves time
        trial.expect_same(type, {count},
                          [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                            group.all_reduce(t[0], reduction, stream).wait();
                          });
      }
    }
  }
}

inline void try_reduce_scatter(const Trial& trial, std::int64_t large) {
  const int n = trial.size();
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::int64_t count : counts_for(type, large)) {
      for (const bool in_place : {false, true}) {
        for (const bool uneven : {false, true}) {
          std::vector<std::int64_t> counts(static_cast<std::size_t>(n), count);
          if (uneven) counts.back() = count / 3;
          if (uneven && n > 2) counts[1] = 0;
          const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
          const std::int64_t own = counts[static_cast<std::size_t>(trial.rank())];
          const std::int64_t begin =
              std::accumulate(counts.begin(), counts.begin() + trial.rank(), std::int64_t{0});
          trial.expect_same(
              type, {all, own}, [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                const Tensor output = in_place ? t[0].slice(0, begin, begin + own) : t[1];
                if (uneven) {
                  group.reduce_scatter_v(output, t[0], counts, Reduction::sum, stream).wait();
                } else {
                  group.reduce_scatter(output, t[0], Reduction::sum, stream).wait();
                }
              });
        }
      }
    }
  }
}

inline void try_moves(const Trial& trial, std::int64_t large) {
  const int n = trial.size();
  const int rank = trial.rank();
  for (const DType type : {DType::f32, DType::bf16, DType::u8}) {
    for (const std::int64_t count : counts_for(type, large)) {
      for (const bool in_place : {false, true}) {
        trial.expect_same(type, {count * n, count},
                          [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                            const Tensor own =
                                in_place ? t[0].slice(0, rank * count, (rank + 1) * count) : t[1];
                            group.all_gather(t[0], own, stream).wait();
                          });
        std::vector<std::int64_t> counts(static_cast<std::size_t>(n));
        for (int r = 0; r < n; ++r) counts[r] = r == 1 ? 0 : count + r;
        const std::int64_t begin =
            std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
        trial.expect_same(
            type, {std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), counts[rank]},
            [&](Communicator& group, const Tensors& t, device::Stream& stream) {
              const Tensor own = in_place ? t[0].slice(0, begin, begin + counts[rank]) : t[1];
              group.all_gather_v(t[0], own, counts, stream).wait();
            });
      }
      trial.expect_same(type, {count},
                        [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                          group.broadcast(t[0], n - 1, stream).wait();
                        });
      trial.expect_same(type, {count * n, count * n},
                        [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                          group.all_to_all(t[0], t[1], stream).wait();
                        });
      // To every rank, itself included: an empty message and two that must arrive in order.
      trial.expect_same(type, {count * n, count * n, 2 * n, 2 * n},
                        [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                          std::vector<Communicator::Message> messages;
                          for (int peer = 0; peer < n; ++peer) {
                            const auto block = [&](const Tensor& tensor, std::int64_t c) {
                              return tensor.slice(0, peer * c, (peer + 1) * c);
                            };
                            messages.push_back({block(t[0], count), peer, true});
                            messages.push_back({block(t[1], count), peer, false});
                            messages.push_back({block(t[2], 2), peer, true});
                            messages.push_back({block(t[3], 2), peer, false});
                          }
                          group.exchange(messages, stream).wait();
                        });
    }
  }
}

/// Several operations that each read the previous result; only the last is waited for.
inline void try_chain(const Trial& trial) {
  const int n = trial.size();
  const std::int64_t count = 5'001;
  trial.expect_same(DType::f32, {count, count * n, count, count * n},
                    [&](Communicator& group, const Tensors& t, device::Stream& stream) {
                      group.all_reduce(t[0], Reduction::sum, stream);
                      group.all_reduce(t[0], Reduction::sum, stream);
                      group.all_gather(t[1], t[0], stream);
                      group.broadcast(t[1], n - 1, stream);
                      group.all_to_all(t[3], t[1], stream);
                      group.exchange({{t[3].slice(0, 0, 100), (group.rank() + 1) % n, true},
                                      {t[1].slice(0, 7, 107), (group.rank() + n - 1) % n, false}},
                                     stream);
                      group.reduce_scatter(t[2], t[1], Reduction::sum, stream).wait();
                    });
}

/// Between slow computation before it and computation that uses its result.
inline void try_between_computation(const Trial& trial) {
  SimulatedDevice& device = trial.all.device;
  for (int round = 0; round < 5; ++round) {
    OnDevice data(trial.all, DType::f32, 1000), copy(trial.all, DType::f32, 1000);
    Elements values = trial.begin(DType::f32, 1000);
    device::Stream stream(device);
    int patience = 30;
    device.repeat(device.native(), [patience]() mutable { return --patience == 0; });
    data.put(values);
    trial.group->all_reduce(data.tensor(), Reduction::sum, stream).wait();
    device.copy(copy.tensor().data(), data.tensor().data(), 4000);
    Elements junk(DType::f32, 1000);
    data.put(junk);  // no longer needed
    device::Stream host;
    trial.group.host->all_reduce(values.tensor(), Reduction::sum, host).wait();
    EXPECT_EQ(first_wrong(copy.get(), [&](std::int64_t i) { return values.get(i); }), -1)
        << trial.group.name;
  }
}

/// Destroys the stream with work pending; the work is still done.
inline void try_end_with_work_pending(const Trial& trial) {
  OnDevice data(trial.all, DType::i64, 30'000);
  Elements values = trial.begin(DType::i64, 30'000);
  data.put(values);
  {
    device::Stream stream(trial.all.device);
    for (int i = 0; i < 3; ++i) trial.group->all_reduce(data.tensor(), Reduction::sum, stream);
  }
  device::Stream host;
  for (int i = 0; i < 3; ++i) {
    trial.group.host->all_reduce(values.tensor(), Reduction::sum, host).wait();
  }
  EXPECT_TRUE(data.get().same_bytes(values)) << trial.group.name;
}

/// `large` elements are more than one piece of any communicator.
inline void try_everything(DeviceGroups& groups, std::int64_t large, bool whole = false) {
  for (const DeviceGroups::Group& group : groups.groups) {
    const Trial trial{groups, group, whole};
    try_all_reduce(trial, large);
    try_reduce_scatter(trial, large);
    try_moves(trial, large);
    try_chain(trial);
    try_between_computation(trial);
    try_end_with_work_pending(trial);
  }
}

}  // namespace trireme::comm::testing
