// Small texts that messages and tables share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace trireme {

/// "1 rank", "2 ranks". `noun`: the singular of one whose plural ends in s.
inline std::string counted(std::int64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace trireme
