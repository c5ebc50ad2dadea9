// Token files of other trainers: llm.c's, nanoGPT's and Megatron-LM's. Nothing that a header holds
// is trusted: sizes must be exact, and every token is compared with the vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spool.hpp"

namespace trireme::data {

/// How a file stores a token: a little-endian number of 1, 2, 4 or 8 bytes.
struct TokenType {
  std::int64_t bytes = 2;
  bool is_signed = false;
};

/// One run of tokens, checked but for the tokens themselves.
struct TokenInput {
  std::filesystem::path file;   // of the tokens
  std::filesystem::path index;  // Megatron's .idx, or ""
  std::int64_t offset = 0;      // of the first token, in bytes
  std::int64_t tokens = 0;
  TokenType type;
  std::int64_t bytes() const { return tokens * type.bytes; }
};

/// The index of Megatron-LM's token files (megatron/core/datasets/indexed_dataset.py), read from
/// front to end: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences N, u64 documents + 1 D; N i32
/// lengths in tokens, N i64 offsets in bytes, D i64 sequence numbers at which documents begin, the
/// last being N; and, for multimodal data, N i8 modes.
class MegatronIndex {
 public:
  /// Throws Error for an index that does not fit a file of `data_bytes`.
  MegatronIndex(const std::filesystem::path& path, std::int64_t data_bytes);
  static bool recognizes(const std::filesystem::path& path);
  TokenType type() const { return type_; }
  std::int64_t tokens() const { return data_bytes_ / type_.bytes; }
  /// The end of the next document, in tokens of the file; one may be empty. −1 behind the last,
  /// when all of the index has been found to be consistent.
  std::int64_t next_end();

 private:
  void finish();
  std::filesystem::path path_;
  std::int64_t data_bytes_;
  TokenType type_;
  std::int64_t sequences_ = 0, documents_ = 0;  // as the header counts them
  std::int64_t sequence_ = 0, document_ = 0;    // read so far
  std::int64_t tokens_ = 0;                     // in the sequences read so far
  std::unique_ptr<RangeReader> lengths_, offsets_, begins_, modes_;
};

/// Opens a file, or pair of files, of one format.
using OpenTokens = TokenInput (*)(const std::filesystem::path&);

/// What --input-format asks for: null for "text"; for "auto" llm.c and Megatron by their magic
/// numbers, and text otherwise. Throws Error for a mixture, and for a .bin file of unknown format.
OpenTokens token_format(const std::string& wanted,
                        const std::vector<std::filesystem::path>& inputs);

/// Megatron's pairs may be named by either file, or both. Throws Error naming file and rule.
std::vector<TokenInput> open_token_files(OpenTokens open,
                                         const std::vector<std::filesystem::path>& inputs);

/// Copies all tokens in order. Documents are Megatron's own; elsewhere one ends behind each
/// `end_of_document` that has other tokens before it, files being one stream, or, without that id,
/// with its file. `progress` receives bytes done. Throws Error for a token outside the vocabulary,
/// naming file and token, and for an index that does not fit its tokens.
void copy_tokens(const std::vector<TokenInput>& inputs, std::int64_t vocabulary,
                 std::optional<std::int64_t> end_of_document, Spool& spool,
                 const std::function<void(std::int64_t)>& progress);

}  // namespace trireme::data
