// JSON from files that are not trusted.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme {

/// The value of `text`. Throws Error "<where>: <fault>; <remedy>" unless it is JSON in UTF-8 in
/// which no object has a key twice (nlohmann's own parser silently keeps the last one) and
/// nothing is nested more than 64 deep (copies of a value, and walks through it, are recursive).
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view remedy = "restore the file");

}  // namespace trireme
