// What others wrote: values of their JSON, and their text inside what this program writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme::report {

/// Bytes of a file of a record, at most.
constexpr std::int64_t largest_record_file = std::int64_t{1} << 30;

// Values. All functions throw Error "<where>: <key> …; restore the file" where the key is missing
// or of another kind.

/// "nan", "inf" and "-inf" are numbers too (core/json.hpp).
double number_at(const nlohmann::json& object, const char* key, const std::string& where);
/// 0 where there is no such key.
double optional_number_at(const nlohmann::json& object, const char* key, const std::string& where);
/// Whole and below 9e15.
std::int64_t integer_at(const nlohmann::json& object, const char* key, const std::string& where);
std::string text_at(const nlohmann::json& object, const char* key, const std::string& where);
const nlohmann::json& object_at(const nlohmann::json& object, const char* key,
                                const std::string& where);

// Text. Each function makes it harmless in one place.

/// One line of UTF-8 for a terminal: what is no UTF-8 is replaced, control characters are escaped.
std::string plain_text(std::string_view text);
/// In single quotes, as gnuplot reads them: nothing inside is interpreted, a quote is doubled.
std::string gnuplot_text(std::string_view text);
/// For content and for attributes in double quotes; characters that XML 1.0 has not are left out,
/// and what is no UTF-8 is replaced.
std::string html_text(std::string_view text);
/// A field of CSV (RFC 4180): in double quotes where it needs them.
std::string csv_text(std::string_view text);

}  // namespace trireme::report
