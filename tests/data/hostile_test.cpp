// Malicious shards: a valid manifest, a wrong HDF5 file.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/hash.hpp"
#include "trireme/data/hdf5.hpp"

#include "support.hpp"

namespace trireme::data::test {
namespace {

using hdf5::Handle;
using testing::HasSubstr;

constexpr hsize_t size = 3000;

/// Creates /`name` of `size` elements from `data`, like the writer unless `plist` differs.
struct Recipe {
  hid_t type = H5T_STD_U16LE;
  std::vector<hsize_t> extent = {size};
  std::vector<hsize_t> most = {size};
  hsize_t chunk = size;
  std::function<void(hid_t)> change_plist = [](hid_t) {};
  bool fletcher = true;
  bool write = true;
};

void create(hid_t file, const char* name, const Recipe& recipe,
            const std::vector<std::uint16_t>& data) {
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  std::vector<hsize_t> chunk(recipe.extent.size(), 1);
  chunk[0] = recipe.chunk;
  H5Pset_chunk(plist.get(), static_cast<int>(chunk.size()), chunk.data());
  if (recipe.fletcher) H5Pset_fletcher32(plist.get());
  recipe.change_plist(plist.get());
  const Handle space(H5Screate_simple(static_cast<int>(recipe.extent.size()), recipe.extent.data(),
                                      recipe.most.data()),
                     H5Sclose);
  const Handle dataset(
      H5Dcreate2(file, name, recipe.type, space.get(), H5P_DEFAULT, plist.get(), H5P_DEFAULT),
      H5Dclose);
  ASSERT_TRUE(dataset) << name << ": " << hdf5::reason();
  if (recipe.write) {
    ASSERT_GE(
        H5Dwrite(dataset.get(), H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()), 0)
        << hdf5::reason();
  }
}

class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    PrepareOptions options;
    options.valid_fraction = 0;
    make_dataset(scratch_, "set", prose(size, 1), options);
    tokens_.assign(size, 'a');
  }
  void TearDown() override { EXPECT_EQ(open_identifiers(), 0); }
  fs::path shard() const { return scratch_ / "set/train-00000.h5"; }

  /// Rewrites the shard: `fill` creates the datasets.
  void make(const std::function<void(hid_t)>& fill, const std::string& format = "trireme-tokens",
            std::uint64_t version = 1) {
    const hdf5::Lock lock;
    fs::remove(shard());
    Handle file = hdf5::create_file(shard());
    hdf5::write_attribute(file.get(), "format", format, "shard");
    hdf5::write_attribute(file.get(), "version", version, "shard");
    fill(file.get());
    hdf5::close_file(file, "shard");
  }
  void make(const Recipe& tokens) {
    make([&](hid_t file) {
      create(file, "tokens", tokens, tokens_);
      ends(file);
    });
  }
  static void ends(hid_t file) {
    const std::uint64_t end = size;
    const Handle dataset =
        hdf5::create_dataset(file, "document_ends", H5T_STD_U64LE, {1}, 1, "shard");
    hdf5::write_elements(dataset, H5T_NATIVE_UINT64, 0, 1, &end, "shard");
  }
  /// The error of opening and reading everything.
  std::string refusal() {
    return error_of([&] {
      const Dataset dataset = Dataset::open(scratch_ / "set");
      all_tokens(dataset, SplitName::train);
      const auto reader = dataset.reader(SplitName::train);
      reader->document_ends(0, reader->tokens());
    });
  }

  Scratch scratch_;
  std::vector<std::uint16_t> tokens_;
};

TEST_F(Hostile, TheRecipeItselfIsRead) {
  make(Recipe{});
  const Dataset dataset = Dataset::open(scratch_ / "set");
  EXPECT_EQ(all_tokens(dataset, SplitName::train), bytes_of(std::string(size, 'a')));
}

TEST_F(Hostile, TokensOutsideTheVocabulary) {
  tokens_[1234] = 256;
  make(Recipe{});
  EXPECT_EQ(refusal(), shard().string() +
                           ": token 1234 has id 256, outside the vocabulary of 256; "
                           "prepare again");
}

