// JSON has no NaN and no infinity, and nlohmann-json writes null for them, which means "not
// measured". The record of a diverged run has the strings "nan", "inf" and "-inf" instead.
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
