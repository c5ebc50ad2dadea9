#include "auxiliary_files.hpp"

#include <algorithm>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/data/hash.hpp"

#include "files.hpp"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* auxiliary_key = "transformers";  // of State::extra
constexpr std::int64_t most_bytes = std::int64_t{64} << 20;

template <std::size_t n>
bool contains(const char* const (&names)[n], const std::string& name) {
  return std::ranges::any_of(names, [&](const char* each) { return name == each; });
}

}  // namespace

void keep_auxiliary_files(State& state, const AuxiliaryFiles& auxiliary) {
  if (auxiliary.config.empty() && auxiliary.files.empty()) return;
  json files = json::object();
  for (const State::Attachment& file : auxiliary.files) {
    const bool attached = std::ranges::any_of(
        state.attachments, [&](const auto& other) { return other.name == file.name; });
    if (attached) continue;  // by the tokenizer
    files[file.name] = data::hash_text(file.content);
    state.attachments.push_back(file);
  }
  state.extra[auxiliary_key] = {{"config", auxiliary.config}, {"files", files}};
}

AuxiliaryFiles kept_auxiliary_files(const Reader& reader) {
  const json& extra = reader.state().extra;
  AuxiliaryFiles result;
  if (!extra.is_object() || !extra.contains(auxiliary_key)) return result;
  const json& kept = extra.at(auxiliary_key);
  const auto damaged = [&](const std::string& what) {
    return Error("{}: {} is damaged; use another checkpoint",
                 (reader.folder() / "manifest.json").string(), what);
  };
  for (const char* part : {"config", "files"}) {
    if (!kept.is_object() || !kept.contains(part) || !kept.at(part).is_object()) {
      throw damaged(auxiliary_key);
    }
  }
  for (const auto& [key, value] : kept.at("config").items()) {
    if (!contains(token_id_keys, key)) throw damaged(auxiliary_key);
    result.config[key] = value;
  }
  for (const auto& [name, hash] : kept.at("files").items()) {
    if (!contains(auxiliary_names, name)) throw damaged(auxiliary_key);
    State::Attachment file{name, read_small_file(reader.folder() / name, most_bytes)};
    if (hash != data::hash_text(file.content)) {
      throw Error("{}: does not match its checksum; use another checkpoint",
                  (reader.folder() / name).string());
    }
    result.files.push_back(std::move(file));
  }
  return result;
}

}  // namespace trireme::checkpoint
