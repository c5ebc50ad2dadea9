// Every layout's state saved and loaded into every other.
#include <limits>

#include "checkpoint/layouts.hpp"
#include "checkpoint/support.hpp"

namespace trireme::checkpoint::test {
namespace {

constexpr std::uint64_t seed = 31;

class PiecesTest : public testing::TestWithParam<const char*> {
 protected:
  std::vector<Piece> pieces_of(const std::vector<std::unique_ptr<Rank>>& ranks) {
    std::vector<Piece> pieces;
    for (const auto& rank : ranks) rank->append(pieces);
    return pieces;
  }

  params::ParameterTable table_ = make_table(GetParam());
  Scratch scratch_;
  std::unique_ptr<comm::Communicator> world_ = comm::make_self_communicator();
};

TEST_P(PiecesTest, EveryLayoutLoadsEveryOther) {
  std::vector<std::vector<std::unique_ptr<Rank>>> worlds;
  for (const Degrees& degrees : degrees_to_try()) {
    worlds.push_back(make_ranks(table_, degrees, seed));
  }
  const params::Layout whole(table_, {{0, model_units}}, {});
  std::vector<float> values(static_cast<std::size_t>(whole.elements()));
  params::initialize(whole, seed, {{{0, whole.elements()}, 0}},
                     Tensor(values.data(), {whole.elements()}));
  for (std::size_t from = 0; from < worlds.size(); ++from) {
    SCOPED_TRACE("saved by " + degrees_to_try()[from].text());
    // One rank writes all ranks' pieces: save refuses gaps and overlaps.
    const fs::path folder = save(scratch_.path(), {.step = 1}, pieces_of(worlds[from]), *world_);
    const Reader reader(folder);
    ASSERT_EQ(reader.tensors().size(), 2 * table_.rows().size());
    for (const params::Block& block : whole.blocks()) {
      const params::Parameter& row = table_.row(block.row);
      const auto first = static_cast<std::size_t>(block.offset);
      Whole logical{"parameters/" + row.name, row.shape, DType::f32, {}};
      logical.bytes.resize(logical.at(row.shape.elements()));
      std::memcpy(logical.bytes.data(), &values[first], logical.bytes.size());
      EXPECT_TRUE(slice_is_right(reader, logical, region_of(row.shape))) << row.name;
    }
    for (std::size_t t = 0; t < worlds.size(); ++t) {
      for (std::size_t rank = 0; rank < worlds[t].size(); ++rank) {
        ASSERT_EQ(worlds[t][rank]->load_and_compare(reader), "")
            << "loaded by rank " << rank << " of " << degrees_to_try()[t].text();
      }
    }
  }
}

// Checks that the layouts above have parts of rows, also of rows split by columns.
TEST_P(PiecesTest, TheseLayoutsSplitRows) {
  int parts = 0, parts_of_split_rows = 0;
  for (const Degrees& degrees : degrees_to_try()) {
    const auto ranks = make_ranks(table_, degrees, seed);
    for (const Piece& piece : pieces_of(ranks)) {
      if (piece.shape.dimensions() != 2) continue;
      const std::int64_t width = piece.data.stride(0);  // of the rank's rows
      if (piece.data.extent(1) == width) continue;
      ++parts;
      parts_of_split_rows += width < piece.shape[1] ? 1 : 0;
    }
  }
  EXPECT_GT(parts, 0);
  EXPECT_GT(parts_of_split_rows, 0);
}

TEST_P(PiecesTest, WhatIsNotFiniteIsNeitherSavedNorLoadedNorVerified) {
  const auto ranks = make_ranks(table_, {}, seed);
  std::vector<Piece> pieces = pieces_of(ranks);
  const Piece& spoilt = pieces[pieces.size() / 2];
  float& value = spoilt.data.as<float>()[spoilt.data.elements() - 1];
  const float before = value;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    value = bad;
    const std::string named = fmt::format("tensor {}: element", spoilt.name);
    EXPECT_THAT(error_of([&] { save(scratch_.path(), {.step = 1}, pieces, *world_); }),
                testing::HasSubstr(named));
    EXPECT_FALSE(fs::exists(scratch_.path() / "step-00000001"));
    std::vector<Piece> forced = pieces;
    for (Piece& piece : forced) piece.finite = false;
    const Reader reader(save(scratch_.path(), {.step = 2}, forced, *world_));
    reader.verify();
    EXPECT_THAT(error_of([&] { reader.verify(true); }), testing::HasSubstr(named));
    EXPECT_THAT(error_of([&] { ranks.front()->load_and_compare(reader); }),
                testing::HasSubstr(named));
    value = before;
    const auto again = make_ranks(table_, {}, seed);  // loading has changed them
    save(scratch_.path(), {.step = 3}, pieces_of(again), *world_);
    ranks.front()->fill();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PiecesTest, testing::Values("gpt", "llama-tied", "llama-untied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace trireme::checkpoint::test
