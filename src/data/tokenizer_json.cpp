#include <algorithm>
#include <initializer_list>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"

#include "hugging_face.hpp"
#include "tokenizers.hpp"

namespace trireme::data {
namespace {

using nlohmann::json;

/// GPT-2's pattern, which pre_tokenizer ByteLevel has in itself.
constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* remedy = "use the tokenizer of a GPT-2 or Llama-3 kind, or restore the file";

/// A JSON object whose every key must be known.
class Part {
 public:
  Part(const json& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value.is_object()) refuse("is not an object");
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error("{}: {}; {}", where_, what, remedy);
  }
  void keys(std::initializer_list<const char*> known) const {
    for (const auto& entry : value_.items()) {
      const std::string& key = entry.key();
      if (std::none_of(known.begin(), known.end(), [&](const char* k) { return key == k; })) {
        refuse(fmt::format("'{}' is not supported here", config::one_line(key)));
      }
    }
  }
  bool has(const char* key) const { return value_.contains(key) && !value_.at(key).is_null(); }
  const json& at(const char* key) const {
    if (!value_.contains(key)) refuse(fmt::format("has no '{}'", key));
    return value_.at(key);
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(fmt::format("'{}' is not a string", key));
    return at(key).get<std::string>();
  }
  bool flag(const char* key, bool missing) const {
    if (!has(key)) return missing;
    if (!at(key).is_boolean()) refuse(fmt::format("'{}' is not true or false", key));
    return at(key).get<bool>();
  }
  /// `key` is missing, null, or one of these.
  void only(const char* key, std::initializer_list<json> values) const {
    if (!has(key)) return;
    if (std::find(values.begin(), values.end(), at(key)) == values.end()) {
      refuse(fmt::format("'{}' = {} is not supported here", key, shown(at(key))));
    }
  }
  Part part(const char* key) const { return {at(key), where_ + ": " + key}; }
  const std::string& where() const { return where_; }

 private:
  const json& value_;
  std::string where_;
};

/// GPT-2's table of printable characters for bytes, turned round: bytes 33–126, 161–172 and 174–255
/// are their own characters, the others U+0100 and following in order.
class ByteCharacters {
 public:
  ByteCharacters() {
    bytes_.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      bytes_[static_cast<std::size_t>(own ? byte : next++)] = byte;
    }
  }
  /// The bytes of a token of the vocabulary; false if a character is none of the
  /// table.
  bool decode(std::string_view token, std::string& bytes) const {
    bytes.clear();
    while (!token.empty()) {
      const std::size_t length = utf8_length(token);
      if (length == 0 || length > 2) return false;
      const auto unit = [&](std::size_t i) { return static_cast<std::uint8_t>(token[i]); };
      const std::size_t c = length == 1 ? unit(0) : (unit(0) & 0x1FU) << 6 | (unit(1) & 0x3FU);
      if (c >= bytes_.size() || bytes_[c] < 0) return false;
      bytes += static_cast<char>(bytes_[c]);
      token.remove_prefix(length);
    }
    return true;
  }

 private:
  std::array<int, 324> bytes_{};
};

std::int32_t id_of(const json& value, const Part& part) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() >= std::numeric_limits<std::int32_t>::max()) {
    part.refuse(fmt::format("id {} is not a whole number below 2^31 - 1", shown(value)));
  }
  return value.get<std::int32_t>();
}

using Vocabulary = std::unordered_map<std::string, std::int32_t>;

Vocabulary read_vocabulary(const Part& model) {
  const json& entries = model.at("vocab");
  if (!entries.is_object()) model.refuse("'vocab' is not an object");
  Vocabulary vocabulary;
  vocabulary.reserve(entries.size());
  for (const auto& [token, id] : entries.items()) {
    if (token.empty()) model.refuse("'vocab' holds an empty token");
    vocabulary.emplace(token, id_of(id, model));
  }
  return vocabulary;
}

