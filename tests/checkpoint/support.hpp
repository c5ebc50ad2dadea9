// Tensors whose elements are known functions of (seed, tensor, index), saved in made-up layouts.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/hash.hpp"

#include "support/files.hpp"

namespace trireme::checkpoint::test {

namespace fs = std::filesystem;
using nlohmann::json;
using trireme::test::FileSizeLimit;
using trireme::test::read_text;
using trireme::test::Scratch;

/// A whole logical tensor in memory: the oracle.
struct Whole {
  std::string name;
  Shape shape;
  DType type;
  std::vector<std::byte> bytes;

  std::int64_t elements() const { return shape.elements(); }
  std::size_t at(std::int64_t element) const {
    return static_cast<std::size_t>(element) * size_of(type);
  }
};

inline Whole make_whole(const std::string& name, const Shape& shape, DType type,
                        std::uint64_t seed) {
  Whole whole{name, shape, type, {}};
  whole.bytes.resize(whole.at(shape.elements()));
  std::mt19937_64 random(seed ^ std::hash<std::string>{}(name));
  for (std::byte& byte : whole.bytes) byte = static_cast<std::byte>(random() & 0xff);
  return whole;
}

inline Piece piece_of(Whole& whole, std::int64_t begin, std::int64_t end, bool write = true) {
  return {whole.name, whole.shape, begin,
          Tensor(whole.bytes.data() + whole.at(begin), whole.type, {end - begin}), write};
}

/// Cuts of [0, elements): random, ascending, with both ends; some pieces may be empty.
inline std::vector<std::int64_t> random_cuts(std::int64_t elements, int pieces,
                                             std::mt19937_64& random) {
  std::vector<std::int64_t> cuts{0, elements};
  for (int i = 1; i < pieces; ++i) {
    cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, elements)(random));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Reads [begin, end) and compares with the oracle.
inline bool slice_is_right(const Reader& reader, const Whole& whole, std::int64_t begin,
                           std::int64_t end) {
  std::vector<std::byte> got(whole.at(end - begin) + 1);  // never null
  reader.read(whole.name, begin, Tensor(got.data(), whole.type, {end - begin}));
  got.pop_back();
  return std::equal(got.begin(), got.end(),
                    whole.bytes.begin() + static_cast<std::ptrdiff_t>(whole.at(begin)));
}

inline void expect_all_right(const Reader& reader, const std::vector<Whole>& wholes) {
  ASSERT_EQ(reader.tensors().size(), wholes.size());
  for (const Whole& whole : wholes) {
    const Reader::Entry* entry = reader.find(whole.name);
    ASSERT_NE(entry, nullptr) << whole.name;
    EXPECT_EQ(entry->shape, whole.shape) << whole.name;
    EXPECT_EQ(entry->type, whole.type) << whole.name;
    EXPECT_TRUE(slice_is_right(reader, whole, 0, whole.elements())) << whole.name;
  }
}

// A new file each time: ext4 writes a file that was cut to nothing to the disk when it is closed.
inline void spill(const fs::path& path, const std::string& text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline void flip_bit(const fs::path& path, std::size_t byte, int bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(byte));
  const auto value = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(value);
}

/// The manifest as JSON, without its seal, and back with a proper one: what a forger can do.
inline json manifest_of(const fs::path& folder) {
  json manifest = json::parse(read_text(folder / "manifest.json"));
  manifest.erase("manifest_xxh3");
  return manifest;
}

inline void write_sealed(const fs::path& folder, const std::string& rest) {
  data::Xxh3 hash;
  hash.update(rest.data(), rest.size());
  spill(folder / "manifest.json", "{\"manifest_xxh3\": \"" + hash.hex() + "\",\n" + rest);
}

inline void forge(const fs::path& folder, const json& manifest) {
  write_sealed(folder, manifest.dump().substr(1));
}

/// The message of the Error that `work` throws; "" when it throws none.
template <class Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::size_t entries_below(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace trireme::checkpoint::test
