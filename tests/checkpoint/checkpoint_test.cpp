// Saving and loading on one rank: contents, names, replacement, pruning, and refused states.
#include "trireme/checkpoint/checkpoint.hpp"

#include <limits>
#include <thread>

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/wait.h>

#include "trireme/data/hdf5.hpp"

#include "checkpoint/support.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  fs::path save_all(const State& state, const std::vector<Piece>& pieces) {
    return save(root(), state, pieces, *world_);
  }
  fs::path save_step(std::int64_t step, std::uint64_t seed = 0) {
    Whole whole = make_whole("w", {5, 7}, DType::f32, seed + static_cast<std::uint64_t>(step));
    return save_all({.step = step}, {piece_of(whole)});
  }
  const fs::path& root() const { return scratch_.path(); }

  Scratch scratch_;
  std::unique_ptr<comm::Communicator> world_ = comm::make_self_communicator();
};

std::vector<Whole> one_of_each_type() {
  return {make_whole("parameters/a", {3, 5}, DType::f32, 1),
          make_whole("parameters/b.c", {7}, DType::bf16, 2),
          make_whole("parameters/d", {2, 3, 4, 5}, DType::f16, 3),
          make_whole("parameters/deep/er/e", {}, DType::f64, 4),  // a scalar
          make_whole("x/f", {4, 0}, DType::i32, 5),               // empty
          make_whole("x/g", {1, 9}, DType::i64, 6),
          make_whole("x/h", {11}, DType::u16, 7),
          make_whole("x/i", {13}, DType::u8, 8)};
}

TEST_F(CheckpointTest, EveryTypeAndShapeLoadsFromRandomPieces) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<Whole> wholes = one_of_each_type();
    std::vector<Piece> pieces;
    for (Whole& whole : wholes) {
      for (const Region& region : random_regions(whole.shape, 1 + round % 6, random)) {
        pieces.push_back(piece_of(whole, region));
        // A replica: not written.
        if (random() % 2 == 0) pieces.push_back(piece_of(whole, region, false));
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    const fs::path folder = save_all({.step = round}, pieces);
    EXPECT_EQ(folder, root() / fmt::format("step-{:08}", round));
    const Reader reader(folder);
    expect_all_right(reader, wholes);
    reader.verify();
    for (const Whole& whole : wholes) {
      for (int slice = 0; slice < 10; ++slice) {
        EXPECT_TRUE(slice_is_right(reader, whole, random_region(whole.shape, random), slice % 3))
            << whole.name;
      }
    }
  }
}

TEST_F(CheckpointTest, StateLoadsBitForBit) {
  const double infinity = std::numeric_limits<double>::infinity();
  State state{.step = 123456789,
              .samples = std::int64_t{1} << 60,
              .seed = std::numeric_limits<std::uint64_t>::max(),
              .config = {{"model", {{"layers", 3}, {"epsilon", 1e-5}}}, {"text", "naïve \" \\ \n"}},
              .versions = {{"trireme", "0.1.0"}},
              .extra = {{"tenth", 0.1}, {"best", infinity}, {"list", {1, 2, nullptr}}}};
  const Reader reader(save_all(state, {}));
  EXPECT_TRUE(reader.tensors().empty());
  EXPECT_EQ(reader.folder(), root() / "step-123456789");
  EXPECT_EQ(reader.state().step, state.step);
  EXPECT_EQ(reader.state().samples, state.samples);
  EXPECT_EQ(reader.state().seed, state.seed);
  EXPECT_EQ(reader.state().config, state.config);
  EXPECT_EQ(reader.state().versions, state.versions);
  state.extra["best"] = "inf";
  EXPECT_EQ(reader.state().extra, state.extra);
}

