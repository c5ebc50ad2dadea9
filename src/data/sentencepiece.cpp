// SentencePiece behind the Tokenizer interface. The library drops invalid UTF-8 and takes U+2581
// for a space; both go round it, byte by byte, through the model's byte pieces, and every result is
// compared with the text before it is used, so that decode(encode(x)) = x holds for every x.
#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <sentencepiece_processor.h>

#include "trireme/core/error.hpp"

#include "tokenizers.hpp"

namespace trireme::data {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581
// Texts are encoded in stretches that end behind a newline or, for longer lines, before the last
// space of this many bytes: tokens then depend on the text alone, not on how it was read.
constexpr std::size_t longest_stretch = std::size_t{64} << 10;

/// The length of the stretch at the front of `text`; 0 if what follows may still change it.
std::size_t stretch_length(std::string_view text) {
  const std::string_view window = text.substr(0, longest_stretch);
  const std::size_t newline = window.find('\n');
  if (newline != std::string_view::npos) return newline + 1;
  if (text.size() <= longest_stretch) return 0;
  const std::size_t space = window.rfind(' ');
  if (space != std::string_view::npos && space > 0) return space;
  std::size_t cut = longest_stretch;  // not inside a character
  while (cut > longest_stretch - 3 && (static_cast<std::uint8_t>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut;
}

/// The length of what the library can take at the front of `text`: valid UTF-8 without NUL and
/// U+2581.
std::size_t plain_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto byte = static_cast<std::uint8_t>(text[at]);
    const std::size_t length = byte < 0x80 ? (byte != 0) : utf8_length(text.substr(at, 4));
    if (length == 0 || (length == 3 && text.substr(at, 3) == space_mark)) break;
    at += length;
  }
  return at;
}

std::string with_spaces(std::string_view piece) {
  std::string bytes;
  while (!piece.empty()) {
    const bool space = piece.starts_with(space_mark);
    bytes += space ? ' ' : piece.front();
    piece.remove_prefix(space ? space_mark.size() : 1);
  }
  return bytes;
}

// Just enough of protobuf's wire format to read a model's settings.
struct ProtoField {
  std::uint64_t number = 0, value = 0;
  std::string_view bytes;
};

std::optional<std::uint64_t> take_varint(std::string_view& rest) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(rest.front());
    rest.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

std::optional<ProtoField> take_field(std::string_view& rest) {
  const auto tag = take_varint(rest);
  if (!tag) return std::nullopt;
  ProtoField field{*tag >> 3, 0, {}};
  std::size_t skipped = 0;
  switch (*tag & 7) {
    case 0: {
      const auto value = take_varint(rest);
      if (!value) return std::nullopt;
      field.value = *value;
      return field;
    }
    case 1:
      skipped = 8;
      break;
    case 2: {
      const auto size = take_varint(rest);
      if (!size || *size > rest.size()) return std::nullopt;
      skipped = *size;
      break;
    }
    case 5:
      skipped = 4;
      break;
    default:
      return std::nullopt;
  }
  if (skipped > rest.size()) return std::nullopt;
  field.bytes = rest.substr(0, skipped);
  rest.remove_prefix(skipped);
  return field;
}

/// ModelProto.normalizer_spec; the defaults are the format's.
struct NormalizerSettings {
  bool maps_characters = false, dummy_prefix = true, removes_spaces = true, escapes_spaces = true;
};

NormalizerSettings normalizer_settings(std::string_view model) {
  NormalizerSettings settings;
  while (const auto field = take_field(model)) {
    if (field->number != 3) continue;
    std::string_view spec = field->bytes;
    while (const auto entry = take_field(spec)) {
      if (entry->number == 2) settings.maps_characters = !entry->bytes.empty();
      if (entry->number == 3) settings.dummy_prefix = entry->value != 0;
      if (entry->number == 4) settings.removes_spaces = entry->value != 0;
      if (entry->number == 5) settings.escapes_spaces = entry->value != 0;
    }
  }
  return settings;
}

void refuse_if(bool fault, const std::string& where, std::string_view what) {
  if (!fault) return;
  throw Error(
      "{}: cannot give every text back: {}; train it with --normalization_rule_name=identity "
      "--add_dummy_prefix=false --remove_extra_whitespaces=false --byte_fallback=true",
      where, what);
}

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(const std::string& model, const std::string& where, bool end_of_document) {
    silence_sentencepiece();
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok()) {
      throw Error("{}: is not a SentencePiece model; name one or use sentencepiece:VOCAB", where);
    }
    const NormalizerSettings settings = normalizer_settings(model);
    refuse_if(settings.maps_characters, where, "it replaces characters (normalization)");
    refuse_if(settings.dummy_prefix, where, "it puts a space before the text (add_dummy_prefix)");
    refuse_if(settings.removes_spaces, where, "it removes spaces (remove_extra_whitespaces)");
    refuse_if(!settings.escapes_spaces, where, "it does not mark spaces (escape_whitespaces)");
    read_pieces(where);
    size_ = processor_.GetPieceSize();
    if (end_of_document) {
      end_of_document_ = processor_.eos_id() >= 0 ? processor_.eos_id() : size_++;
    }
  }

  std::string kind() const override { return "sentencepiece"; }
  std::int64_t vocabulary() const override { return size_; }
  std::int64_t end_of_document() const { return end_of_document_; }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 3);
    const std::lock_guard guard(mutex_);
    while (!text.empty()) {
      const std::size_t length = stretch_length(text);
      const std::string_view stretch = text.substr(0, length == 0 ? text.size() : length);
      text.remove_prefix(stretch.size());
      encode_stretch(stretch, ids);
    }
    return ids;
  }

  std::size_t encode_stable(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::lock_guard guard(mutex_);
    std::size_t done = 0;
    while (const std::size_t length = stretch_length(text.substr(done))) {
      encode_stretch(text.substr(done, length), ids);
      done += length;
    }
    return done;
  }

 private:
  std::string bytes_of(std::int32_t id) const override {
    const auto piece = static_cast<std::size_t>(id);
    return piece < pieces_.size() ? pieces_[piece] : "";
  }

  /// The bytes of each id, the ids of the bytes, and whether words are independent.
  void read_pieces(const std::string& where) {
    byte_ids_.fill(-1);
    const int count = processor_.GetPieceSize();
    pieces_.resize(static_cast<std::size_t>(count));
    for (int id = 0; id < count; ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      std::string& bytes = pieces_[static_cast<std::size_t>(id)];
      if (processor_.IsByte(id)) {
        // "<0x0A>"
        const auto value = static_cast<std::uint8_t>(std::stoul(piece.substr(3, 2), nullptr, 16));
        byte_ids_[value] = id;
        bytes = static_cast<char>(value);
      } else if (!processor_.IsControl(id) && !processor_.IsUnknown(id)) {
        bytes = with_spaces(piece);
        words_ = words_ && bytes.find_first_of(" \n", 1) == std::string::npos;
      }
    }
    for (const std::int32_t id : byte_ids_) {
      refuse_if(id < 0, where, "it has no tokens for single bytes (byte_fallback)");
    }
  }

  void encode_stretch(std::string_view text, std::vector<std::int32_t>& ids) const {
    while (!text.empty()) {
      const std::size_t plain = plain_length(text);
      if (plain == 0) {
        append_bytes(text.substr(0, 1), ids);
        text.remove_prefix(1);
        continue;
      }
      encode_plain(text.substr(0, plain), ids);
      text.remove_prefix(plain);
    }
  }

  /// When no piece reaches across the front of a space or newline, words can be encoded one by one
  /// with the same result, and most words have been seen before.
  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
    if (!words_) {
      const std::vector<std::int32_t> found = ask_library(text);
      ids.insert(ids.end(), found.begin(), found.end());
      return;
    }
    while (!text.empty()) {
      const std::string_view word = text.substr(0, text.find_first_of(" \n", 1));
      text.remove_prefix(word.size());
      auto known = cache_.find(word);
      if (known == cache_.end()) {
        if (cache_.size() == most_cached) cache_.clear();
        known = cache_.emplace(word, ask_library(word)).first;
      }
      ids.insert(ids.end(), known->second.begin(), known->second.end());
    }
  }

  std::vector<std::int32_t> ask_library(std::string_view text) const {
    std::vector<std::int32_t> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok() || !gives_back(ids, text)) {
      ids.clear();
      append_bytes(text, ids);
    }
    return ids;
  }

  bool gives_back(const std::vector<std::int32_t>& ids, std::string_view text) const {
    for (const std::int32_t id : ids) {
      const std::string& piece = pieces_[static_cast<std::size_t>(id)];
      if (!text.starts_with(piece)) return false;
      text.remove_prefix(piece.size());
    }
    return text.empty();
  }

  void append_bytes(std::string_view text, std::vector<std::int32_t>& ids) const {
    for (const char c : text) ids.push_back(byte_ids_[static_cast<std::uint8_t>(c)]);
  }

  static constexpr std::size_t most_cached = 200'000;

  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> pieces_;
  std::array<std::int32_t, 256> byte_ids_{};
  bool words_ = true;
  std::int32_t size_ = 0;
  std::int64_t end_of_document_ = -1;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::vector<std::int32_t>, TextHash, std::equal_to<>>
      cache_;
};

}  // namespace

LoadedModel sentencepiece_tokenizer(const std::string& model, const std::string& where,
                                    bool end_of_document) {
  auto tokenizer = std::make_unique<SentencePiece>(model, where, end_of_document);
  const std::int64_t end = tokenizer->end_of_document();
  return {std::move(tokenizer), end, {}};
}

}  // namespace trireme::data
