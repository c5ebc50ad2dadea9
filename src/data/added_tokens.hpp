// Added tokens: whole texts that become one token before anything else is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer_json.hpp"

namespace trireme::data {

/// Finds the leftmost of them, and of several there the longest.
class AddedTokens {
 public:
  /// Those of `added` that are `normalized` or are not.
  AddedTokens(const std::vector<AddedToken>& added, bool normalized);
  struct Found {
    std::size_t begin = 0, end = 0;
    std::int32_t id = 0;
  };
  /// The first that begins in [from, limit).
  std::optional<Found> find(std::string_view text, std::size_t from, std::size_t limit) const;
  std::size_t longest() const { return longest_; }  // bytes

 private:
  std::optional<Found> at(std::string_view text, std::size_t begin) const;
  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> begins_{};  // by first byte
  std::size_t longest_ = 0;
};

}  // namespace trireme::data
