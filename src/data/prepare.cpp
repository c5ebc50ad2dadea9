#include "trireme/data/prepare.hpp"

#include <array>
#include <charconv>
#include <optional>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/data/tokenizer.hpp"

#include "documents.hpp"
#include "manifest.hpp"
#include "sharder.hpp"
#include "spool.hpp"
#include "tokenizers.hpp"
#include "work_folder.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

/// Characters are counted, and SentencePiece models trained, before anything is encoded.
bool needs_first_pass(const std::string& tokenizer) {
  return tokenizer == "characters" ||
         (tokenizer.starts_with("sentencepiece:") &&
          tokenizer.find_first_not_of("0123456789", 14) == std::string::npos);
}

void check(const PrepareOptions& options) {
  const double fraction = options.valid_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    throw Error("--valid-fraction {}: must be at least 0 and below 1; use 0.1", fraction);
  }
  if (options.shard_tokens < 1) {
    throw Error("--shard-tokens {}: must be at least 1; use {}", options.shard_tokens,
                PrepareOptions{}.shard_tokens);
  }
  if (options.sample_sentences < 1) {
    throw Error("--sample-sentences {}: must be at least 1; use {}", options.sample_sentences,
                PrepareOptions{}.sample_sentences);
  }
}

/// The output folder without "." parts and a slash at the end, so that it has a name and a parent.
fs::path plain_output(const PrepareOptions& options) {
  fs::path output = options.output.lexically_normal();
  if (!output.has_filename()) output = output.parent_path();
  if (output.filename().empty() || output.filename() == "." || output.filename() == "..") {
    throw Error("--output {}: names no new folder; name one, for example data/text",
                options.output.string());
  }
  return output;
}

/// Passes over the input and the whole of the work, for the progress callback.
class Progress {
 public:
  using Report = std::function<void(std::int64_t, std::int64_t)>;
  Progress(const Report& report, std::int64_t bytes, int passes)
      : report_(report), bytes_(bytes), passes_(passes) {}
  void operator()(std::int64_t bytes_read) const {
    if (report_) report_(done_ + bytes_read, bytes_ * passes_);
  }
  void end_pass() {
    done_ += bytes_;
    operator()(0);
  }

 private:
  const Report& report_;
  std::int64_t bytes_, done_ = 0;
  int passes_;
};

struct Chosen {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<std::int64_t> end_of_document;
  nlohmann::json details;
};

