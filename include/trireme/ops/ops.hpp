// All mathematical operations of Trireme. Each backend implements them (cpu/, cuda/); the CPU
// implementation is the oracle of the others. Shapes are given beside each argument: R rows, C
// columns, B sequences, T tokens of a sequence, H query heads, G key/value heads, D head size, V
// vocabulary rows.
//
// Types: x, y, q, k, v, out, logits, tables, gains, biases and their gradients are of the compute
// type, one for all of a call: fp32, or bf16 or fp16 if the backend supports it. On the CPU a
// weight (the right factor of a product, a bias, gain or table) may be fp32 beside bf16: it is
// rounded to nearest as it is read. A norm's gain and bias are of one type. Statistics (mean, rstd,
// lse, maximum, sum, factor, weights), frequencies and gradients of weights (+=, but where a
// product is asked to write) are fp32, and so is all arithmetic except the factors of products.
//
// Views are contiguous unless a comment says "strided". Operations are done in the order of the
// calls, not before they return: the host reads results through device::Device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/interface.hpp"
#include "trireme/core/pairwise.hpp"
#include "trireme/core/random.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::device {
class MemoryLedger;
}

namespace trireme::ops {

/// Options of a product. The last four exclude each other and, except `row_sum`, accumulate.
struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c += instead of c =; c may be fp32 beside narrower factors
  /// In reproducible mode, if a is not transposed: c has the bits of one product for each so many
  /// rows of a; 0: of one for all.
  std::int64_t group_rows = 0;
  Tensor bias;         // [n], added to every row
  Tensor before_gelu;  // [m, n] out, strided: product + bias, of which c is the gelu
  Tensor gelu_input;   // [m, n], strided: c = product·gelu'(gelu_input)
  Tensor row_sum;      // fp32 [m] += Σ_k op(a): the bias gradient beside a weight gradient
};

/// c = op(a)·op(b), as Ops::matmul takes them.
struct Matmul {
  Tensor c, a, b;
  MatmulOptions options;
};

/// A sum of products, slots[0] [m, n]. The products are 2^i terms of equally many neighbors, for
/// 1 + i slots of one shape. A term's products are added one after the other, to what slots[0]
/// holds if there is one term and the first product has `accumulate`; then the terms as
/// add_pairwise adds them. Products have no `c`, and of the options only the transpositions,
/// `accumulate`, which all but a term's first have, and row_sum, of which terms have their own.
/// Those of bf16 factors and several terms have one inner extent.
struct MatmulSum {
  std::vector<Tensor> slots;  // the others may hold sums of some terms
  std::vector<Matmul> products;

  std::int64_t terms() const { return std::int64_t{1} << (slots.size() - 1); }
  std::int64_t products_of_term() const {
    TRIREME_ASSERT(!products.empty() && std::ssize(products) % terms() == 0,
                   "{} products of {} terms", products.size(), terms());
    return std::ssize(products) / terms();
  }
  /// Product number `i` of the term, into a slot.
  Matmul product(std::int64_t term, std::int64_t i, std::int64_t slot) const {
    return product_into(term * products_of_term() + i, slot);
  }
  /// Product number `i` of the sum, into a slot.
  Matmul product_into(std::int64_t i, std::int64_t slot) const {
    Matmul p = products[static_cast<std::size_t>(i)];
    p.c = slots[static_cast<std::size_t>(slot)];
    return p;
  }
};

/// Which keys a query sees: those at positions up to its own (causal) in its own document.
struct AttentionMask {
  bool causal = true;
  Tensor query_positions;  // i32 [B, Tq], ascending within a document
  Tensor key_positions;    // i32 [B, Tk]
  Tensor query_documents;  // i32 [B, Tq]; absent: one document
  Tensor key_documents;    // i32 [B, Tk]; absent: one document
  /// Causal, Tq = Tk, positions 0, 1, … on both sides, one document: the tensors are not read.
  bool plain = false;
};

/// Inverted dropout: an element is kept when random_bits(key, index) ≥ rate·2^32 and then
/// multiplied by 1/(1 − rate). The logical index of an element never depends on the layout.
struct Dropout {
  float rate = 0;
  RandomKey key;
};