TEST_F(CheckpointTest, BlocksOfLargeTensorsAreSplitAndJoined) {
  // Over 40 MiB: two blocks of 16 MiB and a part, in two pieces that end inside a block.
  Whole whole = make_whole("big", {10'485'770}, DType::f32, 9);
  const std::int64_t cut = 5'000'001;
  const fs::path folder =
      save_all({.step = 1}, {piece_of(whole, cut, whole.elements()), piece_of(whole, 0, cut)});
  const Reader reader(folder);
  EXPECT_TRUE(slice_is_right(reader, whole, 0, whole.elements()));
  const std::int64_t block = (16 << 20) / 4;
  for (const std::int64_t edge : {std::int64_t{0}, block, cut, cut + block, whole.elements()}) {
    for (std::int64_t begin = edge - 2; begin <= edge + 2; ++begin) {
      for (std::int64_t end = begin; end <= edge + 3; ++end) {
        if (begin < 0 || end > whole.elements()) continue;
        EXPECT_TRUE(slice_is_right(reader, whole, begin, end)) << begin << " to " << end;
      }
    }
  }
}

TEST_F(CheckpointTest, BlocksOfBoxesAreSplitAndJoined) {
  // Two adjacent pieces of 22 and 18 MiB, whose rows are not contiguous in memory or in the tensor.
  Whole whole = make_whole("big", {10, 1'048'577}, DType::f32, 9);
  const std::int64_t cut = 576'717;
  const Region left{{}, {10, cut}}, right{{0, cut}, {10, 1'048'577 - cut}};
  const Reader reader(save_all({.step = 1}, {piece_of(whole, left), piece_of(whole, right)}));
  EXPECT_TRUE(slice_is_right(reader, whole, region_of(whole.shape)));
  EXPECT_TRUE(slice_is_right(reader, whole, {{2, cut - 5}, {6, 10}}));
  // Row by row, in an order that alternates pieces and blocks, from several threads.
  std::vector<std::thread> threads;
  std::array<int, 3> wrong{};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t row = 0; row < 10; ++row) {
        wrong[static_cast<std::size_t>(t)] +=
            slice_is_right(reader, whole, {{row, cut - 300 + 100 * t}, {1, 500}}) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 3>{}));
}

// Damages the file after a read: cached blocks must not be read again.
TEST_F(CheckpointTest, NeighboringRowsAreReadAndVerifiedOnce) {
  Whole whole = make_whole("w", {100, 60}, DType::f32, 9);
  Whole large = make_whole("x", {5 * (16 << 20)}, DType::u8, 9);
  const fs::path folder = save_all(
      {.step = 1},
      {piece_of(whole, {{}, {100, 20}}), piece_of(whole, {{0, 20}, {100, 40}}), piece_of(large)});
  const fs::path file = folder / "rank-00000.h5";
  const auto data = read_text(file).find(
      std::string(reinterpret_cast<const char*>(whole.bytes.data()), 20 * sizeof(float)));
  ASSERT_NE(data, std::string::npos);
  const Reader reader(folder);
  EXPECT_TRUE(slice_is_right(reader, whole, 0, 1));
  flip_bit(file, data, 0);
  for (std::int64_t row = 0; row < 100; ++row) {
    EXPECT_TRUE(slice_is_right(reader, whole, row, row + 1)) << row;
  }
  // The cache is bounded: five blocks of 16 MiB evict the two small ones.
  for (int block = 0; block < 5; ++block) {
    EXPECT_TRUE(slice_is_right(reader, large, block * (16 << 20), block * (16 << 20) + 1));
  }
  EXPECT_THAT(error_of([&] { slice_is_right(reader, whole, 5, 6); }),
              HasSubstr("tensor w, from element [0, 0] on: 8000 bytes"));
}

