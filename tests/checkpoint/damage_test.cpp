// Damaged and malicious checkpoints: each fault is found and named.
#include <functional>
#include <utility>

#include <hdf5.h>
#include <sys/stat.h>

#include "trireme/data/hdf5.hpp"

#include "checkpoint/support.hpp"

// libhdf5 1.10.8 leaks parts of an object header that turns out to be damaged.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): LeakSanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace trireme::checkpoint::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const State& saved_state() {
  static const State state{.step = 5,
                           .samples = 77,
                           .seed = 3,
                           .config = {{"layers", 2}},
                           .versions = {{"trireme", "0"}},
                           .extra = {{"note", "text"}}};
  return state;
}

class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    wholes_ = {make_whole("m/v", {9}, DType::i64, 2), make_whole("m/w", {4, 6}, DType::f32, 1),
               make_whole("n", {5}, DType::bf16, 3)};
    world_ = comm::make_self_communicator();
    folder_ = save(scratch_.path(), saved_state(),
                   {piece_of(wholes_[0], 0, 9), piece_of(wholes_[1], {{}, {4, 2}}),
                    piece_of(wholes_[1], {{0, 2}, {4, 4}}), piece_of(wholes_[2], 0, 5)},
                   *world_);
    manifest_ = manifest_of(folder_);
  }

  /// The error of opening and reading everything.
  std::string fault() const {
    return error_of([&] {
      const Reader reader(folder_);
      reader.verify();
      expect_all_right(reader, wholes_);
      EXPECT_EQ(reader.state().step, 5);
    });
  }

  /// The error after `edit` of the manifest, sealed again.
  std::string fault_after(const std::function<void(json&)>& edit) const {
    json manifest = manifest_;
    edit(manifest);
    forge(folder_, manifest);
    return fault();
  }

  fs::path data_file() const { return folder_ / "rank-00000.h5"; }

  Scratch scratch_;
  std::unique_ptr<comm::Communicator> world_;
  std::vector<Whole> wholes_;
  fs::path folder_;
  json manifest_;
};

TEST_F(DamageTest, AFlippedBitIsNamedWithFileTensorAndOffset) {
  // 3 blocks of 16 MiB and a part.
  const std::int64_t block = (16 << 20) / 4;
  Whole big = make_whole("opt/moment", {3 * block + 1000}, DType::f32, 5);
  const fs::path folder =
      save(scratch_.path(), {.step = 6}, {piece_of(big, 0, big.elements())}, *world_);
  const fs::path file = folder / "rank-00000.h5";
  const std::size_t data =
      read_text(file).find(std::string(reinterpret_cast<const char*>(big.bytes.data()), 64));
  ASSERT_NE(data, std::string::npos);
  const Reader opened_before(folder);
  const std::size_t byte = data + static_cast<std::size_t>(2 * block * 4 + 12345);
  flip_bit(file, byte, 3);
  const Reader reader(folder);
  EXPECT_TRUE(slice_is_right(reader, big, 0, 2 * block)) << "intact blocks can be read";
  EXPECT_TRUE(slice_is_right(reader, big, 3 * block, 3 * block + 1000));
  const auto named = AllOf(HasSubstr(file.string()), HasSubstr("tensor opt/moment"),
                           HasSubstr(fmt::format("element [{}]", 2 * block)),
                           HasSubstr(fmt::format("at byte {}", data + 2 * block * 4)));
  EXPECT_THAT(error_of([&] { slice_is_right(reader, big, 3 * block - 1, 3 * block); }), named);
  EXPECT_THAT(error_of([&] { slice_is_right(reader, big, 0, 3 * block); }), named);
  EXPECT_THAT(error_of([&] { slice_is_right(opened_before, big, 2 * block, 2 * block + 1); }),
              named);
  EXPECT_THAT(error_of([&] { reader.verify(); }), named);
  flip_bit(file, byte, 3);
  EXPECT_TRUE(slice_is_right(reader, big, 3 * block - 1, 3 * block)) << "a bad block was cached";
}

TEST_F(DamageTest, EveryUnsealedChangeOfTheManifestIsFound) {
  const std::string good = read_text(folder_ / "manifest.json");
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    const std::size_t byte = random() % bad.size();
    switch (round % 3) {
      case 0:
        bad[byte] = static_cast<char>(bad[byte] ^ (1 << random() % 8));
        break;
      case 1:
        bad.resize(byte);
        break;
      default:
        bad.insert(byte, 1, static_cast<char>(random() % 256));
        break;
    }
    spill(folder_ / "manifest.json", bad);
    EXPECT_THAT(error_of([&] { const Reader reader(folder_); }), HasSubstr("manifest.json"))
        << "round " << round << " byte " << byte;
  }
}

