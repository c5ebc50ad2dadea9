#include "strict_json.hpp"

#include <unordered_set>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::data {

using nlohmann::json;

json parse_strict_json(const std::string& text, const std::string& where, const std::string& mend) {
  constexpr int deepest = 64;
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, const json& parsed) {
    if (depth > deepest) throw Error("{}: is nested more than {} deep; {}", where, deepest, mend);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw Error("{}: holds a key twice; {}", where, mend);
    }
    return true;
  };
  json parsed = json::parse(text, watch, false);
  if (parsed.is_discarded()) throw Error("{}: is not valid JSON; {}", where, mend);
  return parsed;
}

}  // namespace trireme::data
