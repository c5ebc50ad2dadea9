// One parameter server's handling of gradients, without messages: against sums of single elements,
// and one optimizer over the whole model.
#include "trireme/data_parallel/server_shards.hpp"

#include <cmath>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/half.hpp"
#include "trireme/core/random.hpp"
#include "trireme/device/device.hpp"

#include "data_parallel/served.hpp"

namespace trireme::data_parallel::test {
namespace {

/// Element `i` of a worker's gradient.
float gradient_of(int worker, std::int64_t i) {
  const RandomKey key{5, Purpose::sample_order, static_cast<std::uint32_t>(worker)};
  return static_cast<float>(
      static_cast<double>(random_bits(key, static_cast<std::uint64_t>(i))) * 0x1p-31 - 1);
}

/// All servers of some workers, in one process.
struct Servers {
  Servers(int workers, int servers, DType gradients, bool tied = true)
      : model(served_model(tied)), stage(model, served_options(workers, 8, true)) {
    for (int s = 0; s < servers; ++s) {
      ledgers.push_back(std::make_unique<device::MemoryLedger>());
      all.push_back(std::make_unique<ServerShards>(stage,
                                                   ServerPlace{workers, servers, s, gradients},
                                                   served_optimizer(), 2, *ledgers.back()));
    }
  }
  /// Puts the worker's gradient of a group into every server's slot.
  void send(int worker, int group) {
    for (auto& server : all) {
      if (!server->holds(group)) continue;
      const Tensor slot = server->slot(worker, group);
      const std::int64_t first = server->shards().own(group).begin;
      for (std::int64_t i = 0; i < slot.elements(); ++i) {
        const float value = gradient_of(worker, first + i);
        if (slot.type() == DType::f32) {
          slot.as<float>()[i] = value;
        } else {
          static_cast<std::uint16_t*>(slot.data())[i] = float_to_bf16(value);
        }
      }
    }
  }
  void send_all() {
    const int workers = all.front()->place().workers;
    for (int group = all.front()->groups() - 1; group >= 0; --group) {
      // Not in the order of the workers, which must not matter.
      for (int w = 0; w < workers; ++w) send((w + group) % workers, group);
      for (auto& server : all) {
        bool complete = false;
        for (int w = workers - 1; w >= 0 && server->holds(group); --w) {
          complete = server->arrived(w, group);
        }
        EXPECT_EQ(complete, server->holds(group));
        if (complete) server->add(group);
      }
    }
    for (auto& server : all) EXPECT_TRUE(server->complete());
  }

