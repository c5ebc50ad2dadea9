#include "trireme/core/svg.hpp"

#include <fmt/format.h>

namespace trireme::svg {

namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {  // XML 1.0 has no others
      result += c;
    }
  }
  return result;
}

}  // namespace

std::string begin(double width, double height) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" font-family="sans-serif" font-size="11">)"
      "\n"
      R"(<rect width="{0:.0f}" height="{1:.0f}" fill="#ffffff"/>)"
      "\n",
      width, height);
}

std::string rectangle(double x, double y, double width, double height, const std::string& fill,
                      double opacity) {
  return fmt::format(
      R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}" fill-opacity="{:.2f}" stroke="#ffffff" stroke-width="0.5"/>)"
      "\n",
      x, y, width, height, fill, opacity);
}

std::string text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(R"(<text x="{:.2f}" y="{:.2f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, anchor, escaped(text));
}

}  // namespace trireme::svg
