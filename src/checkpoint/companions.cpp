#include "companions.hpp"

#include <algorithm>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/data/hash.hpp"

#include "files.hpp"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* companions_key = "transformers";  // of State::extra
constexpr std::int64_t most_bytes = std::int64_t{64} << 20;

template <std::size_t n>
bool contains(const char* const (&names)[n], const std::string& name) {
  return std::ranges::any_of(names, [&](const char* each) { return name == each; });
}

}  // namespace

void keep_companions(State& state, const Companions& companions) {
  if (companions.config.empty() && companions.files.empty()) return;
  json files = json::object();
  for (const State::Attachment& file : companions.files) {
    files[file.name] = data::hash_text(file.content);
    state.attachments.push_back(file);
  }
  state.extra[companions_key] = {{"config", companions.config}, {"files", files}};
}

Companions kept_companions(const Reader& reader) {
  const json& extra = reader.state().extra;
  Companions result;
  if (!extra.is_object() || !extra.contains(companions_key)) return result;
  const json& kept = extra.at(companions_key);
  const auto damaged = [&](const std::string& what) {
    return Error("{}: {} is damaged; use another checkpoint",
                 (reader.folder() / "manifest.json").string(), what);
  };
  for (const char* part : {"config", "files"}) {
    if (!kept.is_object() || !kept.contains(part) || !kept.at(part).is_object()) {
      throw damaged(companions_key);
    }
  }
  for (const auto& [key, value] : kept.at("config").items()) {
    if (!contains(token_id_keys, key)) throw damaged(companions_key);
    result.config[key] = value;
  }
  for (const auto& [name, hash] : kept.at("files").items()) {
    if (!contains(companion_files, name)) throw damaged(companions_key);
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
