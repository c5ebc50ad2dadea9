// Shared by tests of schedules.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/schedule/simulate.hpp"

namespace trireme::schedule {

/// Calls `check` with every schedule of p ≤ 8 stages, m ≤ 32 micro-batches, v ≤ 4 chunks.
inline void for_each_schedule(const std::string& name,
                              const std::function<void(const Schedule&)>& check) {
  const bool chunked = name == "gpipe" || name == "interleaved";
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      for (int v = 1; v <= (chunked ? 4 : 1); ++v) {
        SCOPED_TRACE(name + ": p " + std::to_string(p) + ", m " + std::to_string(m) + ", v " +
                     std::to_string(v));
        check(make_schedule(name, p, m, v));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

/// The text of the error that `work` throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

using enum Kind;

/// One chunk per stage: lists of (kind, micro-batch).
inline Schedule by_hand(int micro_batches, std::vector<std::vector<Action>> actions) {
  return {"by hand", static_cast<int>(actions.size()), micro_batches, 1, std::move(actions)};
}

/// Stage 0 runs all forwards first, stage 1 alternates: legal, but needs many buffers.
inline Schedule greedy_first_stage(int micro_batches) {
  Schedule plan = make_schedule("1f1b", 2, micro_batches);
  plan.name = "greedy";
  plan.actions[0] = make_schedule("gpipe", 2, micro_batches).actions[0];
  return plan;
}

}  // namespace trireme::schedule
