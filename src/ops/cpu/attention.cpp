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

std::size_t cpu_attention_workspace(const AttentionShape& shape, int threads) {
  return attention_workspace<Scratch>(shape, threads);
}

void CpuOps::attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const AttentionMask& mask, float scale,
                       const Dropout& dropout, const Tensor& samples, const HeadSlice& slice) {
  Problem p = problem_of(q, k, scale, dropout, samples, visibility_, slice);
  p.scores_width = p.keys;
  visibility_.prepare(mask, p.batch, p.queries, p.keys);
  with_storage(q.type(), [&]<class T>(T) { attend(p, operands_of<T>(p, q, k, v, out, lse)); });
}

void CpuOps::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                const Tensor& dout, const Tensor& out, const Tensor& lse,
                                const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionMask& mask, float scale, const Dropout& dropout,
                                const Tensor& samples, const HeadSlice& slice) {
  Problem p = problem_of(q, k, scale, dropout, samples, visibility_, slice);
  p.scores_width = std::min(p.keys, key_chunk);
  visibility_.prepare(mask, p.batch, p.queries, p.keys);
  with_storage(q.type(), [&]<class T>(T) {
    attend_backward(
        p, GradientsOf<T>{operands_of<T>(p, q, k, v, out, lse), query_heads<T>(p, dout),
                          query_heads<T>(p, dq), key_heads<T>(p, dk), key_heads<T>(p, dv)});
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

void CpuOps::attend(const Problem& p, const OperandsOf<float>& x) {
  const std::size_t bytes = scratch_bytes_of<Scratch>(p, false);
  auto* scratch_of_all = scratch<std::byte>(static_cast<std::size_t>(threads_) * bytes);
  // About eight tasks per thread: whole heads if there are enough of them.
  const std::int64_t heads = p.batch * p.heads, blocks = p.blocks();
  const std::int64_t parts =
      std::clamp<std::int64_t>((8 * threads_ + heads - 1) / std::max<std::int64_t>(1, heads), 1,
                               std::max<std::int64_t>(1, blocks));
  parallel_tasks(threads_, heads * parts, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / (p.heads * parts), h = task / parts % p.heads;
    const std::int64_t group = p.group_of(h);
    ScratchAllocator allocator(scratch_of_all + static_cast<std::size_t>(thread) * bytes);
    const Scratch own(p, false, allocator);
    PrefetchQueue ahead;
    if (parts == 1) ahead = ahead_of_forward(p, x, task, task + threads_);
    transpose(own.transposed_keys, p.row(), x.k.at(b, 0, group), x.k.stride, p.keys, p.size);
    move_rows(own.rows, p.size, x.v.at(b, 0, group), x.v.stride, p.keys, p.size);
    VisibleKeys& visible = visible_[static_cast<std::size_t>(thread)];
    for (std::int64_t block = task % parts; block < blocks; block += parts) {
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

void CpuOps::attend_backward(const Problem& p, const Gradients& g) {
  const std::size_t bytes = scratch_bytes_of<Scratch>(p, true);
  const std::size_t all = static_cast<std::size_t>(threads_) * bytes;
  const std::int64_t parts = parts_of(p);
  const std::int64_t part_size = p.keys * p.size;  // of dk, and as much of dv
  auto* scratch_of_all =
      scratch<std::byte>(all + static_cast<std::size_t>(partial_gradients(p)) * sizeof(float));
  auto* partial = reinterpret_cast<float*>(scratch_of_all + all);  // [B·G, parts, dk|dv, Tk, D]

  parallel_tasks(threads_, p.batch * p.groups * parts, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / parts / p.groups, group = task / parts % p.groups;
    ScratchAllocator allocator(scratch_of_all + static_cast<std::size_t>(thread) * bytes);
    const Scratch own(p, true, allocator);
    PrefetchQueue ahead;
    if (parts == 1) ahead = ahead_of_backward(p, g, task, task + threads_);
    for (std::int64_t first = 0; first < p.keys; first += key_chunk) {
      Chunk chunk{first, std::min(first + key_chunk, p.keys), own.dk, own.dv};
      if (parts > 1) {
        chunk.dk = partial + 2 * task * part_size + first * p.size;
        chunk.dv = chunk.dk + part_size;
      }
      backward_chunk(p, g, b, group, task % parts, parts, chunk,
                     visible_[static_cast<std::size_t>(thread)], own, &ahead);
      if (parts > 1) continue;
      const std::int64_t keys = chunk.last - first;
      move_rows(g.dk.at(b, first, group), g.dk.stride, own.dk, p.size, keys, p.size);
      move_rows(g.dv.at(b, first, group), g.dv.stride, own.dv, p.size, keys, p.size);
    }
  });
  if (parts == 1) return;
  join_parts(
      threads_, p, partial,
      [&](bool of_v, std::int64_t head, std::int64_t begin, std::int64_t rows, const float* sums) {
        const HeadsOf<float>& to = of_v ? g.dv : g.dk;
        move_rows(to.at(head / p.groups, begin, head % p.groups), to.stride, sums, p.size, rows,
                  p.size);
      });
}

}  // namespace trireme::ops