// As seen by h5dump, h5py and similar tools: read with only the HDF5 library.
TEST_F(CheckpointTest, OtherToolsFindTensorsByTheirNames) {
  const std::string name = "parameters/blocks.0.attention.qkv.weight";
  std::vector<float> values(6 * 4);
  std::iota(values.begin(), values.end(), 0.5F);
  const Tensor all(values.data(), {6, 4});
  const Tensor below = all.slice(0, 2, 6);
  const fs::path folder = save_all(
      {.step = 7}, {{name, {6, 4}, {0, 0}, all.slice(0, 0, 2), true},
                    {name, {6, 4}, {2, 0}, below.slice(1, 0, 1), true},
                    {name, {6, 4}, {2, 1}, below.slice(1, 1, 4), true},
                    {"parameters/whole", {6, 4}, {}, all, true},
                    {"parameters/half", {3}, {}, Tensor(values.data(), DType::bf16, {3}), true}});
  const data::hdf5::Lock lock;
  const hid_t file = H5Fopen((folder / "rank-00000.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  const auto numbers = [](hid_t dataset, const char* attribute_name) {
    std::array<std::int64_t, 2> found{};
    const hid_t attribute = H5Aopen(dataset, attribute_name, H5P_DEFAULT);
    EXPECT_GE(H5Aread(attribute, H5T_NATIVE_INT64, found.data()), 0) << attribute_name;
    H5Aclose(attribute);
    return found;
  };
  const auto check = [&](const std::string& path, std::array<hsize_t, 2> extents,
                         std::array<std::int64_t, 2> offset) {
    const hid_t dataset = H5Dopen2(file, path.c_str(), H5P_DEFAULT);
    ASSERT_GE(dataset, 0) << path;
    const hid_t space = H5Dget_space(dataset);
    ASSERT_EQ(H5Sget_simple_extent_ndims(space), 2);
    std::array<hsize_t, 2> found{};
    H5Sget_simple_extent_dims(space, found.data(), nullptr);
    EXPECT_EQ(found, extents);
    std::vector<float> got(extents[0] * extents[1]);
    EXPECT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, got.data()), 0);
    for (std::size_t r = 0; r < extents[0]; ++r) {
      for (std::size_t c = 0; c < extents[1]; ++c) {
        EXPECT_EQ(got[r * extents[1] + c], values[(static_cast<std::size_t>(offset[0]) + r) * 4 +
                                                  static_cast<std::size_t>(offset[1]) + c]);
      }
    }
    EXPECT_EQ(numbers(dataset, "global_shape"), (std::array<std::int64_t, 2>{6, 4}));
    EXPECT_EQ(numbers(dataset, "global_offset"), offset);
    EXPECT_EQ(data::hdf5::read_text_attribute(dataset, "type", path), "fp32");
    H5Sclose(space);
    H5Dclose(dataset);
  };
  check(name + "@0,0", {2, 4}, {0, 0});
  check(name + "@2,0", {4, 1}, {2, 0});
  check(name + "@2,1", {4, 3}, {2, 1});
  check("parameters/whole", {6, 4}, {0, 0});
  EXPECT_EQ(data::hdf5::read_text_attribute(file, "format", "file"), "trireme checkpoint");
  EXPECT_EQ(data::hdf5::read_number_attribute(file, "step", "file"), 7U);
  H5Fclose(file);
}

TEST_F(CheckpointTest, EqualStateGivesEqualBytes) {
  Whole whole = make_whole("a/b", {100}, DType::f32, 1);
  const fs::path folder = save_all({.step = 1}, {piece_of(whole, 0, 100)});
  const std::string manifest = read_text(folder / "manifest.json");
  const std::string data = read_text(folder / "rank-00000.h5");
  ::sleep(1);  // HDF5 stores times in seconds
  save_all({.step = 1}, {piece_of(whole, 0, 100)});
  EXPECT_EQ(read_text(folder / "manifest.json"), manifest);
  EXPECT_EQ(read_text(folder / "rank-00000.h5"), data);
}

