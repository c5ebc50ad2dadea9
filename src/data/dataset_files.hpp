// The files of a dataset: dataset.json, which is a Manifest as text, and shards, HDF5 files with
// /tokens, /document_ends and perhaps /loss_weights in chunks that Fletcher32 guards.
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

inline constexpr const char* manifest_file = "dataset.json";
inline constexpr const char* format_name = "trireme-tokens";
/// Version 2 has loss weights.
constexpr std::uint64_t format_version(const Manifest& manifest) {
  return manifest.loss_weights ? 2 : 1;
}

std::string name_of(SplitName split);  // "train", "valid"

/// "train-00000.h5": the only name that shard `index` of a split may have.
std::string shard_file(SplitName split, std::size_t index);

const std::vector<ShardInfo>& shards_of(const Manifest& manifest, SplitName split);

/// JSON whose first value is the xxh3 of all that follows it.
std::string to_text(const Manifest& manifest);

/// Throws Error that begins with `where` for anything but what `to_text` writes.
Manifest parse_manifest(const std::string& text, const std::string& where);
/// 1 to 255 bytes that stay on one line where errors print them.
bool is_plain_text(const std::string& text);

inline constexpr std::int64_t chunk_elements = std::int64_t{1} << 16;

/// Fletcher's checksum as HDF5 stores it behind each chunk: sums modulo 65535 of big-endian 16-bit
/// words, and of their running sums; a last single byte is the upper half of a word. `data` has at
/// most 2 Mi bytes.
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
  /// Chunk of /loss_weights, where the dataset has them: of each token as a target, 0 or 1.
  std::vector<std::byte> weight_chunk(std::int64_t chunk) const;

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
  std::vector<Column> columns_;  // tokens, document ends, perhaps loss weights
};

/// Writes one shard of a known size; the counts appended must come out equal to it.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, std::int64_t tokens, std::int64_t documents,
              std::size_t element_bytes, bool has_weights = false);
  /// Elements of `element_bytes` each. All calls but the last bring whole chunks.
  void append_tokens(std::span<const std::byte> elements);
  void append_ends(std::span<const std::uint64_t> ends);
  /// As many as tokens, a byte each.
  void append_weights(std::span<const std::byte> weights);
  void finish();  // closes and fsyncs

 private:
  struct Column {
    hid_t type;  // in memory
    hdf5::Handle dataset;
    std::int64_t left = 0, done = 0;  // elements
  };
  void append(Column& column, const void* elements, std::size_t count);

  std::filesystem::path path_;
  std::size_t element_bytes_;
  hdf5::Handle file_;
  Column tokens_, ends_, weights_;  // the last one unused without weights
};

}  // namespace trireme::data
