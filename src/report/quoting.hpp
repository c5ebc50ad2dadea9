// Text of others inside what we write: each of these makes it harmless in its place.
#pragma once

#include <string>
#include <string_view>

namespace trireme::report {

/// One line of UTF-8 for a terminal: what is no UTF-8 is replaced, control characters are escaped.
std::string plain_text(std::string_view text);
/// In single quotes, as gnuplot reads them: nothing inside is interpreted, a quote is doubled.
std::string gnuplot_text(std::string_view text);
/// For content and for attributes in double quotes; characters that XML 1.0 has not are left out,
/// and what is no UTF-8 is replaced.
std::string html_text(std::string_view text);
/// A field of CSV (RFC 4180): in double quotes where it needs them.
std::string csv_text(std::string_view text);

}  // namespace trireme::report
