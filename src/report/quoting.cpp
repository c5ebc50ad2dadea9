#include "quoting.hpp"

#include "trireme/core/config.hpp"
#include "trireme/report/json.hpp"

namespace trireme::report {
namespace {

std::string in_utf8(std::string_view text) {
  return nlohmann::json::parse(to_text(std::string(text))).get<std::string>();
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

}  // namespace trireme::report
