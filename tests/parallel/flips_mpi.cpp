// One bit flipped in memory: any bit of any replicated tensor, on any rank, is found and named. 100
// flips on two ranks and 200 on four.
#include <cstdlib>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/core/random.hpp"
#include "trireme/parallel/replica.hpp"

#include "layouts.hpp"

namespace trireme::parallel::test {
namespace {

/// What is replicated in a layout, worked out by hand.
enum class Replicated {
  everything,
  parameters,  // and not the optimizer's state
  unsplit,     // rows that tensor ranks do not split
  tied         // the embedding alone
};

struct FlipCase {
  LayoutCase layout;
  Replicated replicated;
  bool llama = false;
};

const std::vector<FlipCase>& cases() {
  static const std::vector<FlipCase> all = {
      {{.data = 2}, Replicated::everything},
      {{.data = 2, .zero = 1}, Replicated::parameters},
      {{.tensor = 2}, Replicated::unsplit, true},
      {{.pipeline = 2}, Replicated::tied},
      {{.data = 4}, Replicated::everything},
      {{.data = 4, .zero = 2}, Replicated::parameters, true},
      {{.data = 4, .shard = 2, .zero = 1}, Replicated::everything},
      {{.data = 4, .shard = 2, .zero = 3}, Replicated::everything, true},
      {{.tensor = 2, .data = 2}, Replicated::everything, true},
      {{.tensor = 2, .data = 2, .zero = 2, .sequence_parallel = true}, Replicated::parameters},
      {{.pipeline = 2, .data = 2, .schedule = "interleaved", .virtual_stages = 2},
       Replicated::everything},
      {{.tensor = 4, .sequence_parallel = true}, Replicated::unsplit, true},
  };
  return all;
}

std::string row_of(const Flip& flip) { return flip.tensor.substr(0, flip.tensor.find(' ')); }

bool has_replica(const Flip& flip, Replicated replicated) {
  switch (replicated) {
    case Replicated::everything:
      return true;
    case Replicated::parameters:
      return flip.tensor.find('/') == std::string::npos;
    case Replicated::unsplit:
      return flip.tensor.find(" tile ") == std::string::npos;
    case Replicated::tied:
      return flip.tensor.find("embedding.token.weight") != std::string::npos;
  }
  return false;
}

std::string complaint_of(LayoutRun& run) {
  try {
    check_replicas(run.replica, run.grid, 3);
  } catch (const AgreedError& error) {
    return error.what();
  }
  return {};
}

std::string broadcast(std::string text, int root) {
  auto size = static_cast<int>(text.size());
  MPI_Bcast(&size, 1, MPI_INT, root, MPI_COMM_WORLD);
  text.resize(static_cast<std::size_t>(size));
  MPI_Bcast(text.data(), size, MPI_CHAR, root, MPI_COMM_WORLD);
  return text;
}

/// Flips, checks and restores `flips` bits; returns how many were found and named.
int found_of(const FlipCase& each, int flips, std::uint64_t seed) {
  const model::ModelConfig config = testing_support::odd_model(each.llama);
  const RunSettings settings{.reproducible = false};
  LayoutRun run(config, each.layout, stage_options(each.layout, settings), MPI_COMM_WORLD);
  run.replica.initialize();
  const int data_rank = run.grid.coordinate(comm::Axis::data);
  run.replica.backward(make_batches(config, each.layout, data_rank, 0, settings.global_batch));
  run.replica.update(1e-3, 0, 1.0);
  EXPECT_EQ(complaint_of(run), "") << each.layout.to_string();
  int found = 0;
  for (int n = 0; n < flips; ++n) {
    const auto number = static_cast<std::uint64_t>(n) * 10'000;
    const auto size = static_cast<std::uint32_t>(run.session.size());
    // Not the random numbers that draw the flip itself.
    const RandomKey who{seed, Purpose::fault, 1};
    const auto victim = static_cast<int>(random_bits(who, number) % size);
    Flip flip;
    const bool mine = run.session.rank() == victim;
    for (std::uint64_t draw = 0; mine; ++draw) {
      flip = flip_bit(run.replica, seed, number + draw);
      if (has_replica(flip, each.replicated)) break;
      flip.apply();  // back
    }
    const std::string row = broadcast(mine ? row_of(flip) : "", victim);
    const std::string what = broadcast(mine ? flip.to_string() : "", victim);
    const std::string complaint = complaint_of(run);
    const auto says = [&](const std::string& words) {
      return complaint.find(words) != std::string::npos;
    };
    const bool named = says(fmt::format("ranks {} and ", victim)) ||
                       says(fmt::format(" and {}:", victim)) ||
                       says(fmt::format(" and {} (", victim));
    const bool tensor = says("replicas of " + row + " ");
    // Among four replicas only one is damaged.
    const bool alone = each.layout.data < 4 || each.layout.shard > 0 ||
                       says(fmt::format("rank {} is alone with its values, 3 others", victim));
    EXPECT_TRUE(named && tensor && alone) << each.layout.to_string() << "; rank " << victim << ", "
                                          << what << ": \"" << complaint << "\"";
    found += named && tensor && alone ? 1 : 0;
    if (mine) flip.apply();
    EXPECT_EQ(complaint_of(run), "") << "after " << what << " was put back";
  }
  return found;
}

TEST(Flips, AnyBitOfAnyReplicaIsFoundAndNamed) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) GTEST_SKIP() << "takes two ranks";
  std::uint64_t seed = 1;
  if (const char* given = std::getenv("TRIREME_FLIP_SEED"))
    seed = std::strtoull(given, nullptr, 10);
  const int flips = 25;  // of each layout
  int found = 0, all = 0, rank = 0;
  for (const FlipCase& each : cases()) {
    if (each.layout.ranks() != size) continue;
    found += found_of(each, flips, seed);
    all += flips;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) fmt::print("{} of {} flipped bits found and named\n", found, all);
  EXPECT_GE(all, 100);
  EXPECT_EQ(found, all);
}

}  // namespace
}  // namespace trireme::parallel::test
