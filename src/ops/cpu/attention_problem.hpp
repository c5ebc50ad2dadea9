// Calls of attention in fp32 or bf16: shapes, heads, blocks of queries, tasks; and the vector
// parts, on one block of queries of one head (attention_kernels.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/core/pairwise.hpp"
#include "trireme/ops/workspace.hpp"

#include "attention_mask.hpp"
#include "prefetch.hpp"
#include "rows.hpp"
#include "threads.hpp"

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

/// out [rows, columns] = factor[r]·x, rounded; factor 0 gives 0, even of infinity; null: all 1.
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
/// dropout), dprobabilities ← scale·P∘(dP − delta), the gradient of q·kᵀ. Stored as above.
template <class T = float>
void softmax_gradient_block(const ScoreBlock& block, float* dprobabilities, const float* lse,
                            const float* delta, float scale);

/// Heads of one tensor [B, T, heads, D].
template <class T>
struct HeadsOf {
  T* data = nullptr;
  std::int64_t batch_stride = 0, stride = 0, head_stride = 0;
  T* at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return data + b * batch_stride + t * stride + h * head_stride;
  }
};

/// Shared by the tasks of one of several independent calls, of one mask.
struct Problem : AttentionShape {
  float scale = 0;
  const Dropout* dropout = nullptr;  // null: none
  const std::int64_t* samples = nullptr;
  const Visibility* visibility = nullptr;
  HeadSlice slice;            // resolved: all and share are not 0
  bool reproducible = false;  // the bits of a sequence do not depend on the number of sequences

  std::int64_t scores_width = 0;  // largest number of columns of a block of scores

  std::int64_t blocks() const { return (queries + query_block - 1) / query_block; }
  std::int64_t group_of(std::int64_t head) const {
    return (slice.first + head) / slice.share - slice.first / slice.share;
  }
  /// The first query head here that uses key/value head `group`.
  std::int64_t first_head(std::int64_t group) const {
    const std::int64_t first = (slice.first / slice.share + group) * slice.share - slice.first;
    return std::clamp<std::int64_t>(first, 0, heads);
  }
  /// Stride of scores: a cache line more than needed, so that rows do not share cache sets.
  std::int64_t row() const { return (scores_width + 15) / 16 * 16 + 16; }
  /// The kernels' view of `rows` queries from `begin` on.
  ScoreBlock score_block(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t rows,
                         const VisibleKeys& visible, float* scores) const {
    const auto from = [](const std::int32_t* p, std::int64_t i) {
      return p == nullptr ? nullptr : p + i;
    };
    const std::int64_t sample = dropout == nullptr ? 0 : samples[b];
    return {scores,
            row(),
            rows,
            &visible,
            from(visibility->query_positions(b), begin),
            visibility->key_positions(b),
            from(visibility->query_documents(b), begin),
            visibility->key_documents(b),
            dropout,
            static_cast<std::uint64_t>(((sample * slice.all + slice.first + h) * queries + begin) *
                                       keys),
            static_cast<std::uint64_t>(keys)};
  }
};

inline Problem problem_of(const Tensor& q, const Tensor& k, float scale, const Dropout& dropout,
                          const Tensor& samples, const Visibility& visibility, HeadSlice slice) {
  TRIREME_ASSERT(q.shape().dimensions() == 4 && k.shape().dimensions() == 4, "attention of {}, {}",
                 q.shape().to_string(), k.shape().to_string());
  if (slice.all == 0) slice = {0, q.extent(2), q.extent(2) / k.extent(2)};
  const Problem p{{q.extent(0), q.extent(1), k.extent(1), q.extent(2), k.extent(2), q.extent(3)},
                  scale,
                  dropout.rate > 0 ? &dropout : nullptr,
                  dropout.rate > 0 ? flat<std::int64_t>(samples, q.extent(0)) : nullptr,
                  &visibility,
                  slice};
  TRIREME_ASSERT(p.heads > 0 && slice.share > 0 && slice.first + p.heads <= slice.all &&
                     slice.all % slice.share == 0 && p.group_of(p.heads - 1) == p.groups - 1,
                 "heads {} + {} of {} over {} groups", slice.first, p.heads, slice.all, p.groups);
  TRIREME_ASSERT(dropout.rate >= 0 && dropout.rate < 1, "rate {}", dropout.rate);
  return p;
}