/// The model's query heads that a call of attention has: [first, first + H) of `all`. Query head h
/// of the model uses key/value head h / share; the call's first key/value head is that of query
/// head `first`. All zero: all heads, share = H/G.
struct HeadSlice {
  std::int64_t first = 0, all = 0, share = 0;
};

/// Heads of one call of attention, and of its backward, as Ops::attention takes them.
struct AttentionHeads {
  Tensor out, lse, q, k, v;
  HeadSlice slice;
  Tensor dq, dk, dv, dout;  // of backward
};

/// Operands of norm_backward_weight or, without x, of column_sum(dgain, dy).
struct RowSums {
  Tensor dgain, dbias, dy, x, mean, rstd;
};

/// A table that holds rows [first, first + its rows) of `all` (0: all of them).
struct RowTile {
  std::int64_t first = 0, all = 0;
};

/// What a look-up does with y: write (zeros for rows of other tiles), fill in (keep those) or add.
enum class Lookup : std::uint8_t { write, fill_in, add };

struct AdamWStep {
  float learning_rate = 0, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  float weight_decay = 0;    // decoupled: p −= learning_rate·weight_decay·p
  float correction1 = 1;     // 1 − beta1^t, computed in fp64 by the caller; t counts from 1
  float correction2 = 1;     // 1 − beta2^t, the same
  float gradient_scale = 1;  // clipping: multiplies each gradient as it is read
};

/// Indices of consecutive elements in a larger array: rows of `width`, with `skip` other elements
/// between two rows. Element i has index first + i + ⌊(column + i) / width⌋·skip.
struct ElementIndices {
  std::int64_t first = 0;
  std::int64_t column = 0;  // of element 0 in its row
  std::int64_t width = 0, skip = 0;
  std::int64_t operator()(std::int64_t i) const {
    return first + i + (skip == 0 ? 0 : (column + i) / width * skip);
  }
  /// Of the elements from number `begin` on.
  ElementIndices from(std::int64_t begin) const {
    return {(*this)(begin), skip == 0 ? 0 : (column + begin) % width, width, skip};
  }
};

/// Parameters rounded from their fp32 masters to the type that units read.
struct RoundedCopy {
  Tensor values;            // [n]; absent: none
  bool stochastic = false;  // up with the probability of the truncated part, else to nearest
  RandomKey key;            // of stochastic rounding, by the elements' indices
  ElementIndices indices;
};

class Ops : public Interface {
 public:
  // Fill, copy, add, scale
  virtual void fill(const Tensor& y, float value) = 0;  // any float type
  /// [R, C] strided. Between float types it converts, rounding to nearest, ties to even.
  virtual void copy(const Tensor& y, const Tensor& x) = 0;
  virtual void add(const Tensor& y, const Tensor& a, const Tensor& b) = 0;  // y = a + b; may alias
  /// terms[0] = Σ terms, fp32 and of one shape, as add_pairwise adds them. The others may change.
  virtual void add_up(std::span<const Tensor> terms) {
    add_pairwise(std::ssize(terms), [&](std::int64_t to, std::int64_t from) {
      const Tensor& sum = terms[static_cast<std::size_t>(to)];
      add(sum, sum, terms[static_cast<std::size_t>(from)]);
    });
  }
  virtual void scale(const Tensor& y, float factor) = 0;
  /// scale by factor[0], fp32 [1], read when the operation runs: for captured graphs.
  virtual void scale_by(const Tensor& y, const Tensor& factor) = 0;

