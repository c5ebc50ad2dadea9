// The tokenizer that prepare's options ask for.
#include <array>
#include <charconv>
#include <limits>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

#include "tokenizers.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view sentencepiece_prefix = "sentencepiece:";
constexpr std::string_view huggingface_prefix = "huggingface:";

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), last, number);
  if (stop != last || code != std::errc{} || number < 0) return std::nullopt;
  return number;
}

std::vector<std::uint8_t> bytes_that_occur(DocumentStream& documents,
                                           const ProgressReport& progress) {
  std::array<bool, 256> seen{};
  DocumentStream::Piece piece;
  while (documents.next(piece)) {
    for (const char c : piece.text) seen[static_cast<std::uint8_t>(c)] = true;
    progress(documents.bytes_read());
  }
  std::vector<std::uint8_t> symbols;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) symbols.push_back(static_cast<std::uint8_t>(i));
  }
  return symbols;
}

/// Keeps the tokenizer's file in the dataset.
Chosen chosen_model(LoadedModel loaded, const char* file, const std::string& content,
                    const fs::path& folder) {
  write_file(folder / file, content);
  Chosen chosen;
  chosen.vocabulary = loaded.tokenizer->vocabulary();
  chosen.tokenizer = std::move(loaded.tokenizer);
  chosen.details = details_of_model(file, content);
  return chosen;
}

Chosen keep_sentencepiece(const std::string& model, const std::string& source, bool ends,
                          const fs::path& folder) {
  LoadedModel loaded = sentencepiece_tokenizer(model, source, ends);
  const std::int64_t end = loaded.end_of_document;
  Chosen chosen = chosen_model(std::move(loaded), model_file, model, folder);
  if (ends) chosen.end_of_document = end;
  return chosen;
}

/// "sentencepiece:8000" trains; "sentencepiece:FILE" loads.
Chosen choose_sentencepiece(const PrepareOptions& options, const std::string& argument, bool ends,
                            DocumentStream& documents, std::int64_t bytes, const fs::path& folder,
                            const ProgressReport& progress) {
  if (!needs_first_pass(options.tokenizer)) {
    return keep_sentencepiece(read_model(argument), argument, ends, folder);
  }
  const std::int64_t vocabulary = whole_number(argument).value_or(0);
  if (vocabulary < 1 || vocabulary > 10'000'000) {
    throw Error("--tokenizer {}: the vocabulary must be from 1 to 10000000; use 8000",
                options.tokenizer);
  }
  const std::string model =
      train_sentencepiece(documents, bytes, vocabulary, options.sample_sentences, progress);
  return keep_sentencepiece(model, options.tokenizer, ends, folder);
}

/// The id that --end-of-document names: a number, or an added token's text.
std::int64_t named_end(const std::string& wanted, std::int64_t vocabulary,
                       const std::map<std::string, std::int32_t>& added) {
  const auto token = added.find(wanted);
  const auto number = whole_number(wanted);
  const std::int64_t id = token != added.end() ? token->second : number.value_or(-1);
  if (token == added.end() && !number) {
    throw Error("--end-of-document {}: is no added token of the tokenizer; use its id, or none",
                wanted);
  }
  if (id >= vocabulary) {
    throw Error("--end-of-document {}: is outside the vocabulary of {}; use an id below it", wanted,
                vocabulary);
  }
  return id;
}

/// `own`: mark ends with the tokenizer's usual token where no option names one.
Chosen load_hugging_face(const PrepareOptions& options, bool own, bool must,
                         const fs::path& folder) {
  fs::path file = options.tokenizer.substr(huggingface_prefix.size());
  if (fs::is_directory(file)) file /= tokenizer_json_file;
  const std::string json = read_model(file);
  LoadedModel loaded = hugging_face_tokenizer(json, file.string());
  const std::map<std::string, std::int32_t> added = loaded.added;
  const std::int64_t usual = loaded.end_of_document;
  Chosen chosen = chosen_model(std::move(loaded), tokenizer_json_file, json, folder);
  const std::string& wanted = options.end_of_document;
  if (!wanted.empty() && wanted != "none") {
    chosen.end_of_document = named_end(wanted, chosen.vocabulary, added);
  } else if (wanted.empty() && own && usual >= 0) {
    chosen.end_of_document = usual;
  } else if (wanted.empty() && own && must) {
    throw Error(
        "--tokenizer {}: has no <|endoftext|>, <|end_of_text|> or </s> to end documents with; name "
        "its token with --end-of-document, or none",
        options.tokenizer);
  }
  return chosen;
}

}  // namespace

