// The tokenizers behind the interface, and the one that prepare's options ask for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/prepare.hpp"
#include "trireme/data/tokenizer.hpp"

#include "documents.hpp"

namespace trireme::data {

/// Receives the bytes of the input that were read.
using ProgressReport = std::function<void(std::int64_t)>;

inline constexpr const char* model_file = "tokenizer.model";  // SentencePiece
inline constexpr std::int64_t most_model_bytes = std::int64_t{256} << 20;

/// 256 ids, and 256 for the end of a document when there is one.
std::unique_ptr<Tokenizer> bytes_tokenizer(bool end_of_document);

/// Ids 0 … n − 1 for the bytes `symbols` (ascending), and n for the end of a document.
std::unique_ptr<Tokenizer> characters_tokenizer(std::vector<std::uint8_t> symbols,
                                                bool end_of_document);

struct LoadedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::int64_t end_of_document = -1;
  std::map<std::string, std::int32_t> added;  // added tokens of a tokenizer.json
};

/// A SentencePiece model's own ids, and one more for the end of a document when there is one and
/// the model has no </s>. Throws Error that begins with `where` for a model that cannot give every
/// byte string back.
LoadedModel sentencepiece_tokenizer(const std::string& model, const std::string& where,
                                    bool end_of_document);

/// The ids of a tokenizer.json. Its end of a document is
/// its added token <|endoftext|>, <|end_of_text|> or </s>, the first that it has, or -1.
LoadedModel hugging_face_tokenizer(const std::string& json, const std::string& where);

/// A tokenizer's file from anywhere; symbolic links are followed.
std::string read_model(const std::filesystem::path& path);

/// "tokenizer_details" of a tokenizer that is a file.
nlohmann::json details_of_model(const std::string& file, const std::string& content);

/// Keeps SentencePiece from writing to standard error; its errors come back as status values.
void silence_sentencepiece();

/// Trains a BPE model of `vocabulary` ids on at most `sample_sentences` lines of `documents`,
/// chosen at random but the same each time; returns it serialized. `progress` receives bytes read.
std::string train_sentencepiece(DocumentStream& documents, std::int64_t input_bytes,
                                std::int64_t vocabulary, std::int64_t sample_sentences,
                                const ProgressReport& progress);

/// So that maps with text as their key can be searched with a view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

/// The length in bytes of the UTF-8 character at the front of `text`, or 0 if none that is valid.
std::size_t utf8_length(std::string_view text);

struct Chosen {
  std::unique_ptr<Tokenizer> tokenizer;  // none for tokens that come without one
  std::int64_t vocabulary = 0;
  std::optional<std::int64_t> end_of_document;
  nlohmann::json details = nlohmann::json::object();
};

/// Characters are counted, and SentencePiece models trained, before anything is encoded.
bool needs_first_pass(const std::string& tokenizer);

/// For text, which has `ends` of documents to mark or has not. A model is kept in `folder`. Throws
/// Error naming the option.
Chosen choose_tokenizer(const PrepareOptions& options, bool ends, DocumentStream documents,
                        std::int64_t bytes, const std::filesystem::path& folder,
                        const ProgressReport& progress);

/// For tokens: a tokenizer that is a file, or a vocabulary alone.
Chosen choose_for_tokens(const PrepareOptions& options, const std::filesystem::path& folder);

}  // namespace trireme::data
