// A page in HTML that refers to nothing outside itself.
#pragma once

#include <string>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {

/// A document whose pictures are drawn together at the end.
class HtmlPage {
 public:
  void add(const std::string& html) { parts_.push_back(html); }
  void heading(int level, const std::string& text) {
    add(fmt::format("<h{0}>{1}</h{0}>\n", level, html_text(text)));
  }
  /// What follows, up to end_fold(), is hidden until a reader opens it.
  void begin_fold(const std::string& summary) {
    add("<details>\n<summary>" + html_text(summary) + "</summary>\n");
  }
  void end_fold() { add("</details>\n"); }
  void paragraph(const std::string& text, const char* kind = "") {
    add(fmt::format("<p{}>{}</p>\n", *kind == 0 ? "" : fmt::format(" class=\"{}\"", kind),
                    html_text(text)));
  }
  void list(const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    std::string html = "<ul>\n";
    for (const std::string& line : lines) html += "<li>" + html_text(line) + "</li>\n";
    add(html + "</ul>\n");
  }
  /// Nothing where the plot has no data.
  void figure(Plot plot) {
    if (plot.script.empty()) return;
    places_.push_back(parts_.size());
    parts_.push_back("<figure>\n<h3>" + html_text(plot.title) + "</h3>\n");
    plots_.push_back(std::move(plot));
  }
  /// The whole document. Throws Error where gnuplot is missing or fails.
  std::string text(const std::string& title) const;

 private:
  std::vector<std::string> parts_;
  std::vector<std::size_t> places_;
  std::vector<Plot> plots_;
};

/// A row of a table; `cell`: "td" or "th".
std::string html_row(const char* cell, const std::vector<std::string>& values);

}  // namespace trireme::report