TEST_F(DamageTest, RandomSealedChangesOfTheManifestNeverCrash) {
  const std::string good = read_text(folder_ / "manifest.json");
  const std::string rest = good.substr(good.find('\n') + 1);
  std::mt19937_64 random(4);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = rest;
    for (std::uint64_t i = 0; i <= random() % 3; ++i) {
      const std::size_t byte = random() % bad.size();
      if (random() % 2 == 0) {
        bad[byte] = static_cast<char>(bad[byte] ^ (1 << random() % 8));
      } else {  // a larger number, if on a digit
        bad.insert(byte, std::string(1 + random() % 20, '9'));
      }
    }
    write_sealed(folder_, bad);
    // An edit may rename a tensor or change the step; the data still match their checksums.
    const std::string message = error_of([&] {
      const Reader reader(folder_);
      reader.verify();
    });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(DamageTest, HostileManifestsAreRefused) {
  const std::int64_t large = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::pair<std::string, std::function<void(json&)>>> cases = {
      {"has no 'step'", [](json& m) { m.erase("step"); }},
      {"'step' is not an integer", [](json& m) { m["step"] = -1; }},
      {"'step' is not an integer", [](json& m) { m["step"] = 1.5; }},
      {"'step' is more than 2^60", [](json& m) { m["step"] = std::int64_t{1} << 62; }},
      {"'samples' is not an integer", [](json& m) { m["samples"] = std::uint64_t{1} << 63; }},
      {"'seed' is not an integer", [](json& m) { m["seed"] = "1"; }},
      {"is not a trireme checkpoint", [](json& m) { m["format"] = "other"; }},
      {"is a trireme checkpoint of format 1, and this program reads format 2",
       [](json& m) { m["version"] = 1; }},
      {"of format 3, and", [](json& m) { m["version"] = 3; }},
      {"of format 3, and",  // a newer version may have other pieces
       [](json& m) {
         m["version"] = 3;
         m["pieces"][0] = "other";
       }},
      {"'block_bytes'", [](json& m) { m["block_bytes"] = 1; }},
      {"'pieces' is not a list", [](json& m) { m["pieces"] = 3; }},
      {"has no 'name'", [](json& m) { m["tensors"][0] = 3; }},
      {"element type 'f8'", [](json& m) { m["tensors"][0]["type"] = "f8"; }},
      {"more than 4 dimensions",
       [](json& m) {
         m["tensors"][0]["shape"] = {9, 1, 1, 1, 1};
       }},
      {"an extent is not an integer", [](json& m) { m["tensors"][0]["shape"] = {-9}; }},
      {"more than 2^63 bytes",
       [](json& m) {
         m["tensors"][0]["shape"] = {1LL << 32, 1LL << 31};
       }},
      // 2^64 + 9 elements, if overflow were allowed.
      {"more than 2^63 bytes",
       [](json& m) {
         m["tensors"][0]["shape"] = {3LL << 61, 3};
       }},
      {"more than 2^63 bytes", [large](json& m) { m["tensors"][0]["shape"] = {large}; }},
      // An extent of 0 does not cancel the others.
      {"more than 2^63 bytes",
       [](json& m) {
         m["tensors"][0]["shape"] = {1LL << 62, 1LL << 62, 0};
       }},
      {"no piece holds element [9]", [](json& m) { m["tensors"][0]["shape"] = {10}; }},
      {"does not fit into tensor m/v [8]", [](json& m) { m["tensors"][0]["shape"] = {8}; }},
      {"does not fit into tensor m/v [9, 1]",
       [](json& m) {
         m["tensors"][0]["shape"] = {9, 1};
       }},
      {"out of order", [](json& m) { std::swap(m["tensors"][0], m["tensors"][1]); }},
      {"out of order", [](json& m) { m["tensors"][1]["name"] = "m/v"; }},
      {"the name of tensor 0", [](json& m) { m["tensors"][0]["name"] = "../v"; }},
      {"its tensor is not listed", [](json& m) { m["pieces"][0]["tensor"] = "q"; }},
      {"its file is not listed", [](json& m) { m["pieces"][0]["file"] = "q"; }},
      {"no piece holds element [0]", [](json& m) { m["pieces"].erase(0); }},
      {"no piece holds element [0, 2]", [](json& m) { m["pieces"].erase(2); }},
      {"holds another piece already", [](json& m) { m["pieces"].push_back(m["pieces"][0]); }},
      {"2 pieces hold element [0, 1]",
       [](json& m) {
         m["pieces"][2]["offset"] = {0, 1};
       }},
      {"does not fit into tensor m/w",
       [](json& m) {
         m["pieces"][2]["offset"] = {0, 3};
       }},
      {"does not fit into tensor m/w",
       [](json& m) {
         m["pieces"][2]["shape"] = {4, 5};
       }},
      {"does not fit into tensor m/w",
       [large](json& m) {
         m["pieces"][2]["offset"] = {0, large};
       }},
      {"does not fit into tensor m/w",
       [large](json& m) {
         m["pieces"][2]["shape"] = {large, large};
       }},
      {"an offset is not an integer",
       [](json& m) {
         m["pieces"][2]["offset"] = {0, -1};
       }},
      {"an offset is not an integer",
       [](json& m) {
         m["pieces"][2]["offset"] = {0, "2"};
       }},
      {"an extent is not an integer",
       [](json& m) {
         m["pieces"][2]["shape"] = {4, 1.5};
       }},
      {"'offset' is not a list", [](json& m) { m["pieces"][2]["offset"] = 2; }},
      {"different lengths", [](json& m) { m["pieces"][2]["offset"] = {2}; }},
      {"'shape' has more than 4 dimensions",
       [](json& m) {
         m["pieces"][2]["shape"] = {4, 4, 1, 1, 1};
       }},
      {"does not fit",
       [](json& m) {
         m["pieces"][0]["shape"] = {0};
         m["pieces"][0]["xxh3"] = json::array();
       }},
      {"0 checksums for 72 bytes", [](json& m) { m["pieces"][0]["xxh3"] = json::array(); }},
      {"2 checksums for 72 bytes",
       [](json& m) { m["pieces"][0]["xxh3"].push_back("0123456789abcdef"); }},
      {"16 hexadecimal", [](json& m) { m["pieces"][0]["xxh3"][0] = "0123456789abcdeg"; }},
      {"16 hexadecimal", [](json& m) { m["pieces"][0]["xxh3"][0] = 12; }},
      {"do not match their checksum",
       [](json& m) { m["pieces"][0]["xxh3"][0] = "0123456789abcdef"; }},
      {"no proper name", [](json& m) { m["pieces"][0]["dataset"] = "m/../n"; }},
      {"dataset m/q: is not in the file", [](json& m) { m["pieces"][0]["dataset"] = "m/q"; }},
      {"dataset q/q: is not in the file", [](json& m) { m["pieces"][0]["dataset"] = "q/q"; }},
      {"dataset m: H5Dopen2: not a dataset", [](json& m) { m["pieces"][0]["dataset"] = "m"; }},
      {"plain name", [](json& m) { m["files"][0]["name"] = "../rank-00000.h5"; }},
      {"plain name", [](json& m) { m["files"][0]["name"] = "/etc/passwd"; }},
      {"plain name", [](json& m) { m["files"][0]["name"] = ".."; }},
      {"plain name", [](json& m) { m["files"][0]["name"] = std::string("a\0b", 3); }},
      {"listed twice", [](json& m) { m["files"].push_back(m["files"][0]); }},
      {"the folder of file rank-00000.h5 is not named part-",
       [](json& m) { m["files"][0]["folder"] = ".."; }},
      {"is not named part-", [](json& m) { m["files"][0]["folder"] = ""; }},
      {"is not named part-", [](json& m) { m["files"][0]["folder"] = "part-000/.."; }},
      {"is not named part-", [](json& m) { m["files"][0]["folder"] = "part-00"; }},
      {"'folder' is not a string", [](json& m) { m["files"][0]["folder"] = 1; }},
      {"part-000: cannot open: No such file",
       [](json& m) { m["files"][0]["folder"] = "part-000"; }},
      {"claims more than file", [](json& m) { m["files"][0]["bytes"] = 100; }},
      {"the manifest says",
       [](json& m) { m["files"][0]["bytes"] = m["files"][0]["bytes"].get<int>() + 1; }},
      {"does not have the type int32",
       [](json& m) {
         m["tensors"][2]["type"] = "int32";
         m["tensors"][2]["shape"] = {5};
       }},
      {"nested more than",
       [](json& m) {
         json deep;
         for (int i = 0; i < 100; ++i) deep = json::array({deep});
         m["extra"] = deep;
       }},
  };
  for (const auto& [expected, edit] : cases) EXPECT_THAT(fault_after(edit), HasSubstr(expected));
  EXPECT_EQ(fault_after([](json&) {}), "") << "the untouched manifest, sealed by this test";
}

TEST_F(DamageTest, TypesOfEqualSizeAreNotInterchangeable) {
  // bf16 and u16 have the same type in the file; the manifest decides. Reading as the other type is
  // refused.
  const Reader reader(folder_);
  std::vector<std::uint16_t> to(5);
  EXPECT_THAT(error_of([&] { reader.read("n", {}, Tensor(to.data(), DType::u16, {5})); }),
              HasSubstr("is bf16, uint16 is wanted"));
}

TEST_F(DamageTest, DeepNestingIsRefusedWithoutRecursion) {
  std::string rest = manifest_.dump().substr(1);
  rest.pop_back();
  write_sealed(folder_, rest + ", \"deep\": " + std::string(5'000'000, '['));
  EXPECT_THAT(fault(), HasSubstr("nested more than 64 deep"));
}

TEST_F(DamageTest, LinksInTheFolderAreRefused) {
  const fs::path outside = scratch_.path() / "outside.h5";
  fs::rename(data_file(), outside);
  fs::create_symlink(outside, data_file());
  EXPECT_THAT(fault(), HasSubstr("rank-00000.h5: is a symbolic link"));
  fs::remove(data_file());
  fs::create_directory(data_file());
  EXPECT_THAT(fault(), HasSubstr("rank-00000.h5: is not a regular file"));
  fs::remove(data_file());
  ASSERT_EQ(::mkfifo(data_file().c_str(), 0600), 0);
  EXPECT_THAT(fault(), HasSubstr("rank-00000.h5: is not a regular file"));
  fs::remove(data_file());
  EXPECT_THAT(fault(), HasSubstr("rank-00000.h5: cannot open: No such file"));
  fs::rename(outside, data_file());
  EXPECT_EQ(fault(), "");
  // A sub-folder, and a link to one.
  const fs::path part = folder_ / "part-000";
  fs::create_directory(part);
  fs::rename(data_file(), part / "rank-00000.h5");
  const auto move = [](json& m) { m["files"][0]["folder"] = "part-000"; };
  EXPECT_EQ(fault_after(move), "");
  fs::rename(part, scratch_.path() / "elsewhere");
  fs::create_directory_symlink(scratch_.path() / "elsewhere", part);
  EXPECT_THAT(fault(), HasSubstr("part-000: is a symbolic link"));
  fs::remove(part);
  fs::rename(scratch_.path() / "elsewhere" / "rank-00000.h5", data_file());
  forge(folder_, manifest_);
  EXPECT_EQ(fault(), "");
  fs::rename(folder_ / "manifest.json", outside);
  fs::create_symlink(outside, folder_ / "manifest.json");
  EXPECT_THAT(fault(), HasSubstr("manifest.json: is a symbolic link"));
}

/// Replaces dataset "n" (5 × uint16) and adapts the manifest to the new size.
class ForgedFileTest : public DamageTest {
 protected:
  std::string fault_with(const std::function<void(hid_t)>& make) {
    {
      const data::hdf5::Lock lock;
      const hid_t access = H5Pcreate(H5P_FILE_ACCESS);  // the format of save
      H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
      const hid_t file = H5Fopen(data_file().c_str(), H5F_ACC_RDWR, access);
      H5Pclose(access);
      EXPECT_GE(file, 0);
      EXPECT_GE(H5Ldelete(file, "n", H5P_DEFAULT), 0);
      make(file);
      EXPECT_GE(H5Fclose(file), 0);
    }
    return fault_after([&](json& m) { m["files"][0]["bytes"] = fs::file_size(data_file()); });
  }

  /// Dataset "n" of `extent` × `type` with a property list changed by `set`.
  static void make_dataset(hid_t file, hid_t type, hsize_t extent,
                           const std::function<void(hid_t)>& set) {
    const std::vector<std::uint16_t> values(64, 7);
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    set(list);
    const hsize_t unlimited = H5S_UNLIMITED;
    const bool chunked = H5Pget_layout(list) == H5D_CHUNKED;
    const hid_t space = H5Screate_simple(1, &extent, chunked ? &unlimited : nullptr);
    const hid_t dataset = H5Dcreate2(file, "n", type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    EXPECT_GE(dataset, 0);
    H5Dwrite(dataset, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(list);
  }
};

TEST_F(ForgedFileTest, SoftLink) {
  EXPECT_THAT(
      fault_with([](hid_t file) { H5Lcreate_soft("/m/v", file, "n", H5P_DEFAULT, H5P_DEFAULT); }),
      AllOf(HasSubstr("tensor n"), HasSubstr("is reached by a link")));
}

TEST_F(ForgedFileTest, ExternalLink) {
  const std::string target = (scratch_.path() / "elsewhere.h5").string();
  EXPECT_THAT(fault_with([&](hid_t file) {
                H5Lcreate_external(target.c_str(), "/n", file, "n", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("is reached by a link"));
}

TEST_F(ForgedFileTest, ExternalLinkAsAGroupOnTheWay) {
  EXPECT_THAT(fault_with([&](hid_t file) {
                H5Lcreate_external(data_file().c_str(), "/m", file, "way", H5P_DEFAULT,
                                   H5P_DEFAULT);
              }),
              HasSubstr("dataset n: is not in the file"));
  EXPECT_THAT(fault_after([&](json& m) {
                m["files"][0]["bytes"] = fs::file_size(data_file());
                m["pieces"][0]["dataset"] = "way/v";
              }),
              HasSubstr("dataset way/v: is reached by a link"));
}

TEST_F(ForgedFileTest, ExternalStorage) {
  const fs::path raw = scratch_.path() / "raw.bin";
  spill(raw, std::string(10, 'x'));
  EXPECT_THAT(fault_with([&](hid_t file) {
                make_dataset(file, H5T_STD_U16LE, 5,
                             [&](hid_t list) { H5Pset_external(list, raw.c_str(), 0, 10); });
              }),
              HasSubstr("/n: is stored in another way"));
}

TEST_F(ForgedFileTest, Virtual) {
  EXPECT_THAT(fault_with([&](hid_t file) {
                const hsize_t extent = 5;
                const hid_t space = H5Screate_simple(1, &extent, nullptr);
                make_dataset(file, H5T_STD_U16LE, 5, [&](hid_t list) {
                  H5Pset_virtual(list, space, data_file().c_str(), "/m/v", space);
                });
                H5Sclose(space);
              }),
              HasSubstr("/n: is stored in another way"));
}

TEST_F(ForgedFileTest, ChunkedWithFilter) {
  EXPECT_THAT(fault_with([](hid_t file) {
                make_dataset(file, H5T_STD_U16LE, 5, [](hid_t list) {
                  const hsize_t chunk = 4;
                  H5Pset_chunk(list, 1, &chunk);
                  H5Pset_deflate(list, 1);
                });
              }),
              HasSubstr("/n: is stored in another way"));
}

TEST_F(ForgedFileTest, Compact) {
  EXPECT_THAT(fault_with([](hid_t file) {
                make_dataset(file, H5T_STD_U16LE, 5,
                             [](hid_t list) { H5Pset_layout(list, H5D_COMPACT); });
              }),
              HasSubstr("is not contiguous"));
}

TEST_F(ForgedFileTest, NeverAllocated) {
  EXPECT_THAT(fault_with([](hid_t file) {
                const hsize_t extent = 5;
                const hid_t space = H5Screate_simple(1, &extent, nullptr);
                H5Dclose(H5Dcreate2(file, "n", H5T_STD_U16LE, space, H5P_DEFAULT, H5P_DEFAULT,
                                    H5P_DEFAULT));
                H5Sclose(space);
              }),
              HasSubstr("does not have [5] elements"));
}

TEST_F(ForgedFileTest, OtherTypesAndSizes) {
  EXPECT_THAT(fault_with([](hid_t file) { make_dataset(file, H5T_STD_U16BE, 5, [](hid_t) {}); }),
              HasSubstr("does not have the type bf16"));
  EXPECT_THAT(fault_with([](hid_t file) { make_dataset(file, H5T_STD_U16LE, 4, [](hid_t) {}); }),
              HasSubstr("does not have [5] elements"));
  EXPECT_THAT(fault_with([](hid_t file) { make_dataset(file, H5T_STD_U16LE, 6, [](hid_t) {}); }),
              HasSubstr("does not have [5] elements"));
  EXPECT_THAT(fault_with([](hid_t file) { make_dataset(file, H5T_STD_U16LE, 5, [](hid_t) {}); }),
              HasSubstr("do not match their checksum"))
      << "right in form, other data";
}

}  // namespace
}  // namespace trireme::checkpoint::test