TEST_F(Hostile, WrongTypesRanksAndSizes) {
  Recipe recipe;
  recipe.type = H5T_STD_U16BE;
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is of the wrong type"));
  recipe = {};
  recipe.type = H5T_STD_I16LE;
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is of the wrong type"));
  recipe = {};
  recipe.extent = recipe.most = {size, 1};
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: expected one dimension of exactly 3000 elements;"));
  recipe = {};
  recipe.extent = recipe.most = {size + 1};
  tokens_.push_back('a');
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("exactly 3000 elements, found 3001"));
  recipe = {};
  recipe.most = {H5S_UNLIMITED};
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
  recipe = {};
  recipe.extent = recipe.most = {hsize_t{1} << 60};  // declared, never written
  recipe.write = false;
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("exactly 3000 elements"));
}

TEST_F(Hostile, VariableLengthAndOtherKinds) {
  make([&](hid_t file) {
    const Handle type(H5Tvlen_create(H5T_STD_U16LE), H5Tclose);
    Recipe recipe;
    recipe.type = type.get();
    recipe.write = false;
    recipe.fletcher = false;
    create(file, "tokens", recipe, tokens_);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("/tokens: "));
  make([&](hid_t file) {
    const Handle group(H5Gcreate2(file, "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is not a dataset"));
}

TEST_F(Hostile, FiltersOtherThanTheChecksum) {
  Recipe recipe;
  recipe.fletcher = false;
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
  recipe = {};
  recipe.change_plist = [](hid_t plist) { H5Pset_shuffle(plist); };
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
  recipe = {};
  recipe.fletcher = false;
  recipe.write = false;
  recipe.change_plist = [](hid_t plist) {  // a filter from a plug-in
    H5Pset_filter(plist, 32'000, H5Z_FLAG_OPTIONAL, 0, nullptr);
  };
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
  recipe = {};
  recipe.chunk = 100;
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
  recipe = {};
  recipe.write = false;  // no chunk: the library would return fill values
  make(recipe);
  EXPECT_THAT(refusal(), HasSubstr("the chunk of tokens 0-2999 is not there in full"));
}

TEST_F(Hostile, ChunksThatSkipTheChecksum) {
  make([&](hid_t file) {
    Recipe recipe;
    recipe.write = false;
    create(file, "tokens", recipe, tokens_);
    const Handle dataset(H5Dopen2(file, "tokens", H5P_DEFAULT), H5Dclose);
    std::vector<std::uint16_t> raw = tokens_;
    raw.resize(size + 2);  // the size with a checksum, which the mask excludes
    const hsize_t offset = 0;
    ASSERT_GE(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 1, &offset, raw.size() * 2, raw.data()),
              0);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("the chunk of tokens 0-2999 is not there in full"));
}

TEST_F(Hostile, DataOutsideOfTheFile) {
  write_text(scratch_ / "secret", std::string(2 * size, 'a'));
  make([&](hid_t file) {
    const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_external(plist.get(), (scratch_ / "secret").c_str(), 0, 2 * size);
    const hsize_t extent = size;
    const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Handle dataset(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space.get(), H5P_DEFAULT,
                                    plist.get(), H5P_DEFAULT),
                         H5Dclose);
    ASSERT_TRUE(dataset);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
}

TEST_F(Hostile, VirtualDatasets) {
  fs::rename(shard(), scratch_ / "source.h5");
  make([&](hid_t file) {
    const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t extent = size;
    const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    H5Pset_virtual(plist.get(), space.get(), (scratch_ / "source.h5").c_str(), "/tokens",
                   space.get());
    const Handle dataset(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space.get(), H5P_DEFAULT,
                                    plist.get(), H5P_DEFAULT),
                         H5Dclose);
    ASSERT_TRUE(dataset);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("/tokens: is stored in another way"));
}

TEST_F(Hostile, LinksToOtherFiles) {
  fs::copy_file(shard(), scratch_ / "source.h5");
  make([&](hid_t file) {
    H5Lcreate_external((scratch_ / "source.h5").c_str(), "/tokens", file, "tokens", H5P_DEFAULT,
                       H5P_DEFAULT);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("tokens is a link to elsewhere"));
  make([&](hid_t file) {
    H5Lcreate_soft("/document_ends", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("tokens is a link to elsewhere"));
}

TEST_F(Hostile, MoreOrLessThanExpected) {
  make([&](hid_t file) { ends(file); });
  EXPECT_THAT(refusal(), HasSubstr("does not hold exactly the datasets document_ends, tokens"));
  make([&](hid_t file) {
    create(file, "tokens", Recipe{}, tokens_);
    create(file, "more", Recipe{}, tokens_);
    ends(file);
  });
  EXPECT_THAT(refusal(), HasSubstr("does not hold exactly the datasets document_ends, tokens"));
  make([&](hid_t file) {
    create(file, "tokens", Recipe{}, tokens_);
    ends(file);
    hdf5::write_attribute(file, "note", "x", "shard");
  });
  EXPECT_THAT(refusal(), HasSubstr("does not hold exactly the attributes format, version"));
  const auto fill = [&](hid_t file) {
    create(file, "tokens", Recipe{}, tokens_);
    ends(file);
  };
  make(fill, "other-tokens");
  EXPECT_THAT(refusal(), HasSubstr("is not version 1 of trireme-tokens"));
  make(fill, "trireme-tokens", 2);
  EXPECT_THAT(refusal(), HasSubstr("is not version 1 of trireme-tokens"));
  write_text(shard(), "not HDF5 at all");
  EXPECT_THAT(refusal(), HasSubstr("train-00000.h5: cannot open as HDF5: "));
}

TEST_F(Hostile, DocumentEndsThatDoNotAscend) {
  for (const std::uint64_t end : {std::uint64_t{0}, std::uint64_t{size + 1}, ~std::uint64_t{0}}) {
    make([&](hid_t file) {
      create(file, "tokens", Recipe{}, tokens_);
      const Handle dataset =
          hdf5::create_dataset(file, "document_ends", H5T_STD_U64LE, {1}, 1, "shard");
      hdf5::write_elements(dataset, H5T_NATIVE_UINT64, 0, 1, &end, "shard");
    });
    EXPECT_THAT(refusal(), HasSubstr("document ends do not ascend within its 3000 tokens"));
  }
}

/// In pieces of 16 MiB, also above one piece.
TEST(Hdf5, ElementsInPieces) {
  const Scratch scratch;
  const std::string path = (scratch / "file.h5").string();
  std::vector<std::uint32_t> data((std::size_t{17} << 20) / 4 + 3);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::uint32_t>(i * 2654435761U);
  constexpr std::uint64_t chunk = 1 << 16;
  Handle file = hdf5::create_file(path);
  {
    const Handle dataset =
        hdf5::create_dataset(file.get(), "values", H5T_STD_U32LE, {data.size()}, chunk, path);
    hdf5::write_elements(dataset, H5T_NATIVE_UINT32, 0, data.size(), data.data(), path);
  }
  hdf5::close_file(file, path);
  const Handle again = hdf5::open_file(path);
  const Handle dataset =
      hdf5::open_dataset(again.get(), "values", H5T_STD_U32LE, data.size(), chunk, path);
  std::vector<std::uint32_t> found(data.size());
  ASSERT_GE(H5Dread(dataset.get(), H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, found.data()),
            0);
  EXPECT_EQ(found, data);
  EXPECT_THAT(error_of([&] {
                hdf5::open_dataset(again.get(), "values", H5T_STD_U32LE, data.size() - 1, chunk,
                                   path);
              }),
              HasSubstr("/values: expected one dimension of exactly"));
  EXPECT_THAT(error_of([&] { hdf5::create_file(path); }), HasSubstr("cannot write: "));
}

}  // namespace
}  // namespace trireme::data::test