TEST_F(CheckpointTest, SavingOverAStepReplacesIt) {
  save_step(3, 100);
  const fs::path folder = save_step(3, 200);
  fs::create_directory(root() / "step-00000003.tmp");  // of a failed save
  spill(root() / "step-00000003.tmp" / "rank-00000.h5", "rubbish");
  save_step(3, 300);
  EXPECT_EQ(entries_below(root()), 1U);
  expect_all_right(Reader(folder), {make_whole("w", {5, 7}, DType::f32, 303)});
}

TEST_F(CheckpointTest, AReaderStaysWithOneVersionOfAReplacedStep) {
  const fs::path folder = save_step(3, 100);
  const Reader reader(folder);
  save_step(3, 200);
  EXPECT_THAT(error_of([&] { reader.verify(); }), HasSubstr("do not match their checksum"));
}

TEST_F(CheckpointTest, NewestPassesOverBrokenFoldersAndNamesThem) {
  EXPECT_EQ(newest(root() / "missing"), std::nullopt);
  EXPECT_EQ(newest(root()), std::nullopt);
  for (const std::int64_t step : {1, 2, 10, 11, 12, 100'000'000}) save_step(step);
  const fs::path good = root() / "step-00000010";
  fs::remove(root() / "step-00000011" / "manifest.json");
  fs::resize_file(root() / "step-00000012" / "rank-00000.h5", 100);
  fs::rename(root() / "step-100000000", root() / "step-00000099");  // not its manifest's step
  fs::create_directory(root() / "step-00000200");
  fs::create_directory(root() / "step-00000300.tmp");
  fs::create_directory(root() / "step-x");
  spill(root() / "step-00000400", "a file");
  std::vector<std::string> passed_over;
  EXPECT_EQ(newest(root(), &passed_over), good);
  ASSERT_EQ(passed_over.size(), 5U);
  EXPECT_THAT(passed_over[0], HasSubstr("step-00000400"));
  EXPECT_THAT(passed_over[1], HasSubstr("step-00000200/manifest.json: cannot open: No such"));
  EXPECT_THAT(passed_over[2], HasSubstr("step-00000099: its manifest is of step 100000000"));
  EXPECT_THAT(passed_over[3], HasSubstr("step-00000012/rank-00000.h5: has 100 bytes"));
  EXPECT_THAT(passed_over[4], HasSubstr("step-00000011/manifest.json"));
}

// Left by a crash between two renames on a file system that cannot exchange two names.
TEST_F(CheckpointTest, AnOldFolderReplacesAMissingOne) {
  save_step(1);
  fs::rename(save_step(2), root() / "step-00000002.old");
  EXPECT_EQ(newest(root()), root() / "step-00000002.old");
  prune(root(), 1);
  EXPECT_EQ(newest(root()), root() / "step-00000002.old");
  EXPECT_EQ(entries_below(root()), 1U);
  EXPECT_EQ(newest(root()), root() / "step-00000002.old");
  save_step(2);
  EXPECT_EQ(newest(root()), root() / "step-00000002");
  EXPECT_EQ(entries_below(root()), 1U);
}

TEST_F(CheckpointTest, PruneKeepsTheNewestIntactOnes) {
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save_step(step);
  fs::remove(root() / "step-00000002" / "manifest.json");
  fs::remove(root() / "step-00000004" / "manifest.json");
  fs::create_directory(root() / "step-00000006.tmp");
  fs::create_directory(root() / "attempts");
  spill(root() / "notes.txt", "mine");
  prune(root(), 2);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(root())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("step-00000003", "step-00000004", "step-00000005",
                                                  "attempts", "notes.txt"));
}