template <class T>
HeadsOf<T> heads_of(const Tensor& x, const Shape& expected) {
  TRIREME_ASSERT(x.shape() == expected, "attention: {} where {} is needed", x.shape().to_string(),
                 expected.to_string());
  return {x.as<T>(), x.stride(0), x.stride(1), x.stride(2)};
}
template <class T>
HeadsOf<T> query_heads(const Problem& p, const Tensor& x) {
  return heads_of<T>(x, {p.batch, p.queries, p.heads, p.size});
}
template <class T>
HeadsOf<T> key_heads(const Problem& p, const Tensor& x) {
  return heads_of<T>(x, {p.batch, p.keys, p.groups, p.size});
}

/// All operands of one call of forward, and of backward.
template <class T>
struct OperandsOf {
  HeadsOf<T> q, k, v, out;
  float* lse;
};
template <class T>
struct GradientsOf : OperandsOf<T> {
  HeadsOf<T> dout, dq, dk, dv;
};
template <class T>
OperandsOf<T> operands_of(const Problem& p, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& out, const Tensor& lse) {
  return {query_heads<T>(p, q), key_heads<T>(p, k), key_heads<T>(p, v), query_heads<T>(p, out),
          flat(lse, p.batch * p.heads * p.queries)};
}

/// Rows of a head to prefetch at most: more would evict the current task's data.
inline constexpr std::int64_t rows_ahead = 256;

template <class T>
void prefetch_head(PrefetchQueue& ahead, const Problem& p, const HeadsOf<T>& x, std::int64_t b,
                   std::int64_t h, std::int64_t rows) {
  ahead.add(x.at(b, 0, h), x.stride, std::min(rows, rows_ahead), p.size);
}

/// Prefetches the results of query head `head` of B·H and the operands of the next head, if any.
template <class T>
PrefetchQueue ahead_of_forward(const Problem& p, const OperandsOf<T>& x, std::int64_t head) {
  const std::int64_t next = head + 1;
  PrefetchQueue ahead;
  prefetch_head(ahead, p, x.out, head / p.heads, head % p.heads, p.queries);
  if (next >= p.batch * p.heads) return ahead;
  const std::int64_t b = next / p.heads, h = next % p.heads;
  prefetch_head(ahead, p, x.k, b, p.group_of(h), p.keys);
  prefetch_head(ahead, p, x.v, b, p.group_of(h), p.keys);
  prefetch_head(ahead, p, x.q, b, h, p.queries);
  return ahead;
}

/// The same for backward, with `head` of B·G.
template <class T>
PrefetchQueue ahead_of_backward(const Problem& p, const GradientsOf<T>& g, std::int64_t head) {
  const std::int64_t next = head + 1;
  PrefetchQueue ahead;
  const std::int64_t b = head / p.groups, group = head % p.groups;
  prefetch_head(ahead, p, g.dq, b, p.first_head(group), p.queries);
  if (next < p.batch * p.groups) {
    const std::int64_t next_b = next / p.groups, next_group = next % p.groups;
    const std::int64_t next_head = p.first_head(next_group);
    prefetch_head(ahead, p, g.k, next_b, next_group, p.keys);
    prefetch_head(ahead, p, g.v, next_b, next_group, p.keys);
    prefetch_head(ahead, p, g.q, next_b, next_head, p.queries);
    prefetch_head(ahead, p, g.dout, next_b, next_head, p.queries);
    prefetch_head(ahead, p, g.out, next_b, next_head, p.queries);
  }
  prefetch_head(ahead, p, g.dk, b, group, p.keys);
  prefetch_head(ahead, p, g.dv, b, group, p.keys);
  return ahead;
}

