// HDF5 files as fuzz inputs. Metadata checksums would block nearly every mutation: `seal` corrects
// them after bytes were changed.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "fuzz.hpp"

namespace trireme::fuzz {

/// The bytes, extended with zeros to the end-of-file address, up to 1 MiB in all.
inline std::vector<std::uint8_t> with_zeros(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> bytes(data, data + size);
  std::uint64_t end = 0;
  if (size >= 48) std::memcpy(&end, data + 28, sizeof end);
  if (end > size && end <= (std::uint64_t{1} << 20)) bytes.resize(end);
  return bytes;
}

/// Bob Jenkins's lookup3 "hashlittle" with initial value 0, HDF5's checksum of metadata.
inline std::uint32_t lookup3(const std::uint8_t* data, std::size_t size) {
  const auto rotated = [](std::uint32_t x, int k) { return x << k | x >> (32 - k); };
  std::uint32_t a = 0xdeadbeefU + static_cast<std::uint32_t>(size), b = a, c = a;
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4 && at + i < size; ++i) {
      value |= static_cast<std::uint32_t>(data[at + i]) << (8 * i);
    }
    return value;
  };
  std::size_t at = 0;
  for (; size - at > 12; at += 12) {
    a += word(at), b += word(at + 4), c += word(at + 8);
    a -= c, a ^= rotated(c, 4), c += b;
    b -= a, b ^= rotated(a, 6), a += c;
    c -= b, c ^= rotated(b, 8), b += a;
    a -= c, a ^= rotated(c, 16), c += b;
    b -= a, b ^= rotated(a, 19), a += c;
    c -= b, c ^= rotated(b, 4), b += a;
  }
  if (at == size) return c;
  a += word(at), b += word(at + 4), c += word(at + 8);
  c ^= b, c -= rotated(b, 14);
  a ^= c, a -= rotated(c, 11);
  b ^= a, b -= rotated(a, 25);
  c ^= b, c -= rotated(b, 16);
  a ^= c, a -= rotated(c, 4);
  b ^= a, b -= rotated(a, 14);
  c ^= b, c -= rotated(b, 24);
  return c;
}

struct Counts {
  std::uint64_t records = 0, entries = 0;  // from the last head of an index
};

/// Where the checksummed part of the block at `at` ends, by its own header; 0 for unknown blocks.
inline std::size_t end_of_block(const std::vector<std::uint8_t>& file, std::size_t at,
                                Counts& counts) {
  const auto number = [&](std::size_t from, int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes && from + static_cast<std::size_t>(i) < file.size(); ++i) {
      value |= static_cast<std::uint64_t>(file[from + static_cast<std::size_t>(i)]) << (8 * i);
    }
    return value;
  };
  const std::string_view name(reinterpret_cast<const char*>(file.data()) + at, 4);
  if (name == "\x89HDF") return at + 44;
  if (name == "OHDR") {
    const std::uint64_t flags = number(at + 5, 1);
    const int width = 1 << (flags & 3U);
    const std::size_t sized =
        at + 6 + ((flags & 0x20U) != 0 ? 16 : 0) + ((flags & 0x10U) != 0 ? 4 : 0);
    return sized + static_cast<std::size_t>(width) + number(sized, width);
  }
  if (name == "FAHD") {
    counts.entries = number(at + 6, 1) * number(at + 8, 8);
    return at + 24;
  }
  if (name == "FADB") return at + 14 + counts.entries;
  if (name == "FRHP") return at + 142;
  if (name == "BTHD") {
    counts.records = number(at + 24, 2);
    return at + 34;
  }
  if (name == "BTLF") return at + 6 + 11 * counts.records;
  return 0;
}

/// Corrects the checksums of the superblock, of object headers and of the heads of indices.
inline void seal(std::vector<std::uint8_t>& file) {
  Counts counts;
  for (std::size_t at = 0; at + 8 <= file.size(); ++at) {
    if (file[at] != 'O' && file[at] != 'F' && file[at] != 'B' && (at != 0 || file[at] != 0x89))
      continue;
    const std::size_t end = end_of_block(file, at, counts);
    if (end <= at || end > file.size() || file.size() - end < 4) continue;
    const std::uint32_t sum = lookup3(file.data() + at, end - at);
    std::memcpy(file.data() + end, &sum, sizeof sum);
  }
}

}  // namespace trireme::fuzz
