// A dataset on disk: a folder with dataset.json and HDF5 shards (docs/formats.md). Readers accept
// only the names, types and layouts that the writer makes, and verify the checksum of every chunk
// they read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme::data {

struct ShardInfo {
  std::string file;  // plain file name inside the folder
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  std::string xxh3;  // of the whole file, 16 hex digits
};

/// The contents of dataset.json.
struct Manifest {
  std::string name;
  std::string tokenizer;          // bytes, characters, sentencepiece, huggingface, or none
  std::int64_t vocabulary = 0;    // token ids are 0 … vocabulary − 1
  std::size_t element_bytes = 2;  // of a stored token: 2 or 4
  std::optional<std::int64_t> end_of_document;
  bool loss_weights = false;  // each token has one as a target, 0 or 1
  std::vector<ShardInfo> train, valid;
  nlohmann::json tokenizer_details;  // character map; or file's name and xxh3
};

enum class SplitName : std::uint8_t { train, valid };

/// All tokens of one split as one long sequence. Thread-safe; libhdf5 is called under one lock.
class TokenReader {
 public:
  virtual ~TokenReader() = default;
  virtual std::int64_t tokens() const = 0;
  /// Reads tokens [begin, begin + out.size()). Throws Error naming file and offset for a checksum
  /// that does not match, and for a token outside the vocabulary.
  virtual void read(std::int64_t begin, std::span<std::int32_t> out) = 0;
  /// Ends (exclusive, ascending, global offsets) of the documents that end in (begin, end].
  virtual std::vector<std::int64_t> document_ends(std::int64_t begin, std::int64_t end) = 0;
  /// Whether tokens have loss weights, and those of tokens [begin, begin + out.size()).
  virtual bool has_weights() const { return false; }
  virtual void weights(std::int64_t begin, std::span<std::byte> out);
};

/// Decoded chunks of several readers, the least recently used dropped first, and the last shards
/// that they opened.
class ReaderCache;
/// Keeps at most `bytes` of decoded chunks of tokens (at least four chunks), and half as much of
/// loss weights: those of as many tokens, with ids of 2 bytes. With ids of 2 bytes the default
/// holds a group of windows of the default size (data.group_mb), so that a random order decodes
/// each chunk once; with ids of 4 bytes it holds about half of one.
std::shared_ptr<ReaderCache> make_reader_cache(std::int64_t bytes = std::int64_t{288} << 20);

class Dataset {
 public:
  /// Reads and checks dataset.json and each shard's header; throws Error that names file and rule.
  static Dataset open(const std::filesystem::path& folder);
  /// The same without the headers of shards.
  static Dataset open_manifest(const std::filesystem::path& folder);
  /// Checks the headers of every `parts`-th shard, from number `part` on.
  void check_headers(std::size_t part = 0, std::size_t parts = 1) const;
  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// `cache`: null for one of its own.
  std::unique_ptr<TokenReader> reader(SplitName split,
                                      std::shared_ptr<ReaderCache> cache = nullptr) const;
  /// Re-reads every byte: whole-file hashes and every chunk. Throws the first fault found.
  void verify() const;

 private:
  std::filesystem::path folder_;
  Manifest manifest_;
};

}  // namespace trireme::data
