#include "seal.hpp"

#include <fmt/format.h>
#include <xxhash.h>

namespace trireme::report {
namespace {

constexpr std::size_t digits = 16;

/// What is before the seal and after it, in the form of `object`: on one line or on several.
std::pair<std::string_view, std::string_view> marks_of(std::string_view object) {
  if (object.starts_with("{\n")) return {",\n  \"seal\": \"", "\"\n}"};
  return {",\"seal\":\"", "\"}"};
}

}  // namespace

std::string seal_of(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::string with_seal(std::string_view object, std::string_view before) {
  const auto [begin, end] = marks_of(object);
  const std::string seal = seal_of(fmt::format("{}{}", before, object));
  object.remove_suffix(end.size() - 1);  // all but the quote
  return fmt::format("{}{}{}{}", object, begin, seal, end);
}

std::string seal_in(std::string_view text) {
  const auto [begin, end] = marks_of(text);
  if (!text.ends_with(end) || text.size() < begin.size() + digits + end.size()) return {};
  const std::size_t at = text.size() - end.size() - digits;
  if (text.substr(at - begin.size(), begin.size()) != begin) return {};
  return std::string(text.substr(at, digits));
}

bool seal_holds(std::string_view text, std::string_view before) {
  if (seal_in(text).empty()) return false;
  const auto [begin, end] = marks_of(text);
  const std::string_view inside = text.substr(0, text.size() - begin.size() - digits - end.size());
  return with_seal(fmt::format("{}{}", inside, end.substr(1)), before) == text;
}

}  // namespace trireme::report
