// Tensors whose elements are known functions of (seed, tensor, index), saved in random layouts.
#pragma once

#include <algorithm>
#include <array>
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

/// A whole logical tensor in memory: the reference.
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

/// Elements [begin, end) of the first dimension; of a scalar, its element.
inline Piece piece_of(Whole& whole, std::int64_t begin, std::int64_t end, bool write = true) {
  const Tensor all(whole.bytes.data(), whole.type, whole.shape);
  if (whole.shape.dimensions() == 0) return {whole.name, whole.shape, {}, all, write};
  return {whole.name, whole.shape, {begin}, all.slice(0, begin, end), write};
}
inline Piece piece_of(Whole& whole) {
  return piece_of(whole, 0, whole.shape.dimensions() == 0 ? 1 : whole.shape[0]);
}

struct Region {
  Index begin{};
  Shape extent;
};

inline Region region_of(const Shape& shape) { return {{}, shape}; }

/// A view of `whole` with its strides.
inline Piece piece_of(Whole& whole, const Region& region, bool write = true) {
  Tensor data(whole.bytes.data(), whole.type, whole.shape);
  for (int d = 0; d < whole.shape.dimensions(); ++d) {
    const std::int64_t begin = region.begin[static_cast<std::size_t>(d)];
    data = data.slice(d, begin, begin + region.extent[d]);
  }
  return {whole.name, whole.shape, region.begin, data, write};
}

/// Regions that partition `shape`, each a random split of an earlier one; some may be empty.
inline std::vector<Region> random_regions(const Shape& shape, int count, std::mt19937_64& random) {
  std::vector<Region> regions{region_of(shape)};
  if (shape.dimensions() == 0) return regions;
  while (static_cast<int>(regions.size()) < count) {
    Region& first = regions[random() % regions.size()];
    const auto d = static_cast<std::size_t>(random() % static_cast<unsigned>(shape.dimensions()));
    const auto at = static_cast<std::int64_t>(
        random() % static_cast<std::uint64_t>(first.extent[static_cast<int>(d)] + 1));
    Region second = first;
    first.extent[static_cast<int>(d)] = at;
    second.begin[d] += at;
    second.extent[static_cast<int>(d)] -= at;
    regions.push_back(second);
  }
  return regions;
}

inline Region random_region(const Shape& shape, std::mt19937_64& random) {
  return random_regions(shape, 1 + 2 * shape.dimensions(), random).back();
}

/// Reads a region into memory whose rows are `gap` elements apart, and compares with the reference;
/// elements between the rows must not change.
inline bool slice_is_right(const Reader& reader, const Whole& whole, const Region& region,
                           std::int64_t gap = 0) {
  const int dimensions = whole.shape.dimensions();
  std::array<std::int64_t, 4> strides{};
  std::int64_t stride = 1;
  for (int d = dimensions - 1; d >= 0; --d) {
    strides[static_cast<std::size_t>(d)] = stride;
    stride *= region.extent[d];
    if (d == dimensions - 1) stride += gap;
  }
  constexpr std::byte untouched{0x5a};
  std::vector<std::byte> got(whole.at(stride) + 1, untouched), expected = got;  // never null
  Tensor source(const_cast<std::byte*>(whole.bytes.data()), whole.type, whole.shape);
  for (int d = 0; d < dimensions; ++d) {
    const std::int64_t begin = region.begin[static_cast<std::size_t>(d)];
    source = source.slice(d, begin, begin + region.extent[d]);
  }
  // The reference: one element at a time, always four dimensions.
  std::array<std::int64_t, 4> n{1, 1, 1, 1};
  for (int d = 0; d < dimensions; ++d) n[static_cast<std::size_t>(d)] = region.extent[d];
  for (std::int64_t i = 0; i < n[0]; ++i) {
    for (std::int64_t j = 0; j < n[1]; ++j) {
      for (std::int64_t k = 0; k < n[2]; ++k) {
        for (std::int64_t l = 0; l < n[3]; ++l) {
          const std::array<std::int64_t, 4> at{i, j, k, l};
          std::int64_t from = 0, to = 0;
          for (int d = 0; d < dimensions; ++d) {
            const auto u = static_cast<std::size_t>(d);
            from += at[u] * source.stride(d);
            to += at[u] * strides[u];
          }
          std::memcpy(expected.data() + whole.at(to),
                      static_cast<const std::byte*>(source.data()) + whole.at(from),
                      size_of(whole.type));
        }
      }
    }
  }
  reader.read(whole.name, region.begin, Tensor(got.data(), whole.type, region.extent, strides));
  return got == expected;
}
/// Elements [begin, end) of the first dimension.
inline bool slice_is_right(const Reader& reader, const Whole& whole, std::int64_t begin,
                           std::int64_t end) {
  Region region = region_of(whole.shape);
  region.begin[0] = begin;
  region.extent[0] = end - begin;
  return slice_is_right(reader, whole, region);
}

inline void expect_all_right(const Reader& reader, const std::vector<Whole>& wholes) {
  ASSERT_EQ(reader.tensors().size(), wholes.size());
  for (const Whole& whole : wholes) {
    const Reader::Entry* entry = reader.find(whole.name);
    ASSERT_NE(entry, nullptr) << whole.name;
    EXPECT_EQ(entry->shape, whole.shape) << whole.name;
    EXPECT_EQ(entry->type, whole.type) << whole.name;
    EXPECT_TRUE(slice_is_right(reader, whole, region_of(whole.shape))) << whole.name;
  }
}

// A new file each time: ext4 flushes a truncated file when it is closed.
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

/// The manifest as JSON without its seal, and written back with a valid one, as a forger could.
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

/// The message of the Error that `work` throws; "" if it throws none.
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
