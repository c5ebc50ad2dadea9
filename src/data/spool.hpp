// Where prepare keeps tokens, document ends and loss weights until their numbers, and so the split,
// are known: plain files; and from there to shards. Memory does not grow with the text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/files.hpp"
#include "trireme/data/dataset.hpp"

namespace trireme::data {

class Spool {
 public:
  Spool(const std::filesystem::path& folder, std::size_t element_bytes, bool has_weights = false);
  /// `weight`: of these tokens as targets, 0 or 1; 1 without weights.
  void append(std::span<const std::int32_t> tokens, std::uint8_t weight = 1);
  /// Whether it has tokens behind the last document.
  bool in_document() const { return tokens_ > document_begin_; }
  void end_document();  // at the present number of tokens, if it has any
  void finish();
  void remove();
  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  std::size_t element_bytes() const { return element_bytes_; }
  const std::filesystem::path& tokens_file() const { return tokens_file_; }
  const std::filesystem::path& ends_file() const { return ends_file_; }
  /// Absent: none.
  const std::optional<std::filesystem::path>& weights_file() const { return weights_file_; }

 private:
  std::size_t element_bytes_;
  std::filesystem::path tokens_file_, ends_file_;
  std::optional<std::filesystem::path> weights_file_;
  OutputFile tokens_out_, ends_out_;
  std::optional<OutputFile> weights_out_;
  std::int64_t tokens_ = 0, documents_ = 0, document_begin_ = 0;
};

/// A part of a file, read from front to end in pieces.
class RangeReader {
 public:
  explicit RangeReader(const std::filesystem::path& file)
      : file_(std::make_shared<InputFile>(file)), end_(file_->size()) {}
  /// Bytes [begin, begin + bytes), which must be in the file.
  RangeReader(std::shared_ptr<const InputFile> file, std::int64_t begin, std::int64_t bytes)
      : file_(std::move(file)), at_(begin), end_(begin + bytes) {}
  /// Up to `most` bytes into `data`; 0 at the end. Throws Error also when the file has shrunk.
  std::size_t read(void* data, std::size_t most);

  /// Whether nothing is left for read() and next().
  bool done() const { return at_ == end_ && taken_ == buffer_.size(); }
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
  std::int64_t at_ = 0, end_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;
};

/// The number of tokens of the training split. One document is cut at ⌊(1 − fraction)·tokens⌋; of
/// several, the boundary nearest to that is taken which leaves a document on both sides.
std::int64_t training_tokens(const Spool& spool, double valid_fraction);

/// Reads the spool once, from front to end, and writes it as shards of at most `shard_tokens`.
class Sharder {
 public:
  Sharder(const Spool& spool, const std::filesystem::path& folder, std::int64_t shard_tokens);
  /// The next `tokens` tokens of the spool, as the shards of `split`.
  std::vector<ShardInfo> write(SplitName split, std::int64_t tokens);

 private:
  ShardInfo write_shard(const std::string& file, std::int64_t tokens);

  std::size_t element_bytes_;
  std::filesystem::path folder_;
  std::int64_t shard_tokens_;
  InputFile tokens_;
  std::optional<InputFile> weights_;
  RangeReader counter_, ends_;      // the first runs ahead by a shard, to count
  std::int64_t begin_ = 0;          // of the next shard, in tokens of the spool
  std::int64_t counted_end_, end_;  // the next document end of each
};

}  // namespace trireme::data
