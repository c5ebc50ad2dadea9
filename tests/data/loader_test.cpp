#include "trireme/data/loader.hpp"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "counting_reader.hpp"
#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

LoaderOptions options_of(std::int64_t micro_batch, std::int64_t length) {
  LoaderOptions options;
  options.micro_batch = micro_batch;
  options.length = length;
  return options;
}

TEST(MakeBatch, TargetsFollowInputs) {
  CountingReader reader(100);
  const Sampler sampler(100, 10, 100, 1, false);
  const Batch batch = make_batch(reader, sampler, options_of(2, 10), {3, 0});
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.length, 10);
  EXPECT_THAT(batch.samples, ElementsAre(3, 0));
  ASSERT_EQ(batch.inputs.size(), 20U);
  for (std::int32_t t = 0; t < 10; ++t) {
    const auto at = static_cast<std::size_t>(t);
    EXPECT_EQ(batch.inputs[at], 30 + t);
    EXPECT_EQ(batch.targets[at], 31 + t);
    EXPECT_EQ(batch.positions[at], t);
    EXPECT_EQ(batch.inputs[10 + at], t);
    EXPECT_EQ(batch.targets[10 + at], t + 1);
  }
  EXPECT_THAT(batch.weights, Each(1.0F));
  EXPECT_TRUE(batch.documents.empty());
}

TEST(MakeBatch, DocumentsRestartPositions) {
  CountingReader reader(100, {13, 18, 20, 55});
  const Sampler sampler(100, 10, 100, 1, false);
  LoaderOptions options = options_of(2, 10);
  options.document_mask = true;
  const Batch batch = make_batch(reader, sampler, options, {1, 2});  // tokens 10-20, 20-30
  EXPECT_THAT(batch.positions,
              ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 0, 1, /**/ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(batch.documents,
              ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 2, 2, /**/ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  // The last token of a document has no target in the next one.
  EXPECT_THAT(batch.weights,
              ElementsAre(1, 1, 0, 1, 1, 1, 1, 0, 1, 0, /**/ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
}

Windows owned_windows(std::shared_ptr<TokenReader> reader, const Sampler& sampler) {
  return [reader, windows = windows_of(*reader, sampler)](std::int64_t sample) {
    return windows(sample);
  };
}

/// The inputs of one global batch in the order of samples, from loaders of `data_size` ranks.
std::vector<std::int32_t> global_batch(std::vector<std::unique_ptr<Loader>>& loaders,
                                       std::int64_t micro_batches) {
  std::vector<std::int32_t> inputs;
  for (auto& loader : loaders) {
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      const Batch batch = loader->next();
      inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
    }
  }
  return inputs;
}

std::vector<std::unique_ptr<Loader>> loaders_of(const Dataset& dataset, int data_size,
                                                std::int64_t micro_batch, std::int64_t first) {
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < data_size; ++rank) {
    auto reader = dataset.reader(SplitName::train);
    const Sampler sampler(reader->tokens(), 33, 4000, 5, true);
    loaders.push_back(std::make_unique<Loader>(owned_windows(std::move(reader), sampler),
                                               options_of(micro_batch, 33), 12, rank, data_size,
                                               first));
  }
  return loaders;
}

TEST(Loader, TheSameGlobalBatchesForEveryDataSizeAndMicroBatch) {
  const Scratch scratch;
  PrepareOptions options;
  options.shard_tokens = 3000;
  const Dataset dataset = make_dataset(scratch, "set", random_bytes(10'000, 1), options);
  std::vector<std::vector<std::int32_t>> expected;
  auto reference = loaders_of(dataset, 1, 12, 0);
  // 272 windows: the 30 steps of 12 extend into the second epoch.
  for (int step = 0; step < 30; ++step) expected.push_back(global_batch(reference, 1));
  for (const int data_size : {1, 2, 4}) {
    for (const std::int64_t micro_batch : {1, 3}) {
      auto loaders = loaders_of(dataset, data_size, micro_batch, 0);
      for (std::size_t step = 0; step < expected.size(); ++step) {
        EXPECT_EQ(global_batch(loaders, 12 / data_size / micro_batch), expected[step])
            << data_size << " " << micro_batch << " " << step;
      }
    }
  }
  // A restart on another number of ranks continues where the first run stopped.
  auto restarted = loaders_of(dataset, 2, 3, 17 * 12);
  for (std::size_t step = 17; step < expected.size(); ++step) {
    EXPECT_EQ(global_batch(restarted, 2), expected[step]) << step;
  }
}

TEST(Loader, ErrorsOfTheThreadArriveInOrder) {
  const Sampler sampler(100, 10, 100, 1, false);
  Loader loader(
      owned_windows(std::make_unique<CountingReader>(100, std::vector<std::int64_t>{}, 6), sampler),
      options_of(2, 10), 2, 0, 1, 0);
  for (std::int64_t step = 0; step < 3; ++step) {
    EXPECT_THAT(loader.next().samples, ElementsAre(2 * step, 2 * step + 1));
  }
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("broken on purpose"));
  }
}

/// Counts reads in a counter that outlives the loader.
class Watched : public CountingReader {
 public:
  Watched(std::int64_t tokens, std::atomic<int>& reads) : CountingReader(tokens), reads_(reads) {}
  void read(std::int64_t begin, std::span<std::int32_t> out) override {
    ++reads_;
    CountingReader::read(begin, out);
  }

 private:
  std::atomic<int>& reads_;
};

TEST(Loader, ReadAheadIsBoundedAndStopsWhileWaiting) {
  const Sampler sampler(1000, 10, 100, 1, true);
  LoaderOptions options = options_of(1, 10);
  options.prefetch = 3;
  std::atomic<int> reads = 0;
  {
    Loader loader(owned_windows(std::make_unique<Watched>(1000, reads), sampler), options, 1, 0, 1,
                  0);
    while (reads < 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(reads, 3);
    loader.next();
    while (reads < 4) std::this_thread::yield();
  }  // the thread waits for space here
  EXPECT_EQ(reads, 4);
  for (int i = 0; i < 50; ++i) {  // and at any other time
    const Loader loader(owned_windows(std::make_unique<Watched>(1000, reads), sampler), options, 1,
                        0, 1, 0);
    if (i % 2 == 0) std::this_thread::yield();
  }
}

TEST(Loader, BatchesThatDoNotDivideAreAnInvariant) {
  const Sampler sampler(100, 10, 100, 1, false);
  EXPECT_THROW(Loader(owned_windows(std::make_unique<CountingReader>(100), sampler),
                      options_of(2, 10), 6, 0, 2, 0),
               std::logic_error);
}

}  // namespace
}  // namespace trireme::data::test
