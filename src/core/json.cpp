#include "trireme/core/json.hpp"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

namespace trireme {

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view remedy) {
  using nlohmann::json;
  constexpr int deepest = 64;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > deepest) {
      throw Error("{}: is nested more than {} deep; {}", where, deepest, remedy);
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw Error("{}: has the key \"{}\" twice; {}", where,
                    config::one_line(config::shortened(key, 80)), remedy);
      }
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::parse_error& error) {
    throw Error("{}: is not valid JSON at byte {}; {}", where, error.byte, remedy);
  } catch (const json::exception&) {  // a number past all bounds
    throw Error("{}: is not valid JSON that can be read; {}", where, remedy);
  }
}

std::string shown(const nlohmann::json& value) {
  using nlohmann::json;
  return config::one_line(
      config::shortened(value.dump(-1, ' ', false, json::error_handler_t::replace), 60));
}

nlohmann::json finite(nlohmann::json value) {
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  }
  if (value.is_structured()) {
    for (auto& item : value) item = finite(std::move(item));
  }
  return value;
}

std::string json_text(const nlohmann::json& value, int indent) {
  return finite(value).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trireme
