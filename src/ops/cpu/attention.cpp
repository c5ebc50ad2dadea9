// Attention in fp32, one block of queries of one head at a time: scores, softmax and the product
// with the values run on one thread per block. Scratch of a thread: forward, one block of scores
// against all keys, and the head's keys (transposed) and values; backward, two blocks of scores
// against at most 512 keys, and those keys, values and their gradients. Operands that products read
// repeatedly are copied to scratch, as rows a power of two apart would evict each other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_problem.hpp"
#include "cpu_ops.hpp"
#include "small_product.hpp"
#include "threads.hpp"

namespace trireme::ops {
namespace {

/// scores = scale·x·yᵀ over the visible keys; x [rows, D] one block, of queries from `begin` on;
/// transposed [D, keys from `first` on], strided as scores are.
void score_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                   std::int64_t rows, float scale, const float* x, std::int64_t x_stride,
                   const float* transposed, std::int64_t first, float* scores,
                   PrefetchQueue* ahead) {
  for (const KeyRun& run : visible.runs) {
    small_product({.m = rows,
                   .n = run.end - run.begin,
                   .k = p.size,
                   .a = x,
                   .a_row = x_stride,
                   .b = transposed + run.begin - first,
                   .b_row = p.row(),
                   .c = scores + run.column,
                   .c_row = p.row(),
                   .scale = scale,
                   .triangle = p.visibility->plain() ? Triangle::result : Triangle::none,
                   .reach = begin - run.begin + 1,
                   .ahead = ahead});
  }
}

/// out [rows, D] = weights·y over the visible keys; y [keys from `first` on, D]; both contiguous.
void weighted_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                      std::int64_t rows, const float* weights, const float* y, std::int64_t first,
                      float* out, PrefetchQueue* ahead) {
  for (const KeyRun& run : visible.runs) {
    small_product({.m = rows,
                   .n = p.size,
                   .k = run.end - run.begin,
                   .a = weights + run.column,
                   .a_row = p.row(),
                   .b = y + (run.begin - first) * p.size,
                   .b_row = p.size,
                   .c = out,
                   .c_row = p.size,
                   .accumulate = run.column > 0,
                   .triangle = p.visibility->plain() ? Triangle::factor : Triangle::none,
                   .reach = begin - run.begin + 1,
                   .ahead = ahead});
  }
  if (visible.runs.empty()) zero_rows(out, p.size, rows, p.size);
}

/// y [keys from `first` on, D] += weightsᵀ·x over the visible keys; x [rows, D].
void transposed_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                        std::int64_t rows, const float* weights, const float* x, float* y,
                        std::int64_t first, PrefetchQueue* ahead) {
  for (const KeyRun& run : visible.runs) {
    small_product({.m = run.end - run.begin,
                   .n = p.size,
                   .k = rows,
                   .a = weights + run.column,
                   .a_row = 1,
                   .a_column = p.row(),
                   .b = x,
                   .b_row = p.size,
                   .c = y + (run.begin - first) * p.size,
                   .c_row = p.size,
                   .accumulate = true,
                   .triangle = p.visibility->plain() ? Triangle::transposed : Triangle::none,
                   .reach = begin - run.begin + 1,
                   .ahead = ahead});
  }
}

/// What two results of attention are multiplied by in their sum; 0 for one that sees nothing.
struct MergeWeights {
  float own = 0, other = 0, lse;
  MergeWeights(float own_lse, float other_lse) : lse(std::max(own_lse, other_lse)) {
    if (lse == -std::numeric_limits<float>::infinity()) return;
    const float a = std::exp(own_lse - lse), b = std::exp(other_lse - lse), sum = a + b;
    own = a / sum;
    other = b / sum;
    lse += std::log(sum);
  }
};

/// to [rows, columns] = from, or += with `add`.
void move_rows(float* to, std::int64_t to_stride, const float* from, std::int64_t from_stride,
               std::int64_t rows, std::int64_t columns, bool add = false) {
  for (std::int64_t r = 0; r < rows; ++r, to += to_stride, from += from_stride) {
    if (add) {
      for (std::int64_t i = 0; i < columns; ++i) to[i] += from[i];
    } else {
      std::copy_n(from, columns, to);
    }
  }
}

using Gradients = GradientsOf<float>;

/// One thread's scratch.
struct Scratch {
  float* scores;           // [query_block, keys]
  float* transposed_keys;  // [D, keys]: keys
  float* rows;             // [keys, D]: forward values, backward keys
  float* sums;             // [query_block, D] of out or dq
  // Backward alone, where `keys` are those of a chunk
  float* dscores = nullptr;                    // [query_block, keys]
  float* transposed_values = nullptr;          // [D, keys]
  float *queries = nullptr, *douts = nullptr;  // [query_block, D]
  float *dk = nullptr, *dv = nullptr;          // [keys, D]