TEST_F(CheckpointTest, PiecesThatDoNotCoverAreRefused) {
  Whole w = make_whole("w", {10}, DType::f32, 1);
  Whole other = make_whole("w", {2, 5}, DType::f32, 1);
  Whole half = make_whole("w", {10}, DType::bf16, 1);
  const auto fault = [&](const std::vector<Piece>& pieces) {
    std::string message = error_of([&] { save_all({.step = 1}, pieces); });
    EXPECT_EQ(entries_below(root()), 0U);
    return message;
  };
  EXPECT_THAT(fault({piece_of(w, 0, 4), piece_of(w, 5, 10)}),
              HasSubstr("no piece holds element [4] of [10]"));
  EXPECT_THAT(fault({piece_of(w, 1, 10)}), HasSubstr("no piece holds element [0]"));
  EXPECT_THAT(fault({piece_of(w, 0, 9)}), HasSubstr("no piece holds element [9]"));
  EXPECT_THAT(fault({piece_of(w, 0, 10, false)}), HasSubstr("no piece holds element [0]"));
  EXPECT_THAT(fault({piece_of(w, 0, 5), piece_of(w, 4, 10)}),
              HasSubstr("2 pieces hold element [4]"));
  EXPECT_THAT(fault({piece_of(w, 0, 10), piece_of(w, 0, 10)}),
              HasSubstr("2 pieces hold element [0]"));
  EXPECT_THAT(fault({piece_of(w, 0, 5), piece_of(other, 1, 2)}), HasSubstr("on another rank"));
  EXPECT_THAT(fault({piece_of(w, 0, 5), piece_of(half, 5, 10)}), HasSubstr("on another rank"));
  Piece late = piece_of(w, 0, 10);
  late.begin = {1};
  EXPECT_THAT(fault({late}), HasSubstr("a piece [10] from [1] on does not fit into [10]"));
  late.begin = {-1};
  EXPECT_THAT(fault({late}), HasSubstr("a piece [10] from [-1] on does not fit"));
  late.begin = {std::numeric_limits<std::int64_t>::max()};
  EXPECT_THAT(fault({late}), HasSubstr("does not fit"));
  Piece flat = piece_of(other, 0, 2);
  flat.data = flat.data.reshape({10});
  EXPECT_THAT(fault({flat}), HasSubstr("a piece [10] from [0] on does not fit into [2, 5]"));
}

// Random boxes against a count of each element's holders.
TEST_F(CheckpointTest, TheFirstElementNotHeldOnceIsNamed) {
  std::mt19937_64 random(23);
  int refused = 0;
  for (const Shape& shape : {Shape{12}, Shape{4, 5}, Shape{3, 4, 3}, Shape{2, 3, 2, 3}}) {
    Whole whole = make_whole("w", shape, DType::u8, 1);
    const int dimensions = shape.dimensions();
    for (int round = 0; round < 150; ++round) {
      std::vector<Region> regions =
          random_regions(shape, 2 + static_cast<int>(random() % 8), random);
      for (std::uint64_t change = random() % 3; change > 0; --change) {
        Region& region = regions[random() % regions.size()];
        const int d = static_cast<int>(random() % static_cast<unsigned>(dimensions));
        auto& begin = region.begin[static_cast<std::size_t>(d)];
        switch (random() % 4) {
          case 0:
            region.extent[d] = 0;
            break;
          case 1:
            region = random_region(shape, random);
            break;
          case 2:
            if (begin > 0) --begin, ++region.extent[d];
            break;
          default:
            if (region.extent[d] > 0) --region.extent[d];
            break;
        }
      }
      std::vector<int> holders(static_cast<std::size_t>(shape.elements()));
      std::vector<Piece> pieces;
      for (const Region& region : regions) {
        pieces.push_back(piece_of(whole, region));
        // Its elements by row-major index in the whole.
        for (std::size_t e = 0; e < holders.size(); ++e) {
          auto left = static_cast<std::int64_t>(e);
          bool inside = true;
          for (int d = dimensions - 1; d >= 0; left /= shape[d], --d) {
            const std::int64_t at = left % shape[d] - region.begin[static_cast<std::size_t>(d)];
            inside = inside && at >= 0 && at < region.extent[d];
          }
          holders[e] += inside ? 1 : 0;
        }
      }
      const auto wrong = std::find_if(holders.begin(), holders.end(), [](int n) { return n != 1; });
      const std::string message = error_of([&] { save_all({.step = 1}, pieces); });
      if (wrong == holders.end()) {
        EXPECT_EQ(message, "");
        continue;
      }
      ++refused;
      std::string element;
      auto left = static_cast<std::int64_t>(wrong - holders.begin());
      for (int d = dimensions - 1; d >= 0; left /= shape[d], --d) {
        element = fmt::format("{}{}{}", left % shape[d], element.empty() ? "" : ", ", element);
      }
      const std::string who =
          *wrong == 0 ? "no piece holds" : std::to_string(*wrong) + " pieces hold";
      EXPECT_THAT(message, HasSubstr(fmt::format("tensor w: {} element [{}]", who, element)));
    }
  }
  EXPECT_GT(refused, 100);
}

