// Whether a step's gradients may be used.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme::train {

/// What is to be made of a step, the gravest last: overflow is of gradients that a loss scale made
/// too large.
enum class Verdict : std::uint8_t { sound, overflow, not_finite, outlier };
std::string_view name_of(Verdict verdict);

/// Judges a step by its loss and gradient norm: first whether both are finite (a NaN is neither
/// above nor below anything, so that a comparison alone would let it pass), then, where a limit is
/// set, whether either lies more than `limit` standard deviations above the mean of the last sound
/// steps.
class Health {
 public:
  static constexpr std::size_t window = 128;  // sound steps that are remembered
  static constexpr std::size_t least = 32;    // of them, before anything counts as an outlier

  /// `limit` 0: no outliers.
  explicit Health(double limit) : limit_(limit) {}
  /// `scaled`: gradients that are not finite while the loss is are an overflow.
  Verdict judge(double loss, double norm, bool scaled = false) const;
  /// Takes in what was judged: the values of a sound step, or one more in a row that is not; an
  /// overflow, which mends itself, is neither.
  void note(Verdict verdict, double loss, double norm);
  std::int64_t skipped_in_a_row() const { return skipped_; }

  /// For checkpoints: a resumed run judges as the uninterrupted one. from_json throws Error.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

 private:
  double limit_;
  std::deque<double> losses_, norms_;
  std::int64_t skipped_ = 0;
};

}  // namespace trireme::train
