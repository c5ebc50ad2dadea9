#include "trireme/data/tokenizer.hpp"

#include <array>
#include <optional>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/data/hash.hpp"

#include "tokenizers.hpp"

namespace trireme::data {
namespace {

/// Single bytes: all 256 of them, or those that occur in a text.
class ByteMap : public Tokenizer {
 public:
  ByteMap(std::string kind, std::vector<std::uint8_t> symbols, bool end_of_document)
      : kind_(std::move(kind)), symbols_(std::move(symbols)), end_of_document_(end_of_document) {
    ids_.fill(-1);
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      ids_[symbols_[i]] = static_cast<std::int32_t>(i);
    }
  }

  std::string kind() const override { return kind_; }
  std::int64_t vocabulary() const override {
    return static_cast<std::int64_t>(symbols_.size()) + (end_of_document_ ? 1 : 0);
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(text[i]);
      ids[i] = ids_[byte];
      if (ids[i] < 0) {
        const bool print = byte > 0x20 && byte < 0x7F;
        throw Error(
            "text: byte {} (0x{:02x}{}): does not occur in the text that the dataset was "
            "made from; leave it out",
            i, byte, print ? fmt::format(", '{}'", static_cast<char>(byte)) : "");
      }
    }
    return ids;
  }

 private:
  std::string bytes_of(std::int32_t id) const override {
    const auto symbol = static_cast<std::size_t>(id);
    return symbol < symbols_.size() ? std::string(1, static_cast<char>(symbols_[symbol])) : "";
  }

  std::string kind_;
  std::vector<std::uint8_t> symbols_;
  bool end_of_document_;
  std::array<std::int32_t, 256> ids_{};
};

std::vector<std::uint8_t> symbols_from(const nlohmann::json& details, const std::string& where) {
  std::vector<std::uint8_t> symbols;
  bool right = details.is_object() && details.size() == 1 && details.contains("bytes") &&
               details["bytes"].is_array() && details["bytes"].size() <= 256;
  if (right) {
    int before = -1;
    for (const nlohmann::json& entry : details["bytes"]) {
      right = right && entry.is_number_unsigned() && entry.get<std::uint64_t>() < 256 &&
              static_cast<int>(entry.get<std::uint64_t>()) > before;
      if (!right) break;
      before = entry.get<int>();
      symbols.push_back(static_cast<std::uint8_t>(before));
    }
  }
  if (!right) {
    throw Error("{}: \"tokenizer_details\" is not an ascending list of bytes; prepare again",
                where);
  }
  return symbols;
}

std::string file_of_kind(const std::string& kind) {
  if (kind == "huggingface") return tokenizer_json_file;
  if (kind == "sentencepiece") return model_file;
  throw Error("tokenizer {}: has no file", kind);
}

/// The tokenizer's file, which must be the one that the manifest names.
std::string model_from(const Manifest& manifest, const std::filesystem::path& folder,
                       const std::string& where) {
  const std::string name = file_of_kind(manifest.tokenizer);
  const nlohmann::json& details = manifest.tokenizer_details;
  const bool right = details.is_object() && details.size() == 2 && details.contains("model") &&
                     details["model"] == name && details.contains("xxh3") &&
                     details["xxh3"].is_string();
  if (!right) {
    throw Error("{}: \"tokenizer_details\" does not name {} and its hash; prepare again", where,
                name);
  }
  const std::filesystem::path file = folder / name;
  std::string model = read_small_file(file, most_model_bytes);
  if (const std::string hash = hash_text(model); hash != details["xxh3"].get<std::string>()) {
    throw Error("{}: its hash is {}, not the one that was noted; restore the file or prepare again",
                file.string(), hash);
  }
  return model;
}

/// The tokenizer's part of dataset.json.
nlohmann::json description_of(const Manifest& manifest) {
  nlohmann::json description = {{"tokenizer", manifest.tokenizer},
                                {"tokenizer_details", manifest.tokenizer_details},
                                {"vocabulary", manifest.vocabulary},
                                {"end_of_document", nullptr}};
  if (manifest.end_of_document) description["end_of_document"] = *manifest.end_of_document;
  return description;
}

}  // namespace

std::size_t Tokenizer::encode_stable(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::vector<std::int32_t> all = encode(text);
  ids.insert(ids.end(), all.begin(), all.end());
  return text.size();
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocabulary()) {
      throw Error("token {}: is outside the vocabulary of {}; use the dataset's own tokens", id,
                  vocabulary());
    }
    text += bytes_of(id);
  }
  return text;
}