  Scratch(const Problem& p, bool backward, ScratchAllocator& from) {
    scores = from.take<float>(query_block * p.row());
    transposed_keys = from.take<float>(p.size * p.row());
    rows = from.take<float>(p.scores_width * p.size);
    sums = from.take<float>(query_block * p.size);
    if (!backward) return;
    dscores = from.take<float>(query_block * p.row());
    transposed_values = from.take<float>(p.size * p.row());
    queries = from.take<float>(query_block * p.size);
    douts = from.take<float>(query_block * p.size);
    dk = from.take<float>(p.scores_width * p.size);
    dv = from.take<float>(p.scores_width * p.size);
  }
};

/// Keys [first, last) of one head, for backward.
struct Chunk {
  std::int64_t first, last;
  float *dk, *dv;      // [last − first, D]
  bool ready = false;  // in scratch
};

/// Adds the contribution of a chunk of keys to dq of one block of queries of one head, and the
/// block's to the chunk's dk and dv. `visible`: keys of the chunk.
void backward_block(const Problem& p, const Gradients& g, std::int64_t b, std::int64_t h,
                    std::int64_t begin, const Chunk& chunk, const VisibleKeys& visible,
                    const Scratch& scratch, PrefetchQueue* ahead) {
  const std::int64_t rows = std::min(query_block, p.queries - begin);
  const float* dout = g.dout.at(b, begin, h);
  float delta[query_block];
  row_dots(dout, g.dout.stride, g.out.at(b, begin, h), g.out.stride, rows, p.size, delta);
  move_rows(scratch.douts, p.size, dout, g.dout.stride, rows, p.size);
  move_rows(scratch.queries, p.size, g.q.at(b, begin, h), g.q.stride, rows, p.size);
  score_product(p, visible, begin, rows, p.scale, scratch.queries, p.size, scratch.transposed_keys,
                chunk.first, scratch.scores, ahead);
  score_product(p, visible, begin, rows, 1.0F, scratch.douts, p.size, scratch.transposed_values,
                chunk.first, scratch.dscores, ahead);
  softmax_gradient_block(p.score_block(b, h, begin, rows, visible, scratch.scores), scratch.dscores,
                         g.lse + (b * p.heads + h) * p.queries + begin, delta, p.scale);
  transposed_product(p, visible, begin, rows, scratch.scores, scratch.douts, chunk.dv, chunk.first,
                     ahead);
  transposed_product(p, visible, begin, rows, scratch.dscores, scratch.queries, chunk.dk,
                     chunk.first, ahead);
  weighted_product(p, visible, begin, rows, scratch.dscores, scratch.rows, chunk.first,
                   scratch.sums, ahead);
  move_rows(g.dq.at(b, begin, h), g.dq.stride, scratch.sums, p.size, rows, p.size, chunk.first > 0);
}

/// Every `parts`-th block of queries of a group's heads, from `part` on, against a chunk of keys.
void backward_chunk(const Problem& p, const Gradients& g, std::int64_t b, std::int64_t group,
                    std::int64_t part, std::int64_t parts, Chunk chunk, VisibleKeys& visible,
                    const Scratch& scratch, PrefetchQueue* ahead) {
  const std::int64_t keys = chunk.last - chunk.first, blocks = p.blocks();
  const std::int64_t head = p.first_head(group), heads = p.first_head(group + 1) - head;
  std::fill_n(chunk.dk, keys * p.size, 0.0F);
  std::fill_n(chunk.dv, keys * p.size, 0.0F);
  for (std::int64_t i = part; i < heads * blocks; i += parts) {
    const std::int64_t h = head + i / blocks, begin = i % blocks * query_block;
    const std::int64_t end = std::min(begin + query_block, p.queries);
    p.visibility->find(b, begin, end, chunk.first, chunk.last, visible);
    if (visible.columns == 0) {
      if (chunk.first == 0) zero_rows(g.dq.at(b, begin, h), g.dq.stride, end - begin, p.size);
      continue;
    }
    if (!chunk.ready) {
      const float* k = g.k.at(b, chunk.first, group);
      transpose(scratch.transposed_keys, p.row(), k, g.k.stride, keys, p.size);
      transpose(scratch.transposed_values, p.row(), g.v.at(b, chunk.first, group), g.v.stride, keys,
                p.size);
      move_rows(scratch.rows, p.size, k, g.k.stride, keys, p.size);
      chunk.ready = true;
    }
    backward_block(p, g, b, h, begin, chunk, visible, scratch, ahead);
  }
}

}  // namespace