std::vector<std::uint8_t> bytes_that_occur(DocumentStream& documents, const Progress& progress) {
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

/// "sentencepiece:8000" trains; "sentencepiece:FILE" loads. The model is kept in `folder`.
Chosen choose_sentencepiece(const PrepareOptions& options, const std::string& argument, bool ends,
                            DocumentStream& documents, std::int64_t bytes, const fs::path& folder,
                            const Progress& progress) {
  std::int64_t vocabulary = 0;
  const char* const last = argument.data() + argument.size();
  const auto [stop, code] = std::from_chars(argument.data(), last, vocabulary);
  std::string model;
  std::string where = argument;
  if (stop == last) {
    if (code != std::errc{} || vocabulary < 1 || vocabulary > 10'000'000) {
      throw Error("--tokenizer {}: the vocabulary must be from 1 to 10000000; use 8000",
                  options.tokenizer);
    }
    where = options.tokenizer;
    model = train_sentencepiece(documents, bytes, vocabulary, options.sample_sentences, progress);
  } else {
    InputFile file(argument);
    if (file.size() > most_model_bytes) {
      throw Error("{}: is not a SentencePiece model; name one or use sentencepiece:VOCAB",
                  argument);
    }
    model.resize(static_cast<std::size_t>(file.size()));
    model.resize(file.read(model.data(), model.size()));
  }
  LoadedModel loaded = sentencepiece_tokenizer(model, where, ends);
  write_file(folder / model_file, model);
  Xxh3 hash;
  hash.update(model.data(), model.size());
  Chosen chosen{std::move(loaded.tokenizer), {}, {{"model", model_file}, {"xxh3", hash.hex()}}};
  if (ends) chosen.end_of_document = loaded.end_of_document;
  return chosen;
}

Chosen choose_tokenizer(const PrepareOptions& options, bool ends, DocumentStream documents,
                        std::int64_t bytes, const fs::path& folder, const Progress& progress) {
  Chosen chosen;
  chosen.details = nlohmann::json::object();
  const std::string& kind = options.tokenizer;
  if (kind == "bytes") {
    chosen.tokenizer = bytes_tokenizer(ends);
  } else if (kind == "characters") {
    std::vector<std::uint8_t> symbols = bytes_that_occur(documents, progress);
    chosen.details["bytes"] = symbols;
    chosen.tokenizer = characters_tokenizer(std::move(symbols), ends);
  } else if (kind.starts_with("sentencepiece:") && kind.size() > 14) {
    return choose_sentencepiece(options, kind.substr(14), ends, documents, bytes, folder, progress);
  } else {
    throw Error(
        "--tokenizer {}: must be bytes, characters, sentencepiece:VOCAB or sentencepiece:FILE; for "
        "example sentencepiece:8000",
        kind);
  }
  if (ends) chosen.end_of_document = chosen.tokenizer->vocabulary() - 1;
  return chosen;
}

/// Encodes every document into the spool. Pieces are cut where that does not change the tokens.
void encode(DocumentStream& documents, const Chosen& chosen, Spool& spool,
            const Progress& progress) {
  std::string pending;
  std::int64_t begin = 0;  // of the document, in tokens
  DocumentStream::Piece piece;
  while (documents.next(piece)) {
    pending += piece.text;
    const std::size_t stable =
        piece.ends_document ? pending.size() : chosen.tokenizer->stable_prefix(pending);
    spool.append(chosen.tokenizer->encode(std::string_view(pending).substr(0, stable)));
    pending.erase(0, stable);
    if (piece.ends_document && spool.tokens() > begin) {
      if (chosen.end_of_document) {
        const auto end = static_cast<std::int32_t>(*chosen.end_of_document);
        spool.append({&end, 1});
      }
      spool.end_document();
      begin = spool.tokens();
    }
    progress(documents.bytes_read());
  }
}

/// The dataset's own fields; the shards are added later.
Manifest manifest_of(const PrepareOptions& options, const fs::path& output, const Chosen& chosen) {
  Manifest manifest;
  manifest.name = options.name.empty() ? output.filename().string() : options.name;
  manifest.tokenizer = chosen.tokenizer->kind();
  manifest.vocabulary = chosen.tokenizer->vocabulary();
  manifest.element_type = manifest.vocabulary <= (std::int64_t{1} << 16) ? "uint16" : "uint32";
  manifest.end_of_document = chosen.end_of_document;
  manifest.tokenizer_details = chosen.details;
  return manifest;
}

void write_manifest(const Manifest& manifest, const fs::path& folder) {
  const std::string text = to_text(manifest);
  parse_manifest(text, (folder / manifest_file).string());  // what is written can be read
  write_file(folder / manifest_file, text);
}

}  // namespace

Manifest prepare(const PrepareOptions& options,
                 const std::function<void(std::int64_t, std::int64_t)>& progress) {
  check(options);
  const fs::path output = plain_output(options);
  const DocumentKind kind = DocumentKind::parse(options.documents);
  const std::int64_t bytes = total_bytes(options.inputs);
  const bool ends = kind.unit != DocumentKind::Unit::file || options.inputs.size() > 1;

  const SizeLimitGuard guard;
  WorkFolder folder(output);
  Progress steps(progress, bytes, needs_first_pass(options.tokenizer) ? 2 : 1);
  const Chosen chosen = choose_tokenizer(options, ends, DocumentStream(options.inputs, kind), bytes,
                                         folder.path(), steps);
  if (needs_first_pass(options.tokenizer)) steps.end_pass();

  Manifest manifest = manifest_of(options, output, chosen);
  Spool spool(folder.path(), element_bytes(manifest));
  DocumentStream documents(options.inputs, kind);
  encode(documents, chosen, spool, steps);
  spool.finish();
  const std::int64_t train = training_tokens(spool, options.valid_fraction);
  if (train == 0) {
    throw Error("--input {}: {} documents of {} tokens in all; a dataset needs more text",
                options.inputs.front().string(), spool.documents(), spool.tokens());
  }
  Sharder sharder(spool, folder.path(), options.shard_tokens);
  manifest.train = sharder.write(SplitName::train, train);
  manifest.valid = sharder.write(SplitName::valid, spool.tokens() - train);
  spool.remove();
  write_manifest(manifest, folder.path());
  folder.commit();
  return manifest;
}

}  // namespace trireme::data
