#include "untrusted.hpp"

#include <cmath>
#include <limits>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"

namespace trireme::report {

using nlohmann::json;

namespace {

std::string in_utf8(std::string_view text) {
  return nlohmann::json::parse(json_text(std::string(text))).get<std::string>();
}

}  // namespace

std::string plain_text(std::string_view text) { return config::one_line(in_utf8(text)); }

std::string gnuplot_text(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) continue;
    result += c;
    if (c == '\'') result += c;
  }
  return result + "'";
}

std::string html_text(std::string_view text) {
  std::string result;
  for (const char c : in_utf8(text)) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') {
      result += c;
    }
  }
  return result;
}

std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  std::string result = "\"";
  for (const char c : text) {
    result += c;
    if (c == '"') result += c;
  }
  return result + "\"";
}

double number_at(const json& object, const char* key, const std::string& where) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto found = object.find(key);
  if (found == object.end()) throw Error("{}: {} is missing; restore the file", where, key);
  if (found->is_number()) return found->get<double>();
  if (*found == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (*found == "inf") return infinity;
  if (*found == "-inf") return -infinity;
  throw Error("{}: {} is no number; restore the file", where, key);
}

double optional_number_at(const json& object, const char* key, const std::string& where) {
  return object.contains(key) ? number_at(object, key, where) : 0;
}

std::int64_t integer_at(const json& object, const char* key, const std::string& where) {
  const double value = number_at(object, key, where);
  if (value != std::floor(value) || std::abs(value) > 9e15) {
    throw Error("{}: {} = {}: must be a whole number; restore the file", where, key, value);
  }
  return static_cast<std::int64_t>(value);
}

std::string text_at(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw Error("{}: {} is missing; restore the file", where, key);
  if (!found->is_string()) throw Error("{}: {} is no text; restore the file", where, key);
  return found->get<std::string>();
}

const json& object_at(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) {
    throw Error("{}: {} is {}; restore the file", where, key,
                found == object.end() ? "missing" : "no object");
  }
  return *found;
}

}  // namespace trireme::report
