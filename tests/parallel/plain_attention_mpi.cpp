// Which attention calls get a plain mask (AttentionMask::plain), from the loader's batch to the
// operation.
#include <numeric>

#include <gtest/gtest.h>

#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

struct Masks {
  int plain = 0, other = 0;
};

/// CPU operations that count the masks they receive and claim to choose kernels.
class CountingOps final : public ops::ForwardingOps<CountingOps>, public ops::AlgorithmChoices {
 public:
  CountingOps(std::unique_ptr<ops::Ops> inner, Masks& masks)
      : inner_(std::move(inner)), masks_(masks) {}
  template <class... Parameters, class... Arguments>
  void forward(const char* /*name*/, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    (note(arguments), ...);
    ((*inner_).*operation)(arguments...);
  }

  std::vector<std::byte> choices() const override { return {}; }
  void use_choices(std::span<const std::byte>) override {}
  std::vector<ops::Choice> describe_choices() const override { return {}; }

 private:
  template <class T>
  void note(const T&) {}
  void note(const ops::AttentionMask& mask) { ++(mask.plain ? masks_.plain : masks_.other); }
  std::unique_ptr<ops::Ops> inner_;
  Masks& masks_;
};

using Change = std::function<void(data::Batch&)>;

MakeTestDevice counting_in(Masks& masks) {
  return [&masks](int) {
    return TestDevice{nullptr, [&](device::MemoryLedger& ledger, int threads, bool in_order) {
                        return std::make_unique<CountingOps>(
                            ops::make_cpu_ops(threads, &ledger, in_order), masks);
                      }};
  };
}

/// A step and an evaluation on the ranks of the world, on batches that `change` modifies: the masks
/// of all ranks.
Masks masks_of(bool llama, LayoutCase layout, bool reproducible, const Change& change = {}) {
  const model::ModelConfig config = testing_support::odd_model(llama);
  layout.micro_batch = 2;
  const RunSettings settings{.reproducible = reproducible};
  Masks masks;
  const MakeTestDevice counting = counting_in(masks);
  LayoutRun run(config, layout, stage_options(layout, settings), MPI_COMM_WORLD, counting);
  run.replica.initialize();
  const auto make = [&](std::int64_t first) {
    data::Batch batch = testing_support::make_test_batch(first, layout.micro_batch, config.sequence,
                                                         config.vocabulary);
    if (change) change(batch);
    return HostMicrobatch(std::move(batch));
  };
  std::vector<HostMicrobatch> batches;
  for (int m = 0; m < settings.global_batch / layout.data / layout.micro_batch; ++m) {
    batches.push_back(make(2 * m));
  }
  run.replica.backward(batches);
  run.replica.engine().evaluate(make(0));
  MPI_Allreduce(MPI_IN_PLACE, &masks.plain, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &masks.other, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return masks;
}

TEST(PlainAttention, OfOrdinaryRunsInEveryLayout) {
  std::vector<LayoutCase> layouts(4);
  layouts[0].data = layouts[1].tensor = layouts[2].tensor = layouts[3].pipeline = world_size();
  layouts[1].recompute = model::Recompute::full;
  layouts[2].sequence_parallel = true;
  for (const LayoutCase& layout : layouts) {
    for (const bool llama : {false, true}) {
      for (const bool reproducible : {false, true}) {
        const Masks masks = masks_of(llama, layout, reproducible);
        EXPECT_GT(masks.plain, 0) << layout.to_string();
        EXPECT_EQ(masks.other, 0) << layout.to_string();
      }
    }
  }
}

TEST(PlainAttention, NotForOtherMasks) {
  LayoutCase layout;
  layout.data = world_size();
  const auto length = [](const data::Batch& batch) {
    return static_cast<std::size_t>(batch.length);
  };
  const std::vector<std::pair<const char*, Change>> changes = {
      {"one document, as a mask of documents makes it",
       [&](data::Batch& batch) { batch.documents.assign(batch.positions.size(), 0); }},
      {"two documents, positions from each one's start",
       [&](data::Batch& batch) {
         batch.documents.assign(batch.positions.size(), 0);
         for (std::size_t t = 5; t < length(batch); ++t) {
           batch.documents[t] = 1;
           batch.positions[t] = static_cast<std::int32_t>(t - 5);
         }
       }},
      {"two sequences packed into the last one",
       [&](data::Batch& batch) {
         auto* last = &batch.positions[batch.positions.size() - length(batch)];
         for (std::size_t t = 7; t < length(batch); ++t) last[t] = static_cast<std::int32_t>(t - 7);
       }},
      // What a context rank other than the first would hold.
      {"a later part of a sequence",
       [&](data::Batch& batch) {
         for (std::int32_t& position : batch.positions) {
           position += static_cast<std::int32_t>(batch.length);
         }
       }},
  };
  for (const auto& [what, change] : changes) {
    for (const bool reproducible : {false, true}) {
      const Masks masks = masks_of(true, layout, reproducible, change);
      EXPECT_EQ(masks.plain, 0) << what;
      EXPECT_GT(masks.other, 0) << what;
    }
  }
}

/// Kernels are chosen, and their work space allocated, for the masks of the run.
TEST(PlainAttention, SyntheticTokensAreMaskedAsInTheRun) {
  LayoutCase layout;
  layout.data = world_size();
  const RunSettings settings;
  for (const bool documents : {false, true}) {
    Masks masks;
    LayoutRun run(testing_support::odd_model(true), layout, stage_options(layout, settings),
                  MPI_COMM_WORLD, counting_in(masks));
    run.replica.initialize();
    run.replica.settle_choices(documents);
    EXPECT_EQ(masks.plain > 0, !documents);
    EXPECT_EQ(masks.other > 0, documents);
  }
}

/// Tokens of consecutive documents of seven tokens each.
class Documents final : public data::TokenReader {
 public:
  std::int64_t tokens() const override { return 1000; }
  void read(std::int64_t begin, std::span<std::int32_t> out) override {
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(begin));
  }
  std::vector<std::int64_t> document_ends(std::int64_t begin, std::int64_t end) override {
    std::vector<std::int64_t> ends;
    for (std::int64_t each = begin / 7 * 7 + 7; each <= end; each += 7) ends.push_back(each);
    return ends;
  }
};

TEST(PlainAttention, FollowsTheLoader) {
  Documents reader;
  // Windows of ten tokens have ends of documents inside, windows of three may have none.
  for (const std::int64_t length : {10, 3}) {
    const data::Sampler sampler(reader.tokens(), length, reader.tokens(), 1, false);
    for (const bool documents : {false, true}) {
      const data::LoaderOptions options{
          .micro_batch = 2, .length = length, .document_mask = documents};
      const HostMicrobatch batch(data::make_batch(reader, sampler, options, {0, 1}));
      EXPECT_EQ(batch.view().plain, !documents);
      EXPECT_EQ(part_of(batch.view(), 1, 2).plain, !documents);
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
