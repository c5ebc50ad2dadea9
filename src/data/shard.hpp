// One HDF5 file of tokens: /tokens and /document_ends, in chunks that Fletcher32 guards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/data/hdf5.hpp"

namespace trireme::data {

inline constexpr std::int64_t chunk_elements = std::int64_t{1} << 16;

/// Fletcher's checksum as HDF5 stores it behind each chunk: sums modulo 65535 of big-endian 16-bit
/// words, and of their running sums. `data` has an even number of bytes, at most 2 Mi.
std::uint32_t fletcher32(std::span<const std::byte> data);

/// An open shard whose header agrees with the manifest. Not thread-safe.
class ShardReader {
 public:
  ShardReader(const std::filesystem::path& folder, const Manifest& manifest,
              const ShardInfo& shard);
  std::int64_t tokens() const { return columns_[0].size; }
  std::int64_t documents() const { return columns_[1].size; }
  /// Chunk number `chunk` of /tokens as stored (little-endian elements), checksum and ids checked.
  std::vector<std::byte> token_chunk(std::int64_t chunk) const;
  /// Chunk of /document_ends: exclusive ends inside this shard, checked to ascend within (0,
  /// tokens].
  std::vector<std::uint64_t> end_chunk(std::int64_t chunk) const;

 private:
  struct Column {
    std::string name;
    hdf5::Handle dataset;
    std::int64_t size = 0;  // elements
    std::size_t element_bytes = 0;
  };
  std::vector<std::byte> read_chunk(const Column& column, std::int64_t chunk) const;
  void check_ids(std::span<const std::byte> chunk, std::int64_t first) const;

  std::string what_;  // its path, which opens the message of every Error
  std::int64_t vocabulary_;
  hdf5::Handle file_;
  std::array<Column, 2> columns_;
};

/// Writes one shard of a known size; the counts appended must come out equal to it.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, std::int64_t tokens, std::int64_t documents,
              std::size_t element_bytes);
  /// Elements of `element_bytes` each. All calls but the last bring whole chunks.
  void append_tokens(std::span<const std::byte> elements);
  void append_ends(std::span<const std::uint64_t> ends);
  void finish();  // closes and fsyncs

 private:
  std::filesystem::path path_;
  std::size_t element_bytes_;
  hdf5::Handle file_, tokens_, ends_;
  std::int64_t tokens_left_, ends_left_, tokens_done_ = 0, ends_done_ = 0;
};

}  // namespace trireme::data
