// A configuration value that selects among named cases.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/core/error.hpp"

namespace trireme::train {

/// The case that `value` of the field `key` names. The field has checked its value, so that another
/// one is an error of this program.
template <class Case>
Case select(std::string_view key, const std::string& value,
            std::initializer_list<std::pair<std::string_view, Case>> cases) {
  for (const auto& [name, each] : cases) {
    if (name == value) return each;
  }
  TRIREME_ASSERT(false, "{} = {}", key, value);
}

}  // namespace trireme::train
