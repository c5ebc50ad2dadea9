// Optimizer, learning-rate schedule and clipping.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"

namespace trireme::optim {

struct OptimConfig {
  std::string name = "adamw";
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0.1;
  double clip = 1.0;  // global gradient norm; 0: no clipping
  std::string schedule = "cosine";
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // 0: until the last step; for wsd the length of the final decay
  double final_learning_rate = 0.1;  // as a share of learning_rate

  void declare(config::Fields& fields) {
    fields.add("name", name, "optimizer", config::one_of({"adamw", "sgd"}));
    fields.add("learning_rate", learning_rate, "peak learning rate", config::positive());
    fields.add("beta1", beta1, "AdamW: decay of the first moment", config::below(0, 1));
    fields.add("beta2", beta2, "AdamW: decay of the second moment", config::below(0, 1));
    fields.add("epsilon", epsilon, "AdamW: added to the root of the second moment",
               config::positive());
    fields.add("momentum", momentum, "SGD: momentum", config::below(0, 1));
    fields.add("weight_decay", weight_decay, "decoupled for AdamW; matrices and embeddings only",
               config::non_negative());
    fields.add("clip", clip, "largest global gradient norm; 0 does not clip",
               config::non_negative());
    fields.add("schedule", schedule, "course of the learning rate after warm-up",
               config::one_of({"constant", "linear", "cosine", "wsd"}));
    fields.add("warmup_steps", warmup_steps, "steps of linear warm-up", config::at_least(0));
    fields.add("decay_steps", decay_steps,
               "steps of decay after warm-up (wsd: at the end); 0: all that remain (wsd: a tenth)",
               config::at_least(0));
    fields.add("final_learning_rate", final_learning_rate,
               "last learning rate, as a share of the peak", config::in_range(0, 1));
  }
};

}  // namespace trireme::optim
