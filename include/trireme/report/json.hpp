// JSON has no NaN and no infinity; nlohmann-json writes null for them, which reads as "not
// measured". A run that has diverged must say so, hence such numbers are the strings "nan", "inf"
// and "-inf".
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::report {

/// A number where it is finite, else "nan", "inf" or "-inf".
nlohmann::json finite_number(double value);

/// `value` with every number that is not finite replaced as above, at any depth.
nlohmann::json finite(nlohmann::json value);

/// Text of finite(value): UTF-8 (bytes that are not are replaced by U+FFFD), `indent` as
/// nlohmann's.
std::string to_text(const nlohmann::json& value, int indent = -1);

}  // namespace trireme::report
