// JSON from files that may be damaged or hostile.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::data {

/// Throws Error "<where>: …; <mend>" for what is not JSON, for a key that is there twice (of which
/// the library keeps the last without a word), and for what is nested deeper than 64.
nlohmann::json parse_strict_json(const std::string& text, const std::string& where,
                                 const std::string& mend);

}  // namespace trireme::data
