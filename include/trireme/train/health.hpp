// Whether a step's gradients may be used, and the scale of the loss that they are computed with.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "trireme/optim/optimizer.hpp"

namespace trireme::train {

/// What becomes of a step, the most severe last. Overflow: the loss scale made gradients too large.
enum class StepOutcome : std::uint8_t { sound, overflow, not_finite, outlier };
std::string_view name_of(StepOutcome outcome);

/// Judges a step by its loss and gradient norm. Both must be finite: a NaN is neither above nor
/// below anything, so that a comparison alone would let it pass. Where a limit is set, neither may
/// be more than `limit` standard deviations above the mean of the last sound steps.
class Health {
 public:
  static constexpr std::size_t window = 128;  // sound steps that are remembered
  static constexpr std::size_t least = 32;    // of them, before anything counts as an outlier

  /// `limit` 0: no outliers. `scales_loss`: in fp16, where gradients may overflow.
  explicit Health(double limit, bool scales_loss = false)
      : limit_(limit), loss_scale_(scales_loss) {}
  /// What the loss of the next step is multiplied with, and so all its gradients.
  double loss_scale() const { return loss_scale_.value(); }
  StepOutcome judge(double loss, double norm) const;
  /// Takes in what was judged: the values of a sound step, or one more in a row that is not. An
  /// overflow is neither, since the loss scale shrinks after it.
  void note(StepOutcome outcome, double loss, double norm);
  std::int64_t skipped_in_a_row() const { return skipped_; }

  /// For checkpoints: a resumed run judges as the uninterrupted one. from_json passes over what
  /// `kept` lacks; throws Error, which names the checkpoint `where`.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& kept, const std::string& where);

 private:
  double limit_;
  std::deque<double> losses_, norms_;
  std::int64_t skipped_ = 0;
  optim::LossScale loss_scale_;
};

}  // namespace trireme::train