std::string read_model(const std::filesystem::path& path) {
  InputFile file(path);
  if (file.size() > most_model_bytes) {
    throw Error("{}: has {} bytes, too many for a tokenizer; name another file", path.string(),
                file.size());
  }
  std::string model(static_cast<std::size_t>(file.size()), '\0');
  model.resize(file.read(model.data(), model.size()));
  return model;
}

nlohmann::json details_of_model(const std::string& file, const std::string& content) {
  return {{"model", file}, {"xxh3", hash_text(content)}};
}

std::unique_ptr<Tokenizer> bytes_tokenizer(bool end_of_document) {
  std::vector<std::uint8_t> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i);
  return std::make_unique<ByteMap>("bytes", std::move(all), end_of_document);
}

std::unique_ptr<Tokenizer> characters_tokenizer(std::vector<std::uint8_t> symbols,
                                                bool end_of_document) {
  return std::make_unique<ByteMap>("characters", std::move(symbols), end_of_document);
}

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const auto follows = [&](std::size_t i, std::uint8_t low = 0x80, std::uint8_t high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    // No overlong forms, no surrogates.
    const std::uint8_t low = first == 0xE0 ? 0xA0 : 0x80;
    const std::uint8_t high = first == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const std::uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

std::unique_ptr<Tokenizer> load_tokenizer(const Manifest& manifest,
                                          const std::filesystem::path& folder) {
  const std::string where = (folder / "dataset.json").string();
  const bool ends = manifest.end_of_document.has_value();
  if (manifest.tokenizer == "none") {
    throw Error(
        "{}: has tokens and no tokenizer; prepare again with --tokenizer "
        "huggingface:tokenizer.json",
        folder.string());
  }
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<std::int64_t> end_of_document;  // where the tokenizer defines it
  if (manifest.tokenizer == "huggingface") {
    const std::string model = model_from(manifest, folder, where);
    tokenizer = hugging_face_tokenizer(model, (folder / tokenizer_json_file).string()).tokenizer;
  } else if (manifest.tokenizer == "sentencepiece") {
    const std::string model = model_from(manifest, folder, where);
    LoadedModel loaded = sentencepiece_tokenizer(model, (folder / model_file).string(), ends);
    tokenizer = std::move(loaded.tokenizer);
    end_of_document = loaded.end_of_document;
  } else if (manifest.tokenizer == "bytes") {
    tokenizer = bytes_tokenizer(ends);
    end_of_document = tokenizer->vocabulary() - 1;
  } else if (manifest.tokenizer == "characters") {
    tokenizer = characters_tokenizer(symbols_from(manifest.tokenizer_details, where), ends);
    end_of_document = tokenizer->vocabulary() - 1;
  } else {
    throw Error("{}: tokenizer {} is not known; prepare again", where, manifest.tokenizer);
  }
  if (tokenizer->vocabulary() != manifest.vocabulary ||
      (ends && end_of_document && *manifest.end_of_document != *end_of_document)) {
    throw Error(
        "{}: \"vocabulary\" or \"end_of_document\" does not fit its tokenizer; prepare again",
        where);
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> load_tokenizer(const Dataset& dataset) {
  return load_tokenizer(dataset.manifest(), dataset.folder());
}

StoredTokenizer stored_tokenizer(const Manifest& manifest, const std::filesystem::path& folder) {
  StoredTokenizer stored{description_of(manifest), {}, {}};
  if (manifest.tokenizer == "huggingface" || manifest.tokenizer == "sentencepiece") {
    stored.file = file_of_kind(manifest.tokenizer);
    stored.content = model_from(manifest, folder, folder.string());
  }
  return stored;
}

StoredTokenizer stored_hugging_face(const std::filesystem::path& file) {
  StoredTokenizer stored{{}, tokenizer_json_file, read_model(file)};
  const LoadedModel loaded = hugging_face_tokenizer(stored.content, file.string());
  Manifest manifest;
  manifest.tokenizer = "huggingface";
  manifest.vocabulary = loaded.tokenizer->vocabulary();
  if (loaded.end_of_document >= 0) manifest.end_of_document = loaded.end_of_document;
  manifest.tokenizer_details = details_of_model(stored.file, stored.content);
  stored.description = description_of(manifest);
  return stored;
}

}  // namespace trireme::data
