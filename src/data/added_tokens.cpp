#include "added_tokens.hpp"

#include <algorithm>

namespace trireme::data {

AddedTokens::AddedTokens(const std::vector<AddedToken>& added, bool normalized) {
  for (const AddedToken& token : added) {
    if (token.normalized != normalized) continue;
    tokens_.push_back(token);
    begins_[static_cast<std::uint8_t>(token.content[0])] = true;
    longest_ = std::max(longest_, token.content.size());
  }
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, std::size_t from,
                                                    std::size_t limit) const {
  if (tokens_.empty()) return std::nullopt;
  for (std::size_t i = from; i < limit; ++i) {
    if (!begins_[static_cast<std::uint8_t>(text[i])]) continue;
    if (const auto found = at(text, i)) return found;
  }
  return std::nullopt;
}

/// The longest that begins at `begin`: one more byte at a time, among those that still fit.
std::optional<AddedTokens::Found> AddedTokens::at(std::string_view text, std::size_t begin) const {
  std::optional<Found> found;
  auto first = tokens_.begin(), last = tokens_.end();
  for (std::size_t depth = 0; first != last && begin + depth < text.size(); ++depth) {
    const char next = text[begin + depth];
    // Of contents that agree so far, a shorter one sorts before the longer ones.
    const auto byte = [depth](const AddedToken& token) {
      return depth < token.content.size() ? static_cast<std::uint8_t>(token.content[depth]) : -1;
    };
    first = std::partition_point(first, last, [&](const AddedToken& token) {
      return byte(token) < static_cast<std::uint8_t>(next);
    });
    last = std::partition_point(first, last, [&](const AddedToken& token) {
      return byte(token) <= static_cast<std::uint8_t>(next);
    });
    if (first != last && first->content.size() == depth + 1) {
      found = {begin, begin + depth + 1, first->id};
    }
  }
  return found;
}

}  // namespace trireme::data
