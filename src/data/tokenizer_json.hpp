// tokenizer.json of Hugging Face's tokenizers, as far as it is a byte-level BPE.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "byte_pairs.hpp"

namespace trireme::data {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool normalized = false;  // looked for behind those that are not
  bool special = false;
};

struct TokenizerJson {
  std::vector<std::string> tokens;  // by id: its bytes
  std::vector<bool> in_model;       // by id: can come out of the model, not only as an added token
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::string pattern;         // of the pre-tokenizer, in Oniguruma's syntax
  bool ignore_merges = false;  // a pre-token that is a token is that token
};

/// Longest content of an added token, in bytes.
inline constexpr std::size_t longest_added_token = 1024;

/// Throws Error that begins with `where` and names the first part that would not be computed alike:
/// nothing is passed over. The post-processor, which only puts special tokens round a text, is not
/// applied to training text; its kind is checked all the same.
TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& where);

}  // namespace trireme::data