// Boxes of 512 ranks: fast only if not all pairs are compared.
TEST_F(CheckpointTest, ManyBoxesAreCheckedQuickly) {
  Whole whole = make_whole("w", {400, 250}, DType::f32, 1);
  std::vector<Piece> pieces;
  for (std::int64_t r = 0; r < 400; ++r) {
    for (std::int64_t c = 0; c < 250; ++c) pieces.push_back(piece_of(whole, {{r, c}, {1, 1}}));
  }
  pieces.pop_back();
  EXPECT_THAT(error_of([&] { save_all({.step = 1}, pieces); }),
              HasSubstr("no piece holds element [399, 249]"));
}

TEST_F(CheckpointTest, AmbiguousNamesAreRefused) {
  for (const std::string name : {"", "/a", "a/", "a//b", "a/../b", ".", "a@5", "a\nb", "größe"}) {
    Whole whole = make_whole(name, {1}, DType::f32, 1);
    EXPECT_THAT(error_of([&] { save_all({.step = 1}, {piece_of(whole, 0, 1)}); }),
                HasSubstr("its name"))
        << name;
  }
  Whole group = make_whole("a", {1}, DType::f32, 1);
  Whole member = make_whole("a/b/c", {1}, DType::f32, 1);
  EXPECT_THAT(error_of([&] {
                save_all({.step = 1}, {piece_of(group), piece_of(member)});
              }),
              HasSubstr("tensor a/b/c: a part of its name is a tensor too"));
}

TEST_F(CheckpointTest, ReadsThatDoNotFitAreRefused) {
  const Reader reader(save_step(1));
  std::vector<float> to(42);
  const auto fault = [&](const std::string& name, const Index& begin, const Shape& shape,
                         DType type = DType::f32) {
    return error_of([&] { reader.read(name, begin, Tensor(to.data(), type, shape)); });
  };
  EXPECT_THAT(fault("v", {}, {1, 1}), HasSubstr("has no tensor v"));
  EXPECT_THAT(fault("w", {}, {6, 7}), HasSubstr("[6, 7] from [0, 0] on is wanted of [5, 7]"));
  EXPECT_THAT(fault("w", {}, {35}), HasSubstr("[35] from [0] on is wanted of [5, 7]"));
  EXPECT_THAT(fault("w", {5}, {1, 1}), HasSubstr("[1, 1] from [5, 0] on"));
  EXPECT_THAT(fault("w", {0, 6}, {1, 2}), HasSubstr("[1, 2] from [0, 6] on"));
  EXPECT_THAT(fault("w", {-1}, {1, 1}), HasSubstr("from [-1, 0] on"));
  EXPECT_THAT(fault("w", {std::numeric_limits<std::int64_t>::max()}, {1, 1}), HasSubstr("wanted"));
  EXPECT_THAT(fault("w", {}, {1, 1}, DType::bf16), HasSubstr("is fp32, bf16"));
  EXPECT_EQ(fault("w", {5}, {0, 7}), "");
}

}  // namespace
}  // namespace trireme::checkpoint::test
