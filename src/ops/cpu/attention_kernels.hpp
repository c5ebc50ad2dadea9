// The vector parts of attention, on one block of queries of one head.
#pragma once

#include <cstdint>

#include "trireme/ops/ops.hpp"

#include "attention_mask.hpp"
#include "storage.hpp"

namespace trireme::ops {

/// Scores of one block of queries against the keys it may see, packed into columns.
struct ScoreBlock {
  float* scores;  // [rows, columns], already scaled
  std::int64_t stride, rows;
  const VisibleKeys* visible;
  // Of the block's first query and of the sequence's first key; null where the mask has none.
  const std::int32_t *query_positions, *key_positions;
  const std::int32_t *query_documents, *key_documents;
  const Dropout* dropout;      // null: none
  std::uint64_t index;         // dropout's index of the block's first query and key 0
  std::uint64_t index_stride;  // from one query to the next: Tk
};

/// scores ← exp(scores − row maximum), with dropout applied; lse [rows] = log Σ exp(scores);
/// inverse [rows] = 1 / Σ exp(scores − maximum), 0 for a query that sees nothing. Results are
/// stored as T (float or Bf16), each row from where its scores began: Bf16 rows are 2·stride apart.
template <class T = float>
void softmax_block(const ScoreBlock& block, float* lse, float* inverse);

/// out [rows, columns] = factor[r]·x, rounded; 0 where the factor is 0, even if x is not finite.
/// `factor` null: all 1.
void scale_rows(float* out, std::int64_t out_stride, const float* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t columns, const float* factor);
void scale_rows(Bf16* out, std::int64_t out_stride, const float* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t columns, const float* factor);

/// delta [rows] = Σ_columns a∘b.
void row_dots(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
              std::int64_t rows, std::int64_t columns, float* delta);
void row_dots(const Bf16* a, std::int64_t a_stride, const Bf16* b, std::int64_t b_stride,
              std::int64_t rows, std::int64_t columns, float* delta);

/// From scores and dprobabilities = dout·vᵀ: scores ← the probabilities that multiplied v (with
/// dropout), dprobabilities ← scale·P∘(dP − delta), the gradient of q·kᵀ. Stored as softmax_block
/// does.
template <class T = float>
void softmax_gradient_block(const ScoreBlock& block, float* dprobabilities, const float* lse,
                            const float* delta, float scale);

}  // namespace trireme::ops