  model::Transformer model;
  parallel::Stage stage;
  std::vector<std::unique_ptr<device::MemoryLedger>> ledgers;
  std::vector<std::unique_ptr<ServerShards>> all;
};

/// Σ over workers of element `i`, in all-reduce's tree, as those workers send it.
float sum_of(int workers, std::int64_t i, DType gradients) {
  std::vector<float> values;
  std::vector<const std::byte*> parts;
  for (int w = 0; w < workers; ++w) {
    const float value = gradient_of(w, i);
    values.push_back(gradients == DType::f32 ? value : bf16_to_float(float_to_bf16(value)));
  }
  for (const float& value : values) parts.push_back(reinterpret_cast<const std::byte*>(&value));
  float sum = 0;
  device::reduce_tree(DType::f32, device::Reduction::sum, parts, reinterpret_cast<std::byte*>(&sum),
                      1);
  return sum;
}

TEST(ServerShards, CoverTheModelOnce) {
  for (int servers = 1; servers <= 3; ++servers) {
    const Servers job(2, servers, DType::f32);
    std::int64_t held = 0;
    for (const auto& server : job.all) {
      EXPECT_GT(server->held(), 0);
      held += server->held();
    }
    EXPECT_EQ(held, job.stage.layout().elements());
  }
}

TEST(ServerShards, AddUpGradientsInAllReducesTree) {
  for (int workers = 1; workers <= 5; ++workers) {
    if (workers == 3 || workers == 5) continue;  // reproducible mode needs powers of two
    for (const DType gradients : {DType::f32, DType::bf16}) {
      for (int servers = 1; servers <= 3; ++servers) {
        Servers job(workers, servers, gradients);
        job.send_all();
        for (const auto& server : job.all) {
          for (int g = 0; g < server->groups(); ++g) {
            const Tensor sum = server->state().own_gradient(g);
            const std::int64_t first = server->shards().own(g).begin;
            for (std::int64_t i = 0; i < sum.elements(); i += 7) {
              ASSERT_EQ(sum.as<float>()[i], sum_of(workers, first + i, gradients))
                  << workers << " workers, " << servers << " servers, group " << g;
            }
          }
        }
      }
    }
  }
}

// bf16 has 8 significant bits: rounding to nearest changes a contribution by at most 2⁻⁸ of it
// (2⁻¹³⁴ for subnormals, absent here); the fp32 sum adds (n−1)·2⁻²⁴ of all.
TEST(ServerShards, RoundedGradientsStayWithinBounds) {
  constexpr int workers = 4;
  Servers job(workers, 2, DType::bf16);
  job.send_all();
  double largest = 0;
  for (const auto& server : job.all) {
    for (int g = 0; g < server->groups(); ++g) {
      const Tensor sum = server->state().own_gradient(g);
      const std::int64_t first = server->shards().own(g).begin;
      for (std::int64_t i = 0; i < sum.elements(); ++i) {
        double exact = 0, magnitude = 0;
        for (int w = 0; w < workers; ++w) {
          const double value = gradient_of(w, first + i);
          exact += value;
          magnitude += std::abs(value);
        }
        const double bound = magnitude * (std::ldexp(1.0, -8) + workers * std::ldexp(1.0, -24));
        largest =
            std::max(largest, std::abs(static_cast<double>(sum.as<float>()[i]) - exact) / bound);
      }
    }
  }
  EXPECT_LE(largest, 1);
  EXPECT_GE(largest, 0.3);  // the bound must be tight
}

TEST(ServerShards, RefuseDuplicatedAndLostGradients) {
  Servers job(2, 1, DType::f32);
  ServerShards& server = *job.all.front();
  EXPECT_FALSE(server.arrived(1, 0));
  try {
    server.arrived(1, 0);
    FAIL() << "a duplicated gradient was accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a second gradient of group 0 in one step");
  }
  EXPECT_TRUE(server.arrived(0, 0));
  for (int g = 1; g < server.groups(); ++g) server.arrived(0, g);
  EXPECT_NO_THROW(server.require_all_of(0));
  try {
    server.require_all_of(1);
    FAIL() << "a lost gradient was not detected";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no gradient of group 1 has come from worker 1 in this step");
  }
  server.end_step();
  EXPECT_FALSE(server.arrived(1, 0));  // of the next step
}

// One server's norm, update and values against a complete state on one rank.
TEST(ServerShards, UpdateAsOneOptimizerWould) {
  const Servers alone(4, 1, DType::f32);
  alone.all.front()->initialize(7);
  const_cast<Servers&>(alone).send_all();  // NOLINT: what it fills is not const
  const auto self = comm::make_self_communicator();
  const double norm = alone.all.front()->norm(*self);
  alone.all.front()->update(1e-2, 0, 0.5);
  double squares = 0;
  for (int g = 0; g < alone.all.front()->groups(); ++g) {
    const Tensor sum = alone.all.front()->state().own_gradient(g);
    for (std::int64_t i = 0; i < sum.elements(); ++i) {
      squares += static_cast<double>(sum.as<float>()[i]) * static_cast<double>(sum.as<float>()[i]);
    }
  }
  // Padding between blocks has synthetic gradients here, which a norm leaves out: less than 1 %.
  EXPECT_LE(norm, std::sqrt(squares));
  EXPECT_GE(norm, 0.99 * std::sqrt(squares));

  Servers cut(4, 3, DType::f32);
  for (auto& server : cut.all) server->initialize(7);
  cut.send_all();
  for (auto& server : cut.all) {
    server->update(1e-2, 0, 0.5);
    for (int g = 0; g < server->groups(); ++g) {
      const params::Range& own = server->shards().own(g);
      const std::int64_t begin =
          own.begin - cut.stage.layout().groups()[static_cast<std::size_t>(g)].elements.begin;
      const Tensor values = server->values(g);
      const Tensor whole = alone.all.front()->values(g).slice(0, begin, begin + own.size());
      for (std::int64_t i = 0; i < values.elements(); ++i) {
        ASSERT_EQ(values.as<float>()[i], whole.as<float>()[i]) << "group " << g;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::data_parallel::test