std::size_t cpu_attention_workspace(std::span<const AttentionShape> calls, int threads,
                                    bool reproducible) {
  return attention_workspace<Scratch>(calls, threads, reproducible);
}

void CpuOps::attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const AttentionMask& mask, float scale,
                       const Dropout& dropout, const Tensor& samples, const HeadSlice& slice) {
  const AttentionHeads call{.out = out, .lse = lse, .q = q, .k = k, .v = v, .slice = slice};
  independent_attention({&call, 1}, mask, scale, dropout, samples);
}

void CpuOps::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                const Tensor& dout, const Tensor& out, const Tensor& lse,
                                const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionMask& mask, float scale, const Dropout& dropout,
                                const Tensor& samples, const HeadSlice& slice) {
  const AttentionHeads call{.out = out,
                            .lse = lse,
                            .q = q,
                            .k = k,
                            .v = v,
                            .slice = slice,
                            .dq = dq,
                            .dk = dk,
                            .dv = dv,
                            .dout = dout};
  independent_attention_backward({&call, 1}, mask, scale, dropout, samples);
}

std::vector<Problem> CpuOps::problems_of(std::span<const AttentionHeads> calls,
                                         const AttentionMask& mask, float scale,
                                         const Dropout& dropout, const Tensor& samples) {
  std::vector<Problem> problems;
  for (const AttentionHeads& x : calls) {
    problems.push_back(problem_of(x.q, x.k, scale, dropout, samples, visibility_, x.slice));
    problems.back().reproducible = reproducible_;
    const Problem &p = problems.back(), &first = problems.front();
    TRIREME_ASSERT(p.batch == first.batch && p.queries == first.queries && p.keys == first.keys &&
                       x.q.type() == calls.front().q.type(),
                   "attention of {} and of {} at once", x.q.shape().to_string(),
                   calls.front().q.shape().to_string());
  }
  const Problem& p = problems.front();
  visibility_.prepare(mask, p.batch, p.queries, p.keys);
  return problems;
}

void CpuOps::independent_attention(std::span<const AttentionHeads> calls, const AttentionMask& mask,
                                   float scale, const Dropout& dropout, const Tensor& samples) {
  if (calls.empty()) return;
  std::vector<Problem> problems = problems_of(calls, mask, scale, dropout, samples);
  with_storage(calls.front().q.type(), [&]<class T>(T) {
    std::vector<OperandsOf<T>> operands;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      problems[i].scores_width = problems[i].keys;
      const AttentionHeads& x = calls[i];
      operands.push_back(operands_of<T>(problems[i], x.q, x.k, x.v, x.out, x.lse));
    }
    attend(problems, operands);
  });
}

void CpuOps::independent_attention_backward(std::span<const AttentionHeads> calls,
                                            const AttentionMask& mask, float scale,
                                            const Dropout& dropout, const Tensor& samples) {
  if (calls.empty()) return;
  std::vector<Problem> problems = problems_of(calls, mask, scale, dropout, samples);
  with_storage(calls.front().q.type(), [&]<class T>(T) {
    std::vector<GradientsOf<T>> operands;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      Problem& p = problems[i];
      p.scores_width = std::min(p.keys, key_chunk);
      const AttentionHeads& x = calls[i];
      operands.push_back({operands_of<T>(p, x.q, x.k, x.v, x.out, x.lse), query_heads<T>(p, x.dout),
                          query_heads<T>(p, x.dq), key_heads<T>(p, x.dk), key_heads<T>(p, x.dv)});
    }
    const std::int64_t batch = problems.front().batch;
    const std::int64_t step = sequences_at_once(problems, threads_);
    for (std::int64_t begin = 0; begin < batch; begin += step) {
      attend_backward(problems, operands, begin, std::min(begin + step, batch));
    }
  });
}

void CpuOps::merge_attention(const Tensor& out, const Tensor& lse, const Tensor& other,
                             const Tensor& other_lse) {
  const std::int64_t tokens = out.extent(0), heads = out.extent(1), size = out.extent(2);
  float* to = flat<float>(out, tokens * heads * size);
  const float* from = flat<float>(other, tokens * heads * size);
  float* sums = flat<float>(lse, heads * tokens);
  const float* other_sums = flat<float>(other_lse, heads * tokens);
  parallel_elements(threads_, tokens * heads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float& sum = sums[i % heads * tokens + i / heads];
      const MergeWeights w(sum, other_sums[i % heads * tokens + i / heads]);
      for (std::int64_t d = i * size; d < (i + 1) * size; ++d)
        to[d] = w.own * to[d] + w.other * from[d];
      sum = w.lse;
    }
  });
}

