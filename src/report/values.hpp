// Values of JSON that nobody vouches for. All throw Error "<where>: <key> …; restore the file"
// where the key is missing or of another kind.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace trireme::report {

/// "nan", "inf" and "-inf" are numbers too (json.hpp).
double number_at(const nlohmann::json& object, const char* key, const std::string& where);
/// Whole and below 9e15.
std::int64_t integer_at(const nlohmann::json& object, const char* key, const std::string& where);
std::string text_at(const nlohmann::json& object, const char* key, const std::string& where);
const nlohmann::json& object_at(const nlohmann::json& object, const char* key,
                                const std::string& where);

}  // namespace trireme::report
