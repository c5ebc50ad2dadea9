// Checks a file before libhdf5 opens it. The library trusts much of what files hold about
// themselves, checksums or not: its versions 1.10 have known faults on hostile ones. So files that
// are only read are walked first, and may hold nothing but what our own writers make.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/files.hpp"

namespace trireme::data::hdf5 {

/// Walks all structure of `file` from its superblock on: groups, links, datasets, attributes and
/// indices of chunks are inside the file, have the sizes that they claim, and are of the kinds that
/// this program writes (superblock 3 and its object headers, links in headers or in a heap with a
/// B-tree, fixed-size types, single chunks and fixed arrays of them). Checksums are left to the
/// library. Throws Error that begins with the file's path. Format: "HDF5 File Format Specification
/// Version 3.0".
void check_structure(const InputFile& file);

// What the walk (hdf5_check.cpp) and the messages of object headers (hdf5_messages.cpp) share.

inline constexpr std::uint64_t nowhere = ~std::uint64_t{0};

/// Why a file is refused; the walk adds where.
struct Fault {
  std::string text;
  bool known = false;  // a rule of ours in full, rather than damage
};

[[noreturn]] inline void damaged(const std::string& what) { throw Fault{what}; }

/// Little-endian numbers from a stretch of bytes, which they never pass.
class Bytes {
 public:
  explicit Bytes(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}
  std::size_t left() const { return bytes_.size() - at_; }
  std::uint64_t number(std::size_t size) {
    need(size);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      value |= static_cast<std::uint64_t>(bytes_[at_ + i]) << (8 * i);
    }
    at_ += size;
    return value;
  }
  std::string text(std::size_t size) {
    need(size);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return text;
  }
  Bytes part(std::size_t size) {
    need(size);
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += size;
    return Bytes({begin, begin + static_cast<std::ptrdiff_t>(size)});
  }
  void skip(std::uint64_t size) {
    need(size);
    at_ += size;
  }
  void expect(std::uint64_t value, std::size_t size, const char* what) {
    if (number(size) != value) damaged(what);
  }

 private:
  void need(std::uint64_t size) const {
    if (size > left()) damaged("a structure ends before its content");
  }
  std::vector<std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// What an object's header holds about a dataset.
struct Object {
  std::vector<std::uint64_t> extents, chunk;
  bool filtered = false;
  std::uint64_t chunk_index = nowhere;                       // of a fixed array
  std::uint64_t heap = nowhere, names = nowhere;             // of a group with many links
  std::vector<std::pair<std::string, std::uint64_t>> links;  // hard ones
};

std::uint64_t checked_product(std::uint64_t a, std::uint64_t b);

/// Reads a message of an object header other than a continuation; throws Fault for what this
/// program does not write.
void take_message(std::uint64_t type, Bytes& body, std::uint64_t file_bytes, Object& found);

/// A link message's content.
void take_link(Bytes& body, Object& found);

}  // namespace trireme::data::hdf5
