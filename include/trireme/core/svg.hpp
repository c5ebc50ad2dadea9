// Pieces of a picture in SVG, in pixels.
#pragma once

#include <string>

namespace trireme::svg {

/// The start of a white picture, which "</svg>\n" ends.
std::string begin(double width, double height);
std::string rectangle(double x, double y, double width, double height, const std::string& fill,
                      double opacity = 1);
/// `anchor`: start, middle or end.
std::string text(double x, double y, const char* anchor, const std::string& text);

}  // namespace trireme::svg
