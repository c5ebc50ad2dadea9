// What a run checks before it starts and how it ends; the jobs behind the subcommands evaluate and
// generate, which are collective over the session.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "trireme/comm/session.hpp"
#include "trireme/core/config.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/config.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

/// Checks everything that can be known before memory is taken, and fills in what is derived; throws
/// ConfigError. Needs `config.data.path` for the vocabulary.
void validate(RunConfig& config, const LayoutFacts& facts);
/// The part of it on which it depends how many ranks there are in the grid: data_parallel.method
/// and what it cannot be combined with.
void check_method(const RunConfig& config, const LayoutFacts& facts);
/// The same as far as no dataset is needed: model, batch and layout.
void validate_layout(RunConfig& config, const LayoutFacts& facts);

/// How a run ended in order: all steps are done, or it saved ahead of that, on a signal or
/// because of a limit of time, and is to be started again; or this rank lost the others, who may go
/// on without it (server.tolerate_failures).
enum class Ending : std::uint8_t { done, requeue, cut_off };
/// Exit codes: 0 for done, 75 for requeue (EX_TEMPFAIL of sysexits.h), 1 for cut off.
constexpr int exit_code(Ending ending) {
  constexpr int codes[] = {0, 75, 1};
  return codes[static_cast<std::size_t>(ending)];
}

struct EvaluateOptions {
  std::filesystem::path checkpoint;  // a step folder, or a run folder whose newest is taken
  std::string split = "valid";       // valid | train
};
/// Prints and returns the mean loss over a split; model and data come from the checkpoint's
/// configuration, overridden by `config.data.path` and `config.train.evaluate_samples` where set.
double evaluate(comm::Session& session, const RunConfig& config, const EvaluateOptions& options);

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a step folder, or a run folder whose newest is taken
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;
  std::int64_t seed = 1;
};
/// Prints the prompt and its continuation on rank 0 as it is made; returns the text.
std::string generate(comm::Session& session, const RunConfig& config,
                     const GenerateOptions& options);

/// Draws a token from `logits` [V]: the likeliest for temperature 0; else from softmax(logits /
/// temperature) among the `top_k` likeliest (0: all) and of those the fewest whose probabilities
/// reach `top_p` (Holtzman et al., 2020). `u` is uniform on (0, 1).
std::int64_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k,
                          double top_p, double u);

}  // namespace trireme::train