  // Matrix products
  /// c [m, n] = op(a) [m, k] · op(b) [k, n] (+ bias). All strided in rows.
  virtual void matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                      const MatmulOptions& options) = 0;
  /// Products none of which reads or writes what another one writes: threads share them all.
  virtual void independent_matmuls(std::span<const Matmul> products) {
    for (const Matmul& p : products) matmul(p.c, p.a, p.b, p.options);
  }
  /// sum [m, n] = Σ of the products, a power of two, as add_pairwise adds them: with the bits of
  /// matmul and add. Products have no `c`, and of the options only transpose_b, bias and
  /// group_rows, which is the same in all. `levels`: log2(products) tensors of the type and at
  /// least the rows of `sum`, for sums of some products.
  virtual void sum_of_matmuls(const Tensor& sum, std::span<const Tensor> levels,
                              std::span<const Matmul> products) {
    TRIREME_ASSERT(products.size() >> levels.size() <= 1, "{} products and {} levels",
                   products.size(), levels.size());
    const auto slot = [&](std::int64_t i) {
      return i == 0 ? sum : levels[static_cast<std::size_t>(i - 1)].slice(0, 0, sum.extent(0));
    };
    sum_pairwise(
        std::ssize(products),
        [&](std::int64_t i, std::int64_t to) {
          const Matmul& p = products[static_cast<std::size_t>(i)];
          matmul(slot(to), p.a, p.b, p.options);
        },
        [&](std::int64_t to, std::int64_t from) { add(slot(to), slot(to), slot(from)); });
  }
  /// Sums of as many terms each, none of which reads or writes what another one writes: with the
  /// bits of matmul and add.
  virtual void independent_sums(std::span<const MatmulSum> sums) {
    if (sums.empty()) return;
    for (const MatmulSum& sum : sums) {
      TRIREME_ASSERT(sum.terms() == sums.front().terms(), "sums of {} and {} terms", sum.terms(),
                     sums.front().terms());
    }
    sum_pairwise(
        sums.front().terms(),
        [&](std::int64_t term, std::int64_t slot) {
          std::vector<Matmul> products;
          for (std::int64_t i = 0; i == 0 || !products.empty(); ++i) {
            products.clear();
            for (const MatmulSum& sum : sums) {
              if (i < sum.products_of_term()) products.push_back(sum.product(term, i, slot));
            }
            independent_matmuls(products);
          }
        },
        [&](std::int64_t to, std::int64_t from) {
          for (const MatmulSum& sum : sums) {
            const Tensor& total = sum.slots[static_cast<std::size_t>(to)];
            add(total, total, sum.slots[static_cast<std::size_t>(from)]);
          }
        });
  }
  /// sum [C] += Σ_rows x [R, C]; bias gradients. Strided in rows.
  virtual void column_sum(const Tensor& sum, const Tensor& x) = 0;

  // Norms
  /// LayerNorm (Ba et al., 2016): y = (x − mean)·rstd·gain + bias over each row of [R, C]; writes
  /// mean and rstd [R] for backward; `bias` may be absent. Without `mean` and `bias` RMSNorm (Zhang
  /// and Sennrich, 2019): y = x·rstd·gain, rstd = 1/√(mean(x²) + epsilon).
  virtual void norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                    const Tensor& gain, const Tensor& bias, float epsilon) = 0;
  /// add(sum, a, b), then norm of `sum`, with the bits of both but without reading `sum` again.
  /// sum may be a or b.
  virtual void add_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& sum,
                        const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
                        float epsilon) = 0;
  /// dx = the gradient for x, plus `residual` [R, C] unless absent: the gradient that reaches x
  /// beside the norm. It may be dx.
  virtual void norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                   const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                   const Tensor& residual) = 0;
  virtual void norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                    const Tensor& x, const Tensor& mean, const Tensor& rstd) = 0;
  /// Calls that write different sums: threads share them.
  virtual void independent_row_sums(std::span<const RowSums> calls) {
    for (const RowSums& c : calls) {
      if (c.x) {
        norm_backward_weight(c.dgain, c.dbias, c.dy, c.x, c.mean, c.rstd);
      } else {
        column_sum(c.dgain, c.dy);
      }
    }
  }

  /// norm_backward_input and norm_backward_weight, reading x and dy once where a backend can.
  virtual void norm_backward(const Tensor& dx, const Tensor& dgain, const Tensor& dbias,
                             const Tensor& dy, const Tensor& x, const Tensor& gain,
                             const Tensor& mean, const Tensor& rstd, const Tensor& residual) = 0;

  // Activations
  /// tanh form: ½x(1 + tanh(√(2/π)(x + 0.044715x³))). Hendrycks and Gimpel (2016).
  virtual void gelu(const Tensor& y, const Tensor& x) = 0;
  virtual void gelu_backward(const Tensor& dx, const Tensor& dy,
                             const Tensor& x) = 0;  // dx may alias dy
  /// y [R, F] = silu(gate)·up of gate_up [R, 2F] = gate | up. Shazeer, "GLU variants" (2020).
  virtual void swiglu(const Tensor& y, const Tensor& gate_up) = 0;
  virtual void swiglu_backward(const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) = 0;

  // Dropout
  /// y [R, C] = mask·x/(1 − rate); element (r, c) has index rows[r]·C + c, rows i64 [R]; y may
  /// alias x. Its own backward.
  virtual void dropout(const Tensor& y, const Tensor& x, const Tensor& rows,
                       const Dropout& dropout) = 0;

  // Embedding
  /// y [R, C] = table[ids], ids i32 [R]; −0 becomes +0, as it does in a sum over tiles.
  virtual void embedding(const Tensor& y, const Tensor& ids, const Tensor& table,
                         const RowTile& tile = {}, Lookup lookup = Lookup::write) = 0;
  /// dtable[ids[r]] += dy[r] in row order, for ids (i32 [R]) in the tile.
  virtual void embedding_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy,
                                  const RowTile& tile = {}) = 0;

  // Rotary positions
  /// Rotates pairs (i, i + D/2) of x [R, heads, D] in place by positions[r]·frequencies[i];
  /// positions i32 [R], frequencies fp32 [D/2]; strided. `inverse` rotates back (backward). Su et
  /// al., "RoFormer" (2021).
  virtual void rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                      bool inverse) = 0;

  // Attention
  /// out [B, Tq, H, D] = softmax(q·kᵀ·scale)·v with q [B, Tq, H, D], k and v [B, Tk, G, D]
  /// (strided), H a multiple of G: head h uses group h / (H/G). lse [B, H, Tq] = log Σ exp(scores),
  /// −∞ (and a zero row) for a query that sees nothing. Scores exist for one block of queries of
  /// one head at a time. Dropout acts on the probabilities: element (b, h, i, j) has index
  /// ((samples[b]·H + h)·Tq + i)·Tk + j, with samples i64 [B] (absent if rate is 0) and H and h of
  /// the whole model (`heads`). Dao et al., "FlashAttention" (2022).
  virtual void attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                         const Tensor& v, const AttentionMask& mask, float scale,
                         const Dropout& dropout, const Tensor& samples,
                         const HeadSlice& heads = {}) = 0;
  /// dq, dk, dv (strided, written, not accumulated) from dout [B, Tq, H, D].
  virtual void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                  const Tensor& dout, const Tensor& out, const Tensor& lse,
                                  const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionMask& mask, float scale, const Dropout& dropout,
                                  const Tensor& samples, const HeadSlice& heads = {}) = 0;
  /// Calls of one mask, none of which writes what another one reads or writes: threads share them.
  virtual void independent_attention(std::span<const AttentionHeads> calls,
                                     const AttentionMask& mask, float scale, const Dropout& dropout,
                                     const Tensor& samples) {
    for (const AttentionHeads& x : calls) {
      attention(x.out, x.lse, x.q, x.k, x.v, mask, scale, dropout, samples, x.slice);
    }
  }
  virtual void independent_attention_backward(std::span<const AttentionHeads> calls,
                                              const AttentionMask& mask, float scale,
                                              const Dropout& dropout, const Tensor& samples) {
    for (const AttentionHeads& x : calls) {
      attention_backward(x.dq, x.dk, x.dv, x.dout, x.out, x.lse, x.q, x.k, x.v, mask, scale,
                         dropout, samples, x.slice);
    }
  }
  /// Attention to two sets of keys from that to each: out, other fp32 [T, H, D] and their lse,
  /// other_lse [H, T] become out and lse for both. out = Σ exp(lse_i − lse)·out_i, lse = log Σ
  /// exp(lse_i).
  virtual void merge_attention(const Tensor& out, const Tensor& lse, const Tensor& other,
                               const Tensor& other_lse) = 0;

  // Vocabulary-parallel cross-entropy: operations that `model` reduces across tensor ranks
  /// maximum [R] = max over the columns of logits [R, V] and, with `accumulate`, its old value.
  virtual void row_maximum(const Tensor& maximum, const Tensor& logits,
                           bool accumulate = false) = 0;
  /// sum [R] = Σ exp(logits − maximum); target_logit [R] = logits[r, targets[r] − first] if that
  /// column exists here, else 0. targets i32 [R].
  virtual void exp_sum_and_target(const Tensor& sum, const Tensor& target_logit,
                                  const Tensor& logits, const Tensor& maximum,
                                  const Tensor& targets, std::int64_t first) = 0;
  /// Both of these in one pass over logits that hold the whole vocabulary.
  virtual void softmax_statistics(const Tensor& maximum, const Tensor& sum,
                                  const Tensor& target_logit, const Tensor& logits,
                                  const Tensor& targets) = 0;
  /// logits ← factor[r]·(softmax − onehot(target)), the gradient, in place; factor [R].
  virtual void cross_entropy_gradient(const Tensor& logits, const Tensor& maximum,
                                      const Tensor& sum, const Tensor& targets,
                                      const Tensor& factor, std::int64_t first) = 0;
  /// total f64 [1] += Σ weights[r]·(log sum + maximum − target_logit), in fp64 and a fixed order.
  virtual void weighted_loss(const Tensor& total, const Tensor& sum, const Tensor& maximum,
                             const Tensor& target_logit, const Tensor& weights) = 0;

  // Optimizer
  /// sums f64 [⌈n/4096⌉] += Σ x² of each block of 4,096 elements of x [n]; or sums [1] += all
  /// blocks.
  virtual void add_squares(const Tensor& sums, const Tensor& x) = 0;
  /// One AdamW update of flat fp32 ranges [n], one pass, with PyTorch's formula:
  ///   g = gradient_scale·gradient;  m = beta1·m + (1 − beta1)·g;  v = beta2·v + (1 − beta2)·g²;
  ///   p = p·(1 − learning_rate·weight_decay)
  ///       − learning_rate·(m / correction1) / (√v / √correction2 + epsilon).
  /// Loshchilov and Hutter (2019).
  virtual void adamw(const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
                     const Tensor& gradients, const AdamWStep& step,
                     const RoundedCopy& copy = {}) = 0;
  /// momentum_buffer = momentum·buffer + g + weight_decay·p; p −= learning_rate·buffer.
  virtual void sgd(const Tensor& parameters, const Tensor& momentum_buffer, const Tensor& gradients,
                   float learning_rate, float momentum, float weight_decay, float gradient_scale,
                   const RoundedCopy& copy = {}) = 0;
  /// copy.values [n] = x [n], fp32, rounded; stochastically only to bf16.
  virtual void round(const RoundedCopy& copy, const Tensor& x) = 0;
};

/// The CPU backend on `threads` OpenMP threads (0: as many as OpenMP offers). Its workspace is
/// entered in `ledger`, if given, which must outlive it. With `reproducible` the bits of fp32
/// products do not depend on `threads`; those of all other operations never do.
std::unique_ptr<Ops> make_cpu_ops(int threads, device::MemoryLedger* ledger = nullptr,
                                  bool reproducible = false);

/// The widest instruction set that oneDNN uses on this machine, as text.
std::string instruction_set();
/// Whether the processor multiplies bf16 itself (AVX512_BF16 or AMX) and ONEDNN_MAX_CPU_ISA allows
/// it. Otherwise bf16 products run in fp32 on widened elements, no faster than fp32.
bool cpu_multiplies_bf16();
/// How bf16 products are computed on this machine, as text.
std::string cpu_bf16_products();

}  // namespace trireme::ops
