#include "trireme/checkpoint/tokenizer.hpp"

namespace trireme::checkpoint {
namespace {

constexpr const char* key = "tokenizer";  // of State::extra

}  // namespace

void keep_tokenizer(State& state, const data::StoredTokenizer& tokenizer) {
  if (tokenizer.description.is_null() || tokenizer.description.at("tokenizer") == "none") return;
  state.extra[key] = tokenizer.description;
  if (!tokenizer.file.empty()) state.attachments.push_back({tokenizer.file, tokenizer.content});
}

std::optional<data::Manifest> kept_tokenizer(const Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.is_object() || !extra.contains(key)) return std::nullopt;
  return data::described_tokenizer(extra.at(key), (reader.folder() / "manifest.json").string());
}

}  // namespace trireme::checkpoint
