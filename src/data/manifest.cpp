#include <algorithm>
#include <limits>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/data/tokenizer.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr std::int64_t most_tokens = std::int64_t{1} << 56;  // of a split; far from overflow

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error("{}: {}; restore the file or prepare again", where, what);
}

void expect_keys(const json& object, const std::set<std::string>& keys, const std::string& where,
                 const std::string& what) {
  if (!object.is_object()) refuse(where, what + " is not an object");
  for (const auto& [key, value] : object.items()) {
    if (!keys.contains(key)) refuse(where, what + " has a key that this program does not know");
  }
  for (const std::string& key : keys) {
    if (!object.contains(key)) refuse(where, fmt::format("{} lacks \"{}\"", what, key));
  }
}

std::string text_of(const json& object, const std::string& key, const std::string& where) {
  const json& value = object.at(key);
  if (!value.is_string()) refuse(where, fmt::format("\"{}\" is not text", key));
  auto text = value.get<std::string>();
  if (!is_plain_text(text)) {
    refuse(where, fmt::format("\"{}\" is not 1 to 255 printable bytes", key));
  }
  return text;
}

std::int64_t number_of(const json& object, const std::string& key, std::int64_t low,
                       std::int64_t high, const std::string& where) {
  const json& value = object.at(key);
  if (value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max())) {
    const auto number = value.get<std::int64_t>();
    if (number >= low && number <= high) return number;
  }
  refuse(where, fmt::format("\"{}\" is not a whole number from {} to {}", key, low, high));
}

std::vector<ShardInfo> shards_from(const json& list, SplitName split, const std::string& where) {
  const std::string split_name = name_of(split);
  if (!list.is_array()) refuse(where, fmt::format("\"{}\" is not a list", split_name));
  std::vector<ShardInfo> shards;
  std::int64_t total = 0;
  for (const json& entry : list) {
    const std::string what = fmt::format("entry {} of \"{}\"", shards.size(), split_name);
    expect_keys(entry, {"file", "tokens", "documents", "xxh3"}, where, what);
    ShardInfo shard;
    shard.file = text_of(entry, "file", where);
    if (shard.file != shard_file(split, shards.size())) {
      refuse(where, fmt::format("{} is not named {}", what, shard_file(split, shards.size())));
    }
    shard.tokens = number_of(entry, "tokens", 1, most_tokens, where);
    shard.documents = number_of(entry, "documents", 0, shard.tokens, where);
    shard.xxh3 = text_of(entry, "xxh3", where);
    if (shard.xxh3.size() != 16 ||
        shard.xxh3.find_first_not_of("0123456789abcdef") != std::string::npos) {
      refuse(where, fmt::format("{}: \"xxh3\" is not 16 hex digits", what));
    }
    if (shard.tokens > most_tokens - total) refuse(where, "counts more tokens than can be");
    total += shard.tokens;
    shards.push_back(std::move(shard));
  }
  return shards;
}

constexpr const char* seal_key = "manifest_xxh3";

/// The beginning of a JSON object, with the xxh3 of all that follows, the `rest`, as first value.
std::string seal_of(std::string_view rest) {
  return fmt::format("{{\n  \"{}\": \"{}\",", seal_key, hash_text(rest));
}

/// Checks and takes away the seal, which older manifests lack.
void check_seal(json& root, const std::string& text, const std::string& where) {
  if (!root.is_object() || root.erase(seal_key) == 0) return;
  const std::string_view all = text;
  const std::size_t size = all.find(",\n") + 1;  // 0: there is none
  if (all.substr(0, size) != seal_of(all.substr(size))) {
    refuse(where, "does not match its own checksum; it is damaged or was edited");
  }
}

json to_json(const std::vector<ShardInfo>& shards) {
  json list = json::array();
  for (const ShardInfo& shard : shards) {
    list.push_back({{"file", shard.file},
                    {"tokens", shard.tokens},
                    {"documents", shard.documents},
                    {"xxh3", shard.xxh3}});
  }
  return list;
}

