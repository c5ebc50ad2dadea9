// Where prepare keeps tokens, document ends and loss weights until their numbers, and so the split,
// are known: plain files; and from there to shards. Memory does not grow with the text. A part of
// the inputs has a spool of its own, so that several ranks encode, and a restart keeps what is
// done.
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

/// The tokens of one part of the inputs: the files PREFIX.tokens, PREFIX.ends and, with weights,
/// PREFIX.weights.
class Spool {
 public:
  Spool(const std::filesystem::path& prefix, std::size_t element_bytes, bool has_weights = false);
  /// `weight`: of these tokens as targets, 0 or 1; 1 without weights.
  void append(std::span<const std::int32_t> tokens, std::uint8_t weight = 1);
  /// Whether it has tokens behind the last document.
  bool in_document() const { return tokens_ > document_begin_; }
  void end_document();  // at the present number of tokens, if it has any
  /// Closes the files, and renames them to those of `prefix`.
  void finish(const std::filesystem::path& prefix);
  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }

 private:
  std::filesystem::path prefix_;
  std::size_t element_bytes_;
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

/// The finished spools of all parts, one behind the other.
class Spools {
 public:
  struct Part {
    std::filesystem::path prefix;
    std::int64_t tokens = 0, documents = 0;
  };
  Spools(std::vector<Part> parts, std::size_t element_bytes, bool has_weights);
  std::int64_t tokens() const { return begins_.back(); }
  std::int64_t documents() const { return document_begins_.back(); }
  std::size_t element_bytes() const { return element_bytes_; }
  bool has_weights() const { return has_weights_; }

  /// The elements, or weights, of tokens [begin, begin + count).
  void read_tokens(std::int64_t begin, std::int64_t count, std::vector<std::byte>& elements) const;
  void read_weights(std::int64_t begin, std::int64_t count, std::vector<std::byte>& weights) const;
  /// How many documents end in the first `token` tokens: numbers of documents are in the order of
  /// their ends.
  std::int64_t documents_until(std::int64_t token) const;
  /// Ends of documents [first, first + count).
  std::vector<std::int64_t> ends(std::int64_t first, std::int64_t count) const;
  /// Removes their files.
  void remove() const;

 private:
  /// Reads `element_bytes` for each token of a column of files into `out`.
  void read(const char* column, std::size_t element_bytes, std::int64_t begin, std::int64_t count,
            std::vector<std::byte>& out) const;

  std::vector<Part> parts_;
  std::vector<std::int64_t> begins_ = {0};           // first token of each part, and the end
  std::vector<std::int64_t> document_begins_ = {0};  // likewise of documents
  std::size_t element_bytes_;
  bool has_weights_;
};

/// The number of tokens of the training split. One document is cut at ⌊(1 − fraction)·tokens⌋; of
/// several, the boundary nearest to that is taken which leaves a document on both sides.
std::int64_t training_tokens(const Spools& spools, double valid_fraction);

/// A shard that is to be written.
struct ShardPlan {
  std::string file;
  std::int64_t begin = 0, tokens = 0;
};
/// Those of a split of the tokens [begin, begin + tokens).
std::vector<ShardPlan> plan_shards(SplitName split, std::int64_t begin, std::int64_t tokens,
                                   std::int64_t shard_tokens);
/// Adds the number of its tokens that have a loss to `learned`.
ShardInfo write_shard(const Spools& spools, const ShardPlan& plan,
                      const std::filesystem::path& folder, std::int64_t& learned);

}  // namespace trireme::data
