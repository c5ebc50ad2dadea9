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

inline constexpr const char* tokenizer_json_file = "tokenizer.json";

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;         // as in dataset.json
  virtual std::int64_t vocabulary() const = 0;  // with the end-of-document token, if any
  /// Throws Error for bytes that the tokenizer cannot express (`characters` only). Thread-safe.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Appends the tokens of text[0, k) and returns k: the longest for which encode(text) =
  /// encode(text[0, k)) + encode(text[k, …)) whatever text follows, so that a stream may be cut
  /// there. At least text.size() − 128 Ki.
  virtual std::size_t encode_stable(std::string_view text, std::vector<std::int32_t>& ids) const;
  /// The end-of-document token and a model's control tokens decode to no bytes, those of a
  /// tokenizer.json to their own text. Throws Error for an id outside the vocabulary. Thread-safe.
  std::string decode(const std::vector<std::int32_t>& ids) const;

 private:
  /// The bytes of an id of the vocabulary.
  virtual std::string bytes_of(std::int32_t id) const = 0;
};

/// The tokenizer that a dataset was made with, from the dataset's own files. Throws Error when it
/// has none.
std::unique_ptr<Tokenizer> load_tokenizer(const Dataset& dataset);
std::unique_ptr<Tokenizer> load_tokenizer(const Manifest& manifest,
                                          const std::filesystem::path& folder);

/// A tokenizer outside a dataset: its description from dataset.json, and its file.
struct StoredTokenizer {
  nlohmann::json description;  // tokenizer, tokenizer_details, vocabulary, end_of_document
  std::string file, content;   // "" where the description is all
};
StoredTokenizer stored_tokenizer(const Manifest& manifest, const std::filesystem::path& folder);

/// A tokenizer.json of a GPT-2 or Llama-3 kind. Throws Error that names what is not supported.
StoredTokenizer stored_hugging_face(const std::filesystem::path& file);

/// A description as a manifest without shards, for load_tokenizer and the folder of its file.
/// Throws Error that begins with `where`.
Manifest described_tokenizer(const nlohmann::json& description, const std::string& where);

}  // namespace trireme::data