void CpuOps::attend(std::span<const Problem> calls, std::span<const OperandsOf<float>> operands) {
  const std::size_t bytes = scratch_bytes_of<Scratch>(calls, false);
  auto* scratch_of_all = scratch<std::byte>(static_cast<std::size_t>(threads_) * bytes);
  const std::int64_t parts = forward_parts(calls, threads_);
  Tasks tasks;
  for (const Problem& p : calls) tasks.add_call(p.batch * p.heads * parts);
  parallel_tasks(threads_, tasks.count(), [&](std::int64_t task, int thread) {
    const auto [call, own_task] = tasks.find(task);
    const Problem& p = calls[call];
    const OperandsOf<float>& x = operands[call];
    const std::int64_t head = own_task / parts, b = head / p.heads, h = head % p.heads;
    const std::int64_t group = p.group_of(h);
    ScratchAllocator allocator(scratch_of_all + static_cast<std::size_t>(thread) * bytes);
    const Scratch own(p, false, allocator);
    PrefetchQueue ahead;
    if (parts == 1) ahead = ahead_of_forward(p, x, head);
    transpose(own.transposed_keys, p.row(), x.k.at(b, 0, group), x.k.stride, p.keys, p.size);
    move_rows(own.rows, p.size, x.v.at(b, 0, group), x.v.stride, p.keys, p.size);
    VisibleKeys& visible = visible_[static_cast<std::size_t>(thread)];
    for (std::int64_t block = own_task % parts; block < p.blocks(); block += parts) {
      const std::int64_t begin = block * query_block;
      const std::int64_t rows = std::min(query_block, p.queries - begin);
      visibility_.find(b, begin, begin + rows, 0, p.keys, visible);
      score_product(p, visible, begin, rows, p.scale, x.q.at(b, begin, h), x.q.stride,
                    own.transposed_keys, 0, own.scores, &ahead);
      float inverse[query_block];
      softmax_block(p.score_block(b, h, begin, rows, visible, own.scores),
                    x.lse + (b * p.heads + h) * p.queries + begin, inverse);
      weighted_product(p, visible, begin, rows, own.scores, own.rows, 0, own.sums, &ahead);
      scale_rows(x.out.at(b, begin, h), x.out.stride, own.sums, p.size, rows, p.size, inverse);
    }
  });
}

void CpuOps::attend_backward(std::span<const Problem> calls, std::span<const Gradients> operands,
                             std::int64_t begin, std::int64_t end) {
  const std::size_t bytes = scratch_bytes_of<Scratch>(calls, true);
  const BackwardTasks tasks(calls, begin, end);
  auto* scratch_of_all =
      scratch<std::byte>(static_cast<std::size_t>(threads_) * bytes + tasks.partial_bytes());
  auto* partial =
      reinterpret_cast<float*>(scratch_of_all + static_cast<std::size_t>(threads_) * bytes);

  parallel_tasks(threads_, tasks.count(), [&](std::int64_t task, int thread) {
    const BackwardTask t = tasks.find(task);
    const Problem& p = calls[t.call];
    const Gradients& g = operands[t.call];
    ScratchAllocator allocator(scratch_of_all + static_cast<std::size_t>(thread) * bytes);
    const Scratch own(p, true, allocator);
    PrefetchQueue ahead;
    if (t.parts == 1) ahead = ahead_of_backward(p, g, t.b * p.groups + t.group);
    for (std::int64_t first = 0; first < p.keys; first += key_chunk) {
      Chunk chunk{first, std::min(first + key_chunk, p.keys), own.dk, own.dv};
      if (t.parts > 1) {
        chunk.dk = partial + t.partial + first * p.size;
        chunk.dv = chunk.dk + p.keys * p.size;
      }
      backward_chunk(p, g, t.b, t.group, t.part, t.parts, chunk,
                     visible_[static_cast<std::size_t>(thread)], own, &ahead);
      if (t.parts > 1) continue;
      const std::int64_t keys = chunk.last - first;
      move_rows(g.dk.at(t.b, first, t.group), g.dk.stride, own.dk, p.size, keys, p.size);
      move_rows(g.dv.at(t.b, first, t.group), g.dv.stride, own.dv, p.size, keys, p.size);
    }
  });
  tasks.join_parts(threads_, partial,
                   [&](std::size_t call, bool of_v, std::int64_t b, std::int64_t group,
                       std::int64_t first, std::int64_t rows, const float* sums) {
                     const Problem& p = calls[call];
                     const HeadsOf<float>& to = of_v ? operands[call].dv : operands[call].dk;
                     move_rows(to.at(b, first, group), to.stride, sums, p.size, rows, p.size);
                   });
}

}  // namespace trireme::ops
