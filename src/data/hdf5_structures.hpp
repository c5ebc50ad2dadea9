// What check_structure reads: the bytes of a file's structures, and the messages of object headers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/files.hpp"

namespace trireme::data::hdf5 {

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

/// Reads structures of a file, each inside of it, and no more than a sound file has in all.
class Structures {
 public:
  explicit Structures(const InputFile& file);
  std::uint64_t size() const { return size_; }  // of the file, in bytes
  Bytes read(std::uint64_t at, std::uint64_t size);
  /// The block after the four bytes of its `signature`.
  Bytes block(std::uint64_t at, std::uint64_t size, const char* signature);

 private:
  const InputFile& file_;
  std::uint64_t size_;
  std::uint64_t budget_;  // bytes that may still be read
};

std::uint64_t checked_product(std::uint64_t a, std::uint64_t b);

/// Reads a message of an object header; throws Fault for what this program does not
/// write. Continuations are the caller's.
void take_message(std::uint64_t type, Bytes& body, std::uint64_t file_bytes, Object& found);

/// A link message's content.
void take_link(Bytes& body, Object& found);

/// Appends the links that a group keeps in a fractal heap, named in order in a B-tree of version 2.
void take_dense_links(Structures& structures, Object& found);

}  // namespace trireme::data::hdf5
