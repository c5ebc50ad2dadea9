#include "trireme/data/packing.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/loader.hpp"

#include "counting_reader.hpp"

namespace trireme::data::test {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(BestFit, TakesTheFullestBinThatHasRoom) {
  const std::vector<std::uint32_t> lengths = {6, 5, 4, 3, 2, 2};
  EXPECT_THAT(best_fit(lengths, 10), ElementsAre(0, 1, 0, 1, 1, 2));
  EXPECT_THAT(best_fit({}, 10), ElementsAre());
}

TEST(BestFit, EqualsASearchOfAllBins) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const std::uint32_t capacity = 1 + random() % 40;
    std::vector<std::uint32_t> lengths(random() % 60), spaces;
    for (std::uint32_t& length : lengths) length = 1 + random() % capacity;
    const std::vector<std::uint32_t> bins = best_fit(lengths, capacity);
    ASSERT_EQ(bins.size(), lengths.size());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      std::uint32_t least = capacity + 1;  // space of the fullest bin that has enough
      for (const std::uint32_t space : spaces) {
        if (space >= lengths[i]) least = std::min(least, space);
      }
      if (least > capacity) {
        ASSERT_EQ(bins[i], spaces.size());
        spaces.push_back(capacity);
      } else {
        ASSERT_EQ(spaces.at(bins[i]), least);
      }
      spaces[bins[i]] -= lengths[i];
    }
  }
}

TEST(BestFit, IsWithinItsBoundOfTheFewestBins) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    // Full bins cut into pieces: fewer bins cannot hold them.
    const std::uint32_t capacity = 20 + random() % 1000, fewest = 1 + random() % 300;
    std::vector<std::uint32_t> lengths;
    for (std::uint32_t bin = 0; bin < fewest; ++bin) {
      for (std::uint32_t left = capacity; left > 0; left -= lengths.back()) {
        lengths.push_back(1 + random() % left);
      }
    }
    std::ranges::sort(lengths, std::greater());
    const auto bins = best_fit(lengths, capacity);
    EXPECT_LE(9 * (*std::ranges::max_element(bins) + 1), 11 * fewest + 36);
  }
}

/// Random documents, and how they are packed.
struct PackingCase {
  std::int64_t tokens = 0, length = 0, group = 0;
  std::vector<std::int64_t> ends;
  std::uint64_t seed = 0;
  bool shuffle = false;

  explicit PackingCase(std::mt19937& random) {
    const int documents = 1 + static_cast<int>(random() % 60);
    const std::uint32_t longest = 1 + random() % 80;
    for (int i = 0; i < documents; ++i) {
      tokens += 1 + random() % (random() % 10 == 0 ? 8 * longest : longest);
      ends.push_back(tokens);
    }
    if (random() % 3 == 0) ends.pop_back();  // as where validation begins within a document
    length = 1 + random() % 40;
    group = length + random() % 200;
    seed = random();
    shuffle = random() % 2 == 0;
  }
  Packer packer() const {
    return {std::make_shared<CountingReader>(tokens, ends), length, group, seed, shuffle};
  }
  bool ends_document(std::int64_t end) const {
    return end == tokens || std::ranges::binary_search(ends, end);
  }
};

TEST(Packer, EveryTokenIsInOneSampleOfAnEpoch) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 1000; ++trial) {
    const PackingCase documents(random);
    Packer packer = documents.packer();
    std::int64_t sample = 0;
    std::int64_t samples = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::vector<int> seen(static_cast<std::size_t>(documents.tokens));
      const std::int64_t begin = sample;
      for (std::int64_t taken = 0; taken < documents.tokens; ++sample) {
        const std::vector<Piece> pieces = packer.at(sample);
        ASSERT_FALSE(pieces.empty());
        std::int64_t used = 0, last = -1;
        for (const Piece& piece : pieces) {
          ASSERT_GT(piece.begin, last);
          ASSERT_LT(piece.begin, piece.end);
          last = piece.end - 1;
          used += piece.end - piece.begin;
          for (std::int64_t t = piece.begin; t < piece.end; ++t) {
            ++seen[static_cast<std::size_t>(t)];
            ASSERT_FALSE(t + 1 < piece.end && documents.ends_document(t + 1));
          }
          // A document is cut only where a piece is as long as a sequence.
          ASSERT_EQ(piece.ends_document, documents.ends_document(piece.end));
          ASSERT_TRUE(piece.ends_document || piece.end - piece.begin == documents.length);
        }
        ASSERT_LE(used, documents.length);
        taken += used;
      }
      ASSERT_THAT(seen, Each(1)) << "trial " << trial << ", epoch " << epoch;
      if (epoch == 0) samples = sample;
      ASSERT_EQ(sample - begin, samples) << "epochs have equally many samples";
    }
  }
}

TEST(Packer, ASampleIsAFunctionOfItsNumber) {
  std::mt19937 random(13);
  for (int trial = 0; trial < 200; ++trial) {
    const PackingCase documents(random);
    Packer in_order = documents.packer();
    std::vector<std::vector<Piece>> samples;
    for (std::int64_t n = 0; n < 150; ++n) samples.push_back(in_order.at(n));
    // From anywhere, with and without what another packer has counted.
    const auto begin = static_cast<std::int64_t>(random() % samples.size());
    Packer any_order = documents.packer(), resumed = documents.packer();
    const Packer::Cursor cursor = in_order.cursor(begin);
    EXPECT_LE(cursor.first, begin);
    resumed.begin_at(cursor);
    for (int i = 0; i < 60; ++i) {
      const auto n = random() % samples.size();
      ASSERT_EQ(any_order.at(static_cast<std::int64_t>(n)), samples[n]);
      const auto later = static_cast<std::size_t>(begin) + n % (samples.size() - begin);
      ASSERT_EQ(resumed.at(static_cast<std::int64_t>(later)), samples[later]);
    }
    ASSERT_EQ(resumed.at(0), samples[0]);
    ASSERT_EQ(resumed.cursor(begin), cursor);
    ASSERT_EQ(any_order.cursor(begin), cursor);
  }
}

