// Choosing the next token.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::train {

/// Draws a token from `logits` [V]: the likeliest for temperature 0; else from softmax(logits /
/// temperature) among the `top_k` likeliest (0: all) and of those the fewest whose probabilities
/// reach `top_p` (Holtzman et al., 2020). `u` is uniform on (0, 1).
std::int64_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k,
                          double top_p, double u);

}  // namespace trireme::train
