// The index of Megatron-LM's token files (megatron/core/datasets/indexed_dataset.py):
// "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences N, u64 documents + 1 D; N i32 lengths in
// tokens, N i64 offsets in bytes, D i64 sequence numbers at which documents begin, the last being
// N; and, for multimodal data, N i8 modes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "range_reader.hpp"
#include "token_files.hpp"

namespace trireme::data {

/// Reads an index from front to end. Throws Error for one that does not fit a file of `data_bytes`.
class MegatronIndex {
 public:
  MegatronIndex(const std::filesystem::path& path, std::int64_t data_bytes);
  TokenType type() const { return type_; }
  std::int64_t tokens() const { return data_bytes_ / element_bytes_; }
  /// The end of the next document, in tokens of the file; one may be empty. −1 behind the last,
  /// when all of the index has been found to be consistent.
  std::int64_t next_end();

 private:
  void finish();
  std::filesystem::path path_;
  std::int64_t data_bytes_, element_bytes_ = 0;
  TokenType type_{};
  std::int64_t sequences_ = 0, documents_ = 0;  // as the header counts them
  std::int64_t sequence_ = 0, document_ = 0;    // read so far
  std::int64_t tokens_ = 0;                     // in the sequences read so far
  std::unique_ptr<RangeReader> lengths_, offsets_, begins_, modes_;
};

/// The bytes of one element.
std::int64_t bytes_of(TokenType type);

}  // namespace trireme::data