void read_tokenizer(const json& object, std::int64_t most_ids, Manifest& manifest,
                    const std::string& where) {
  manifest.tokenizer = text_of(object, "tokenizer", where);
  const std::set<std::string> kinds = {"bytes", "characters", "sentencepiece", "huggingface",
                                       "none"};
  if (!kinds.contains(manifest.tokenizer)) {
    refuse(where, "\"tokenizer\" is none that this program knows");
  }
  manifest.tokenizer_details = object.at("tokenizer_details");
  manifest.vocabulary = number_of(object, "vocabulary", 1, most_ids, where);
  if (!object.at("end_of_document").is_null()) {
    manifest.end_of_document =
        number_of(object, "end_of_document", 0, manifest.vocabulary - 1, where);
  }
}

}  // namespace

bool is_plain_text(const std::string& text) {
  return !text.empty() && text.size() <= 255 && std::ranges::none_of(text, [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
}

std::string name_of(SplitName split) { return split == SplitName::train ? "train" : "valid"; }

std::string shard_file(SplitName split, std::size_t index) {
  return fmt::format("{}-{:05}.h5", name_of(split), index);
}

const std::vector<ShardInfo>& shards_of(const Manifest& manifest, SplitName split) {
  return split == SplitName::train ? manifest.train : manifest.valid;
}

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json text;
  text["format"] = format_name;
  text["version"] = format_version(manifest);
  text["name"] = manifest.name;
  text["tokenizer"] = manifest.tokenizer;
  text["tokenizer_details"] = manifest.tokenizer_details;
  text["vocabulary"] = manifest.vocabulary;
  text["element_type"] = manifest.element_bytes == 2 ? "uint16" : "uint32";
  text["end_of_document"] = nullptr;
  if (manifest.end_of_document) text["end_of_document"] = *manifest.end_of_document;
  if (manifest.loss_weights) text["loss_weights"] = true;
  text["train"] = to_json(manifest.train);
  text["valid"] = to_json(manifest.valid);
  std::string all = text.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return all.replace(0, 1, seal_of(std::string_view(all).substr(1)));
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  json root = parse_json(text, where, "restore the file or prepare again");
  check_seal(root, text, where);
  if (!root.is_object() || !root.contains("format") || root["format"] != format_name) {
    refuse(where, fmt::format("is not a dataset's (\"format\" is not \"{}\")", format_name));
  }
  if (!root.contains("version") || (root["version"] != 1 && root["version"] != 2)) {
    refuse(where, "\"version\" is neither 1 nor 2, those that this program reads");
  }
  std::set<std::string> keys{"format",       "version",           "name",  "tokenizer",
                             "vocabulary",   "tokenizer_details", "train", "valid",
                             "element_type", "end_of_document"};
  if (root["version"] == 2) keys.insert("loss_weights");
  expect_keys(root, keys, where, "the dataset");
  Manifest manifest;
  manifest.loss_weights = root["version"] == 2;
  if (manifest.loss_weights && root["loss_weights"] != true) {
    refuse(where, "\"loss_weights\" is not true");
  }
  manifest.name = text_of(root, "name", where);
  const std::string type = text_of(root, "element_type", where);
  if (type != "uint16" && type != "uint32") {
    refuse(where, "\"element_type\" is neither uint16 nor uint32");
  }
  manifest.element_bytes = type == "uint16" ? 2 : 4;
  const std::int64_t most_ids =
      type == "uint16" ? std::int64_t{1} << 16 : std::numeric_limits<std::int32_t>::max();
  read_tokenizer(root, most_ids, manifest, where);
  manifest.train = shards_from(root["train"], SplitName::train, where);
  manifest.valid = shards_from(root["valid"], SplitName::valid, where);
  if (manifest.train.empty() && manifest.valid.empty())
    refuse(where, "\"train\" and \"valid\" are empty");
  return manifest;
}

Manifest described_tokenizer(const json& description, const std::string& where) {
  expect_keys(description, {"tokenizer", "tokenizer_details", "vocabulary", "end_of_document"},
              where, "the tokenizer");
  Manifest manifest;
  read_tokenizer(description, std::numeric_limits<std::int32_t>::max(), manifest, where);
  return manifest;
}

}  // namespace trireme::data