inline void zero_rows(float* data, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) std::fill_n(data + r * stride, columns, 0.0F);
}

/// Keys per chunk in backward: two blocks of scores stay in a core's second-level cache.
inline constexpr std::int64_t key_chunk = 512;

/// Tasks of several calls, which have different numbers of them.
class Tasks {
 public:
  void add_call(std::int64_t tasks) { begins_.push_back(begins_.back() + tasks); }
  std::int64_t count() const { return begins_.back(); }
  /// The call that a task belongs to, and its number in that call.
  std::pair<std::size_t, std::int64_t> find(std::int64_t task) const {
    const auto next = std::upper_bound(begins_.begin(), begins_.end(), task);
    const auto call = static_cast<std::size_t>(next - begins_.begin()) - 1;
    return {call, task - begins_[call]};
  }

 private:
  std::vector<std::int64_t> begins_{0};
};

/// Tasks into which each query head's blocks of queries are divided in forward: whole heads if
/// there are enough of them.
inline std::int64_t forward_parts(std::span<const Problem> calls, int threads) {
  std::int64_t heads = 0, blocks = 1;
  for (const Problem& p : calls) {
    heads += p.batch * p.heads;
    blocks = std::max(blocks, p.blocks());
  }
  heads = std::max<std::int64_t>(1, heads);
  return std::clamp<std::int64_t>((8 * threads + heads - 1) / heads, 1, blocks);
}

/// Parts into which one KV head's blocks of queries are divided, for about sixteen tasks in all, or
/// of each sequence in reproducible mode, of at least two blocks. It depends on the problem alone,
/// so that the order of sums does not depend on the threads.
inline std::int64_t parts_of(const Problem& p) {
  constexpr std::int64_t enough = 16;
  const std::int64_t heads = std::max<std::int64_t>(1, (p.reproducible ? 1 : p.batch) * p.groups);
  return std::clamp<std::int64_t>(
      (enough + heads - 1) / heads, 1,
      std::max<std::int64_t>(1, p.blocks() * ((p.heads + p.groups - 1) / p.groups) / 2));
}

/// Elements of the parts of one sequence's dk and dv, [G, parts, dk|dv, Tk, D]; 0 if each head has
/// one part.
inline std::int64_t partial_gradients(const Problem& p) {
  const std::int64_t parts = parts_of(p);
  return parts == 1 ? 0 : 2 * p.groups * parts * p.keys * p.size;
}

/// Sequences of which backward is computed at once: all, but where their heads have several parts,
/// whose gradients take memory, as few as give each thread eight tasks.
inline std::int64_t sequences_at_once(std::span<const Problem> calls, int threads) {
  std::int64_t tasks = 0, partial = 0, batch = 0;
  for (const Problem& p : calls) {
    tasks += p.groups * parts_of(p);
    partial += partial_gradients(p);
    batch = p.batch;
  }
  if (partial == 0) return batch;
  return std::min(batch, (8 * threads + tasks - 1) / tasks);
}

/// Adds `parts` matrices that are `distance` elements apart, pairwise, into the first.
inline void sum_parts(float* data, std::int64_t distance, std::int64_t parts,
                      std::int64_t elements) {
  add_pairwise(parts, [&](std::int64_t first, std::int64_t second) {
    add_block({data + first * distance, 1, elements, elements},
              {data + second * distance, 1, elements, elements}, {0, 1}, {0, elements});
  });
}

/// A part of one KV head's blocks of queries.
struct BackwardTask {
  std::size_t call;
  std::int64_t b, group, part, parts;
  std::int64_t partial;  // where its dk begins among the elements of parts; unused with one part
};

