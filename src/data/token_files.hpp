// Token files of other trainers: llm.c's, nanoGPT's and Megatron-LM's. Nothing that a header holds
// is trusted: sizes must be exact, and every token is compared with the vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "spool.hpp"

namespace trireme::data {

enum class TokenFormat : std::uint8_t { llmc, nanogpt, megatron };

enum class TokenType : std::uint8_t { u8, i16, u16, i32, u32, i64 };

/// One run of tokens, checked but for the tokens themselves.
struct TokenInput {
  std::filesystem::path file;   // of the tokens
  std::filesystem::path index;  // Megatron's .idx, or ""
  std::int64_t offset = 0;      // of the first token, in bytes
  std::int64_t tokens = 0;
  TokenType type = TokenType::u16;
  std::int64_t bytes() const;
};

/// What --input-format asks for: nothing for "text"; for "auto" llm.c and Megatron by their magic
/// numbers, and text otherwise. Throws Error for a mixture, and for a .bin file of unknown format.
std::optional<TokenFormat> token_format(const std::string& wanted,
                                        const std::vector<std::filesystem::path>& inputs);

/// Megatron's pairs may be named by either file, or both. Throws Error naming file and rule.
std::vector<TokenInput> open_token_files(TokenFormat format,
                                         const std::vector<std::filesystem::path>& inputs);

/// Copies all tokens in order. Documents are Megatron's own; elsewhere one ends behind each
/// `end_of_document` that has other tokens before it, files being one stream, or, without that id,
/// with its file. `progress` receives bytes done. Throws Error for a token outside the vocabulary,
/// naming file and token, and for an index that does not fit its tokens.
void copy_tokens(const std::vector<TokenInput>& inputs, std::int64_t vocabulary,
                 std::optional<std::int64_t> end_of_document, Spool& spool,
                 const std::function<void(std::int64_t)>& progress);

}  // namespace trireme::data