/// "left right", or a pair as newer versions write it.
std::pair<std::string, std::string> sides_of(const json& merge, const Part& model) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0], merge[1]};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  model.refuse(fmt::format("merge {} is not two tokens", shown(merge)));
}

std::vector<Merge> read_merges(const Part& model, const Vocabulary& vocabulary) {
  const json& list = model.at("merges");
  if (!list.is_array()) model.refuse("'merges' is not a list");
  std::vector<Merge> merges;
  merges.reserve(list.size());
  for (const json& entry : list) {
    const auto [left, right] = sides_of(entry, model);
    const auto known = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (found == vocabulary.end()) {
        model.refuse(fmt::format("merge {}: '{}' is not in the vocabulary", shown(entry),
                                 config::one_line(token)));
      }
      return found->second;
    };
    merges.push_back({known(left), known(right), known(left + right)});
  }
  return merges;
}

std::vector<AddedToken> read_added(const Part& root) {
  std::vector<AddedToken> added;
  if (!root.has("added_tokens")) return added;
  const json& list = root.at("added_tokens");
  if (!list.is_array()) root.refuse("'added_tokens' is not a list");
  for (const json& entry : list) {
    const Part token(entry, fmt::format("{}: added token {}", root.where(), added.size()));
    token.keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    for (const char* key : {"single_word", "lstrip", "rstrip"}) token.only(key, {false});
    AddedToken read{token.text("content"), id_of(token.at("id"), token),
                    token.flag("normalized", true), token.flag("special", false)};
    if (read.content.empty() || read.content.size() > longest_added_token) {
      token.refuse(
          fmt::format("has {} bytes, not 1 to {}", read.content.size(), longest_added_token));
    }
    added.push_back(std::move(read));
  }
  return added;
}

