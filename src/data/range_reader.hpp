// A part of a file, read from front to end in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "trireme/core/files.hpp"

namespace trireme::data {

class RangeReader {
 public:
  /// Bytes [begin, begin + bytes), which must be in the file.
  RangeReader(std::shared_ptr<const InputFile> file, std::int64_t begin, std::int64_t bytes)
      : file_(std::move(file)), at_(begin), end_(begin + bytes) {}
  /// Up to `most` bytes into `data`; 0 at the end. Throws Error also when the file has shrunk.
  std::size_t read(void* data, std::size_t most);

  /// The next element of a range of elements of type T. There must be one.
  template <class T>
  T next() {
    if (taken_ == buffer_.size()) {
      buffer_.resize((std::size_t{1} << 16) * sizeof(T));
      buffer_.resize(read(buffer_.data(), buffer_.size()));
      taken_ = 0;
    }
    T value{};
    std::copy_n(buffer_.data() + taken_, sizeof(T), reinterpret_cast<std::byte*>(&value));
    taken_ += sizeof(T);
    return value;
  }

 private:
  std::shared_ptr<const InputFile> file_;
  std::int64_t at_, end_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;
};

}  // namespace trireme::data
