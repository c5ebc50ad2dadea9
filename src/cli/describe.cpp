// Help for fields, made from their declarations.
#include <sstream>

#include "trireme/cli/resolve.hpp"

namespace trireme::cli {

namespace {

/// `text` broken at spaces; every line but the first begins in column `indent`.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::istringstream words(text);
  std::string result;
  std::size_t column = indent;
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > width) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

std::string choices_of(const config::Rule& rule) {
  std::string list;
  for (const std::string& choice : rule.choices) {
    if (!choice.empty()) list += (list.empty() ? "" : ", ") + choice;
  }
  return list.empty() ? "" : " [" + list + "]";
}

}  // namespace

std::string describe(const config::Fields& fields, std::size_t width) {
  constexpr std::size_t indent = 34;  // column of the explanations
  std::string text;
  for (const std::string& section : fields.sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    for (const config::Field& field : fields.all()) {
      if (!field.key.starts_with(section + ".")) continue;
      const std::string value = config::to_string(field.built_in);
      std::string head = fmt::format("  --{}={}", field.key, value.empty() ? "\"\"" : value);
      head += head.size() + 2 > indent ? "\n" + std::string(indent, ' ')
                                       : std::string(indent - head.size(), ' ');
      text += head + wrapped(field.help + choices_of(field.rule), indent, width) + "\n";
    }
  }
  return text;
}

}  // namespace trireme::cli
