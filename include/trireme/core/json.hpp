// JSON from files that nobody vouches for.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme {

/// The value that `text` means. Throws Error "<where>: <fault>; <mend>" unless it is JSON in UTF-8
/// in which no object has a key twice (nlohmann's own parser keeps the last one without a word) and
/// nothing is nested more than 64 deep (copies of a value, and walks through it, are recursive).
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view mend = "restore the file");

}  // namespace trireme
