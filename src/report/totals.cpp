// Computes again what a record has beside its steps' losses and seconds.
#include <cmath>

#include <fmt/format.h>

#include "trireme/report/runs.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

bool equal(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

class Totals {
 public:
  Totals(const Attempt& attempt, Run& run)
      : attempt_(attempt), run_(run), per_step_(attempt.facts.batch * attempt.facts.sequence) {}

  void check_steps() {
    const RunFacts& facts = attempt_.facts;
    const std::size_t before = run_.faults.size();
    for (std::size_t i = 0; i < attempt_.steps.size() && run_.faults.size() == before; ++i) {
      const RecordedStep& step = attempt_.steps[i];
      const auto expect = [&](const char* key, double recorded, double computed) {
        compare(fmt::format("metrics.jsonl: step {}: {}", step.step, key), recorded, computed);
      };
      if (i > 0) {
        expect("tokens", static_cast<double>(step.tokens),
               static_cast<double>(attempt_.steps[i - 1].tokens + per_step_));
      }
      if (step.tokens_per_second == 0) continue;  // it has none
      expect("tokens_per_second", step.tokens_per_second,
             static_cast<double>(per_step_) / step.seconds);
      if (step.mfu == 0) continue;
      expect("mfu", step.mfu, step.tokens_per_second * facts.flops_per_token / facts.peak);
    }
  }

  void check_summary() {
    if (!attempt_.summary.is_object() || attempt_.summary.contains("incomplete")) return;
    double seconds = 0;
    for (const RecordedStep& step : attempt_.steps) seconds += step.seconds;
    const auto tokens = static_cast<double>(std::ssize(attempt_.steps) * per_step_);
    expect("tokens_of_attempt", tokens);
    expect("figure_of_merit", tokens / seconds);
    expect("loss", attempt_.steps.back().loss);
    if (!attempt_.evaluations.empty()) {
      expect("validation_loss", attempt_.evaluations.back().loss);
    }
  }

 private:
  void compare(const std::string& what, double recorded, double computed) {
    if (equal(recorded, computed)) return;
    run_.faults.push_back(fmt::format("attempt {:04}: {} is {}, and its steps give {}",
                                      attempt_.number, what, recorded, computed));
  }
  /// A key of summary.json; not all formats have all.
  void expect(const char* key, double computed) {
    if (!attempt_.summary.contains(key)) return;
    const std::string file = (attempt_.folder / "summary.json").string();
    compare(fmt::format("summary.json: {}", key), number_at(attempt_.summary, key, file), computed);
  }

  const Attempt& attempt_;
  Run& run_;
  std::int64_t per_step_;
};

}  // namespace

void check_totals(const Attempt& attempt, Run& run) {
  if (attempt.steps.empty() || !attempt.run.is_object()) return;
  Totals totals(attempt, run);
  totals.check_steps();
  totals.check_summary();
}

}  // namespace trireme::report
