// JSON from files that are not trusted, and numbers that JSON does not have: nlohmann-json writes
// null for NaN and the infinities. What this program writes has the strings "nan", "inf" and "-inf"
// instead, since null means "not measured".
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme {

/// The value of `text`. Throws Error "<where>: <fault>; <remedy>" unless it is JSON in UTF-8 in
/// which no object has a key twice (nlohmann's own parser silently keeps the last one) and
/// nothing is nested more than 64 deep (copies of a value, and walks through it, are recursive).
/// In linear time.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view remedy = "restore the file");

/// A long list of the outermost object, whose elements are not kept: `take` gets each as it is
/// read, and the value has an empty list.
struct PassingList {
  std::string key;
  std::function<void(const nlohmann::json& element)> take;
};
nlohmann::json parse_json(std::string_view text, const std::string& where, std::string_view remedy,
                          const PassingList& list);

/// The first 60 bytes or less of `value` as text on one line, for messages.
std::string shown(const nlohmann::json& value);

/// `value` with every number that is not finite replaced as above, at any depth.
nlohmann::json finite(nlohmann::json value);

/// Text of finite(value): UTF-8 (bytes that are not are replaced by U+FFFD), `indent` as
/// nlohmann's.
std::string json_text(const nlohmann::json& value, int indent = -1);

}  // namespace trireme