TEST(Packer, WithoutShufflingSamplesAreInTheOrderOfDocuments) {
  const auto reader = std::make_shared<CountingReader>(30, std::vector<std::int64_t>{4, 7, 13, 24});
  Packer packer(reader, 10, 100, 1, false);
  // Documents of 4, 3, 6, 11 = 10 + 1 and 6: the rest of one token fits best where 9 are taken.
  EXPECT_THAT(packer.at(0), ElementsAre(Piece{0, 4, true}, Piece{24, 30, true}));
  EXPECT_THAT(packer.at(1),
              ElementsAre(Piece{4, 7, true}, Piece{7, 13, true}, Piece{23, 24, true}));
  EXPECT_THAT(packer.at(2), ElementsAre(Piece{13, 23, false}));
  EXPECT_EQ(packer.at(3), packer.at(0));
}

TEST(Packer, EpochsDifferAndStayNearTheirGroups) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = 7; end <= 7000; end += 7) ends.push_back(end);
  Packer packer(std::make_shared<CountingReader>(7000, ends), 28, 700, 1, true);
  std::set<std::int64_t> groups;
  int alike = 0;
  for (std::int64_t n = 0; n < 250; ++n) {
    const std::vector<Piece> pieces = packer.at(n);
    EXPECT_EQ(pieces.size(), 4U);
    EXPECT_EQ(pieces.front().begin / 700, pieces.back().begin / 700);
    groups.insert(pieces.front().begin / 700);
    EXPECT_EQ(static_cast<std::int64_t>(groups.size()), n / 25 + 1);
    alike += pieces == packer.at(n + 250) ? 1 : 0;
  }
  EXPECT_LT(alike, 3);
}

TEST(Packer, PadsLittle) {
  std::mt19937 random(17);
  std::lognormal_distribution<double> sizes(6, 1);  // median 403, mean 665
  std::vector<std::int64_t> ends;
  std::int64_t tokens = 0;
  for (int i = 0; i < 20'000; ++i) {
    ends.push_back(tokens += 1 + static_cast<std::int64_t>(sizes(random)));
  }
  for (const std::int64_t length : {256, 1024, 4096}) {
    Packer packer(std::make_shared<CountingReader>(tokens, ends), length, 1 << 20, 1, true);
    std::int64_t samples = 0;
    while (packer.cursor(samples).epoch == 0) ++samples;
    const double padding = 1 - static_cast<double>(tokens) / static_cast<double>(samples * length);
    EXPECT_LT(padding, 0.005) << length;
    RecordProperty("padding_" + std::to_string(length), std::to_string(padding));
  }
}

/// A sample of the pieces given.
Batch batch_of(CountingReader& reader, const std::vector<Piece>& pieces, bool document_mask,
               std::int64_t length) {
  LoaderOptions options;
  options.length = length;
  options.document_mask = document_mask;
  return make_batch([&](std::int64_t) -> Window { return {&reader, pieces, true}; }, options, {0});
}

TEST(PackedBatch, DocumentsAreSeparateWithAMask) {
  CountingReader reader(40, {10, 13, 30});
  const Batch batch = batch_of(reader, {{10, 13, true}, {30, 34, false}}, true, 10);
  // The second piece goes on: a packer gives such a piece only where it fills the sequence.
  EXPECT_THAT(batch.inputs, ElementsAre(10, 11, 12, 30, 31, 32, 33, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(11, 12, 0, 31, 32, 33, 34, 0, 0, 0));
  EXPECT_THAT(batch.weights, ElementsAre(1, 1, 0, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2, 3, 0, 1, 2));
  EXPECT_THAT(batch.documents, ElementsAre(0, 0, 0, 1, 1, 1, 1, 2, 2, 2));
  EXPECT_EQ(batch.padding, 3);
}

TEST(PackedBatch, WithoutAMaskADocumentFollowsTheOther) {
  CountingReader reader(40, {10, 13, 30});
  const Batch batch = batch_of(reader, {{10, 13, true}, {36, 40, true}}, false, 8);
  EXPECT_THAT(batch.inputs, ElementsAre(10, 11, 12, 36, 37, 38, 39, 0));
  EXPECT_THAT(batch.targets, ElementsAre(11, 12, 36, 37, 38, 39, 0, 0));
  EXPECT_THAT(batch.weights, ElementsAre(1, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(batch.documents.empty());
  EXPECT_EQ(batch.padding, 1);
}

TEST(PackedBatch, APartOfADocumentKnowsItsNextToken) {
  CountingReader reader(40, {10});
  for (const bool mask : {false, true}) {
    Batch batch = batch_of(reader, {{10, 20}}, mask, 10);
    EXPECT_EQ(batch.targets.back(), 20);
    EXPECT_THAT(batch.weights, Each(1.0F));
    batch = batch_of(reader, {{0, 10, true}}, mask, 10);
    EXPECT_EQ(batch.weights.back(), 0);
    EXPECT_EQ(batch.padding, 0);
  }
}

}  // namespace
}  // namespace trireme::data::test
