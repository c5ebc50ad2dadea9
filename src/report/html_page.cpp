#include "html_page.hpp"

namespace trireme::report {
namespace {

constexpr const char* style = R"(
:root { color-scheme: light dark; --line: #ddd; --head: #f3f3f3; --dim: #555; --bad: #a40000; }
body { font: 15px/1.45 sans-serif; color: #222; background: #fff; max-width: 1180px; margin: 1.5em auto; padding: 0 1em; }
.verdict { font-size: 1.2em; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(430px, 1fr)); gap: 0 1.5em; }
details { border-top: 1px solid var(--line); padding: 0.3em 0; } summary { cursor: pointer; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05em; margin-bottom: 0.3em; }
table { border-collapse: collapse; font-size: 0.88em; margin: 0.8em 0; }
th, td { border: 1px solid var(--line); padding: 0.25em 0.55em; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { background: var(--head); }
.invalid { color: var(--bad); font-weight: bold; }
figure { margin: 1em 0; } figcaption { font-size: 0.85em; color: var(--dim); }
svg { max-width: 100%; height: auto; }
.note { color: var(--dim); font-size: 0.9em; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --head: #2b2b2b; --dim: #aaa; --bad: #ff7b72; }
  body { color: #ddd; background: #1b1b1b; }
  svg { filter: invert(1) hue-rotate(180deg); }
}
)";

}  // namespace

std::string HtmlPage::text(const std::string& title) const {
  const std::vector<std::string> pictures = draw(plots_);
  std::vector<std::string> parts = parts_;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    parts[places_[i]] += pictures[i] + "\n<figcaption>" + html_text(plots_[i].caption) +
                         "</figcaption>\n</figure>\n";
  }
  std::string all;
  for (const std::string& part : parts) all += part;
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>" +
         html_text(title) + "</title>\n<style>" + style + "</style>\n</head>\n<body>\n" + all +
         "</body>\n</html>\n";
}

std::string html_row(const char* cell, const std::vector<std::string>& values) {
  std::string html = "<tr>";
  for (const std::string& value : values) {
    const bool number = !value.empty() && value.find_first_not_of("0123456789.-") == value.npos;
    html += fmt::format("<{0}{1}>{2}</{0}>", cell,
                        number && *cell == 't' && cell[1] == 'd' ? " class=\"n\"" : "",
                        html_text(value));
  }
  return html + "</tr>\n";
}

}  // namespace trireme::report