/// The tasks of backward of sequences [begin, end) of several calls. Where a head has several
/// parts, each writes dk and dv of its own to partial [parts of all calls, dk|dv, Tk, D], which are
/// then added up.
class BackwardTasks {
 public:
  BackwardTasks(std::span<const Problem> calls, std::int64_t begin, std::int64_t end)
      : calls_(calls), begin_(begin), sequences_(end - begin) {
    for (const Problem& p : calls) {
      tasks_.add_call(sequences_ * p.groups * parts_of(p));
      begins_.push_back(begins_.back() + sequences_ * partial_gradients(p));
    }
  }
  std::int64_t count() const { return tasks_.count(); }
  std::size_t partial_bytes() const {
    return static_cast<std::size_t>(begins_.back()) * sizeof(float);
  }
  BackwardTask find(std::int64_t task) const {
    const auto [call, own] = tasks_.find(task);
    const Problem& p = calls_[call];
    const std::int64_t parts = parts_of(p), head = own / parts;
    return {call,
            begin_ + head / p.groups,
            head % p.groups,
            own % parts,
            parts,
            begins_[call] + 2 * own * p.keys * p.size};
  }
  /// Adds up the parts, in tasks of some rows of one head: write(call, of_v, b, group, first row,
  /// rows, sums [rows, D]).
  template <class Write>
  void join_parts(int threads, float* partial, const Write& write) const {
    const auto chunks_of = [](const Problem& p) { return (p.keys + key_chunk - 1) / key_chunk; };
    Tasks tasks;
    for (const Problem& p : calls_) {
      tasks.add_call(parts_of(p) == 1 ? 0 : sequences_ * p.groups * 2 * chunks_of(p));
    }
    parallel_tasks(threads, tasks.count(), [&](std::int64_t task, int) {
      const auto [call, own] = tasks.find(task);
      const Problem& p = calls_[call];
      const std::int64_t chunks = chunks_of(p), size = p.keys * p.size, parts = parts_of(p);
      const std::int64_t head = own / chunks / 2, begin = own % chunks * key_chunk;
      const std::int64_t rows = std::min(key_chunk, p.keys - begin);
      const bool of_v = own / chunks % 2 == 1;
      float* sums =
          partial + begins_[call] + (2 * head * parts + (of_v ? 1 : 0)) * size + begin * p.size;
      sum_parts(sums, 2 * size, parts, rows * p.size);
      write(call, of_v, begin_ + head / p.groups, head % p.groups, begin, rows, sums);
    });
  }

 private:
  std::span<const Problem> calls_;
  std::int64_t begin_, sequences_;
  Tasks tasks_;
  std::vector<std::int64_t> begins_{0};  // of each call's elements of parts
};

/// Allocates parts of a thread's scratch. With `base` null only their size is computed.
class ScratchAllocator {
 public:
  explicit ScratchAllocator(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t elements) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += device::aligned(static_cast<std::size_t>(elements) * sizeof(T));
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

/// Bytes of one thread's Work(p, backward, allocator), for any of the calls.
template <class Work>
std::size_t scratch_bytes_of(std::span<const Problem> calls, bool backward) {
  std::size_t most = 0;
  for (const Problem& p : calls) {
    ScratchAllocator counter(nullptr);
    const Work work(p, backward, counter);
    most = std::max(most, counter.bytes());
  }
  return most;
}

/// Bytes of `threads` threads' Work and the parts of gradients, of forward or backward.
template <class Work>
std::size_t attention_workspace(std::span<const AttentionShape> shapes, int threads,
                                bool reproducible) {
  std::vector<Problem> forward, backward;
  for (const AttentionShape& shape : shapes) {
    Problem p{shape};
    p.reproducible = reproducible;
    p.scores_width = shape.keys;
    forward.push_back(p);
    p.scores_width = std::min(shape.keys, key_chunk);
    backward.push_back(p);
  }
  const BackwardTasks tasks(backward, 0, sequences_at_once(backward, threads));
  const auto count = static_cast<std::size_t>(threads);
  return std::max(count * scratch_bytes_of<Work>(forward, false),
                  count * scratch_bytes_of<Work>(backward, true) + tasks.partial_bytes());
}

}  // namespace trireme::ops