bool needs_first_pass(const std::string& tokenizer) {
  return tokenizer == "characters" ||
         (tokenizer.starts_with(sentencepiece_prefix) &&
          tokenizer.find_first_not_of("0123456789", sentencepiece_prefix.size()) ==
              std::string::npos);
}

Chosen choose_tokenizer(const PrepareOptions& options, bool ends, DocumentStream documents,
                        std::int64_t bytes, const fs::path& folder,
                        const ProgressReport& progress) {
  if (options.vocabulary != 0) {
    throw Error("--vocabulary {}: is for token files; text has its tokenizer's: leave it out",
                options.vocabulary);
  }
  const std::string& kind = options.tokenizer;
  if (kind.starts_with(huggingface_prefix) && kind.size() > huggingface_prefix.size()) {
    return load_hugging_face(options, ends, true, folder);
  }
  if (!options.end_of_document.empty() && options.end_of_document != "none") {
    throw Error("--end-of-document {}: --tokenizer {} has its own; leave it out, or use none",
                options.end_of_document, kind.empty() ? "bytes" : kind);
  }
  ends = ends && options.end_of_document != "none";
  Chosen chosen;
  if (kind == "bytes" || kind.empty()) {
    chosen.tokenizer = bytes_tokenizer(ends);
  } else if (kind == "characters") {
    std::vector<std::uint8_t> symbols = bytes_that_occur(documents, progress);
    chosen.details["bytes"] = symbols;
    chosen.tokenizer = characters_tokenizer(std::move(symbols), ends);
  } else if (kind.starts_with(sentencepiece_prefix) && kind.size() > sentencepiece_prefix.size()) {
    return choose_sentencepiece(options, kind.substr(sentencepiece_prefix.size()), ends, documents,
                                bytes, folder, progress);
  } else {
    throw Error(
        "--tokenizer {}: must be bytes, characters, sentencepiece:VOCAB, sentencepiece:FILE or "
        "huggingface:FILE; for example sentencepiece:8000",
        kind);
  }
  chosen.vocabulary = chosen.tokenizer->vocabulary();
  if (ends) chosen.end_of_document = chosen.vocabulary - 1;
  return chosen;
}

Chosen choose_for_tokens(const PrepareOptions& options, const fs::path& folder) {
  const std::string& kind = options.tokenizer;
  const std::string& wanted = options.end_of_document;
  const bool none = wanted == "none" || wanted.empty();
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (options.vocabulary < 0 || options.vocabulary > most) {
    throw Error("--vocabulary {}: must be from 1 to {}; use the tokenizer's", options.vocabulary,
                most);
  }
  if (kind.empty() == (options.vocabulary == 0)) {
    throw Error(
        "--input-format: token files need either --tokenizer huggingface:FILE or --vocabulary N; "
        "for example --vocabulary 50257 --end-of-document 50256");
  }
  if (kind.starts_with(huggingface_prefix)) return load_hugging_face(options, true, false, folder);
  Chosen chosen;
  if (kind.starts_with(sentencepiece_prefix) && !needs_first_pass(kind)) {
    const std::string file = kind.substr(sentencepiece_prefix.size());
    chosen = keep_sentencepiece(read_model(file), file, !none, folder);
    if (!none && *chosen.end_of_document != named_end(wanted, chosen.vocabulary, {})) {
      throw Error("--end-of-document {}: the tokenizer's is {}; use that, or none", wanted,
                  *chosen.end_of_document);
    }
    return chosen;
  }
  if (!kind.empty()) {
    throw Error(
        "--tokenizer {}: tokens are there already; name the tokenizer that made them, "
        "huggingface:FILE or sentencepiece:FILE, or --vocabulary",
        kind);
  }
  chosen.vocabulary = options.vocabulary;
  if (!none) chosen.end_of_document = named_end(wanted, chosen.vocabulary, {});
  return chosen;
}

}  // namespace trireme::data
