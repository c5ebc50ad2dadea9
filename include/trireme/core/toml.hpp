// TOML files whose tables are not a configuration's sections.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::config {

/// A TOML text of tables and lists as JSON. Throws AgreedError with the line, calling it `name`.
nlohmann::json toml_as_json(const std::string& text, const std::string& name);

}  // namespace trireme::config