void check_byte_level(const Part& part) {
  part.keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

/// The pattern of pre_tokenizer ByteLevel, or Sequence [Split, ByteLevel].
std::string read_pattern(const Part& pre) {
  const std::string type = pre.text("type");
  const auto byte_level = [](const Part& part, bool own_pattern) {
    check_byte_level(part);
    if (part.flag("add_prefix_space", true)) {
      part.refuse(
          "'add_prefix_space' = true puts a space before the text, which then cannot be "
          "given back");
    }
    if (part.flag("use_regex", true) != own_pattern) {
      part.refuse(fmt::format("'use_regex' = {} is not supported here", !own_pattern));
    }
  };
  if (type == "ByteLevel") {
    byte_level(pre, true);
    return gpt2_pattern;
  }
  if (type != "Sequence") pre.refuse(fmt::format("type {} is not supported here", shown(type)));
  pre.keys({"type", "pretokenizers"});
  const json& list = pre.at("pretokenizers");
  if (!list.is_array() || list.size() != 2) pre.refuse("is not [Split, ByteLevel]");
  const Part split(list[0], pre.where() + ": first"), bytes(list[1], pre.where() + ": second");
  for (const auto& [part, expected] :
       {std::pair(&split, "Split"), std::pair(&bytes, "ByteLevel")}) {
    if (part->text("type") != expected) {
      part->refuse(
          fmt::format("type {} is not supported here, only {}", shown(part->at("type")), expected));
    }
  }
  byte_level(bytes, false);
  split.keys({"type", "pattern", "behavior", "invert"});
  split.at("behavior"), split.at("invert");
  split.only("behavior", {"Isolated"});
  split.only("invert", {false});
  const Part pattern = split.part("pattern");
  pattern.keys({"Regex"});
  return pattern.text("Regex");
}

void check_post_processor(const Part& post) {
  const std::string type = post.text("type");
  if (type == "Sequence") {
    const json& list = post.at("processors");
    if (!list.is_array()) post.refuse("'processors' is not a list");
    for (const json& entry : list) check_post_processor(Part(entry, post.where()));
    return;
  }
  for (const char* known :
       {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"}) {
    if (type == known) return;
  }
  post.refuse(fmt::format("type {} is not supported here", shown(type)));
}

void check_outside(const Part& root) {
  root.keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  root.only("version", {"1.0"});
  for (const char* key : {"truncation", "padding"}) root.only(key, {nullptr});
  if (root.has("normalizer")) {
    const json& normalizer = root.at("normalizer");
    const bool named = normalizer.is_object() && normalizer.contains("type");
    root.refuse(fmt::format("normalizer {} is not supported here",
                            shown(named ? normalizer["type"] : normalizer)));
  }
  if (!root.has("pre_tokenizer")) root.refuse("has no pre_tokenizer");
  if (!root.has("decoder")) root.refuse("has no decoder");
  const Part decoder = root.part("decoder");
  decoder.only("type", {"ByteLevel"});
  decoder.text("type");
  check_byte_level(decoder);
  if (root.has("post_processor")) check_post_processor(root.part("post_processor"));
}

void check_model(const Part& model) {
  model.keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.only("type", {"BPE"});
  model.only("dropout", {0, 0.0});
  model.only("continuing_subword_prefix", {""});
  model.only("end_of_word_suffix", {""});
  model.only("byte_fallback", {false});
  // unk_token and fuse_unk are without effect: every byte has a token.
}

}  // namespace

TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& where) {
  const json values = parse_json(text, where, remedy);
  const Part root(values, where);
  check_outside(root);
  const Part model = root.part("model");
  check_model(model);
  TokenizerJson read;
  read.pattern = read_pattern(root.part("pre_tokenizer"));
  read.ignore_merges = model.flag("ignore_merges", false);
  read.added = read_added(root);
  const Vocabulary vocabulary = read_vocabulary(model);
  read.merges = read_merges(model, vocabulary);

  std::size_t all = vocabulary.size();
  for (const AddedToken& token : read.added) {
    const auto known = vocabulary.find(token.content);
    if (known == vocabulary.end()) {
      ++all;
    } else if (known->second != token.id) {
      root.refuse(fmt::format("added token '{}' has id {} and id {} in the vocabulary",
                              config::one_line(token.content), token.id, known->second));
    }
  }
  read.tokens.resize(all);
  read.in_model.resize(all);
  std::vector<bool> taken(all);
  const auto take = [&](std::int32_t id, const std::string& token) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= all || taken[at]) {
      root.refuse(fmt::format("token '{}': the ids of {} tokens are not 0 to {}, each once",
                              config::one_line(token), all, all - 1));
    }
    taken[at] = true;
  };
  const ByteCharacters characters;
  read.byte_ids.fill(-1);
  for (const auto& [token, id] : vocabulary) {
    take(id, token);
    std::string& bytes = read.tokens[static_cast<std::size_t>(id)];
    read.in_model[static_cast<std::size_t>(id)] = characters.decode(token, bytes);
    if (!read.in_model[static_cast<std::size_t>(id)]) {
      bytes = token;
    } else if (bytes.size() == 1) {
      read.byte_ids[static_cast<std::uint8_t>(bytes[0])] = id;
    }
  }
  std::unordered_set<std::string> contents;
  for (const AddedToken& token : read.added) {
    std::string name = config::one_line(token.content);
    if (!contents.insert(token.content).second) {
      root.refuse(fmt::format("added token '{}' is there twice", name));
    }
    if (!vocabulary.contains(token.content)) take(token.id, token.content);
    std::string& bytes = read.tokens[static_cast<std::size_t>(token.id)];
    if (read.in_model[static_cast<std::size_t>(token.id)] && bytes != token.content) {
      root.refuse(fmt::format("token '{}' stands for two texts", name));
    }
    bytes = token.content;
  }
  if (std::find(read.byte_ids.begin(), read.byte_ids.end(), -1) != read.byte_ids.end()) {
    root.refuse("the vocabulary has no token for some byte");
  }
  return read;
}

}  // namespace trireme::data
