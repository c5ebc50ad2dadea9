// Text to token ids and back; decode(encode(x)) = x for every byte string.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;         // as in dataset.json
  virtual std::int64_t vocabulary() const = 0;  // with the end-of-document token, if any
  /// Throws Error for bytes that the tokenizer cannot express (`characters` only). Thread-safe.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// The end-of-document token and a model's control tokens stand for no bytes. Throws Error for an
  /// id outside the vocabulary. Thread-safe.
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  /// The longest k for which encode(text) = encode(text[0, k)) + encode(text[k, …)) whatever text
  /// follows: where a stream may be cut without changing its tokens. At least text.size() − 128 Ki.
  virtual std::size_t stable_prefix(std::string_view text) const { return text.size(); }
};

/// The tokenizer that a dataset was made with, from the dataset's own files.
std::unique_ptr<Tokenizer> load_tokenizer(const Dataset& dataset);
std::unique_ptr<Tokenizer> load_tokenizer(const Manifest& manifest,
                                          const std::filesystem::path& folder);

}  // namespace trireme::data
