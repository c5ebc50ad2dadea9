#include <cmath>

#include "trireme/core/error.hpp"
#include "trireme/report/record.hpp"

namespace trireme::report {

std::string duration_text(double seconds) {
  // More than a million days is no estimate.
  if (!(seconds >= 0) || seconds > 1e11) return "-";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, whole % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string step_line(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left) {
  const std::string total = std::to_string(total_steps);
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3f}  lr {:.1e}  {:.3f} s  {:.0f} tok/s",
                  metrics.step, total.size(), total, metrics.loss, metrics.gradient_norm,
                  metrics.learning_rate, metrics.seconds, metrics.tokens_per_second);
  if (!metrics.skipped.empty()) line += "  SKIPPED: " + metrics.skipped;
  if (metrics.mfu != 0) line += fmt::format("  MFU {:.1f} %", 100 * metrics.mfu);
  if (const std::string left = duration_text(seconds_left); left != "-") line += "  eta " + left;
  return line;
}

std::string figure_of_merit(double tokens_per_second) {
  if (!std::isfinite(tokens_per_second) || tokens_per_second <= 0) {
    return "Figure of Merit (FOM): none";
  }
  return fmt::format("Figure of Merit (FOM): {:.1f} tokens/s", tokens_per_second);
}

}  // namespace trireme::report
