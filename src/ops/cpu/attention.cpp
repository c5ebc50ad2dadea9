// Attention, one block of queries of one head at a time: scores, softmax and the product with the
// values run on one thread per block. Scratch per thread: forward one block of scores, query_block
// queries by all keys, and a head's keys transposed; backward, which knows log Σ exp already, two
// blocks of query_block queries by at most 512 keys, and as many keys and values transposed.
#include <algorithm>
#include <cstring>

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
                   const float* transposed, std::int64_t first, float* scores) {
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
                   .reach = begin - run.begin + 1});
  }
}

/// out [rows, D] = weights·y over the visible keys, or += where `accumulate`.
void weighted_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                      std::int64_t rows, const float* weights, const float* y,
                      std::int64_t y_stride, float* out, std::int64_t out_stride, bool accumulate) {
  for (const KeyRun& run : visible.runs) {
    small_product({.m = rows,
                   .n = p.size,
                   .k = run.end - run.begin,
                   .a = weights + run.column,
                   .a_row = p.row(),
                   .b = y + run.begin * y_stride,
                   .b_row = y_stride,
                   .c = out,
                   .c_row = out_stride,
                   .accumulate = accumulate || run.column > 0,
                   .triangle = p.visibility->plain() ? Triangle::factor : Triangle::none,
                   .reach = begin - run.begin + 1});
  }
}

/// y [Tk, D] += weightsᵀ·x over the visible keys; x [rows, D].
void transposed_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                        std::int64_t rows, const float* weights, const float* x,
                        std::int64_t x_stride, float* y, std::int64_t y_stride) {
  for (const KeyRun& run : visible.runs) {
    small_product({.m = run.end - run.begin,
                   .n = p.size,
                   .k = rows,
                   .a = weights + run.column,
                   .a_row = 1,
                   .a_column = p.row(),
                   .b = x,
                   .b_row = x_stride,
                   .c = y + run.begin * y_stride,
                   .c_row = y_stride,
                   .accumulate = true,
                   .triangle = p.visibility->plain() ? Triangle::transposed : Triangle::none,
                   .reach = begin - run.begin + 1});
  }
}

/// Everything one call of backward reads and writes.
struct Gradients {
  Heads q, k, v, out, dout, dq, dk, dv;
  const float* lse;
};

/// A thread's scratch in backward.
struct BackwardScratch {
  float *scores, *dscores;  // [query_block, keys of a chunk]
  float *keys, *values;     // [D, keys of a chunk]
};

/// What the keys of one chunk give to dq of one block of queries of one head, and the block to the
/// head's dk and dv [Tk, D]. `visible` are the chunk's, which starts at key `first`.
void backward_block(const Problem& p, const Gradients& g, std::int64_t b, std::int64_t h,
                    std::int64_t begin, std::int64_t first, const VisibleKeys& visible,
                    const BackwardScratch& scratch, float* dk, std::int64_t dk_stride, float* dv,
                    std::int64_t dv_stride) {
  const std::int64_t rows = std::min(query_block, p.queries - begin);
  const float* dout = g.dout.at(b, begin, h);
  const float* q = g.q.at(b, begin, h);
  float delta[query_block];
  row_dots(dout, g.dout.stride, g.out.at(b, begin, h), g.out.stride, rows, p.size, delta);
  score_product(p, visible, begin, rows, p.scale, q, g.q.stride, scratch.keys, first,
                scratch.scores);
  score_product(p, visible, begin, rows, 1.0F, dout, g.dout.stride, scratch.values, first,
                scratch.dscores);
  softmax_gradient_block(p.score_block(b, h, begin, rows, visible, scratch.scores), scratch.dscores,
                         g.lse + (b * p.heads + h) * p.queries + begin, delta, p.scale);
  transposed_product(p, visible, begin, rows, scratch.scores, dout, g.dout.stride, dv, dv_stride);
  transposed_product(p, visible, begin, rows, scratch.dscores, q, g.q.stride, dk, dk_stride);
  weighted_product(p, visible, begin, rows, scratch.dscores, g.k.at(b, 0, p.group_of(h)),
                   g.k.stride, g.dq.at(b, begin, h), g.dq.stride, true);
}

/// fp32 elements of scores and of transposed keys (in backward values too) that one thread works
/// on: forward all keys at once, backward a chunk of them.
std::int64_t scratch_of_thread(const Problem& p, bool backward) {
  return (backward ? 2 : 1) * (query_block + p.size) * p.row();
}

}  // namespace

std::size_t cpu_attention_workspace(const AttentionShape& shape, int threads) {
  Problem p{shape};
  p.scores_width = p.keys;
  const std::int64_t forward = threads * scratch_of_thread(p, false);
  p.scores_width = std::min(p.keys, key_chunk);
  const std::int64_t backward = threads * scratch_of_thread(p, true) + partial_gradients(p);
  return static_cast<std::size_t>(std::max(forward, backward)) * sizeof(float);
}

void CpuOps::attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const AttentionMask& mask, float scale,
                       const Dropout& dropout, const Tensor& samples, const HeadSlice& slice) {
  if (q.type() == DType::bf16) {
    return narrow_attention(out, lse, q, k, v, mask, scale, dropout, samples, slice);
  }
  Problem p = problem_of(q, k, scale, dropout, samples, visibility_, slice);
  p.scores_width = p.keys;
  const Heads to = heads_of(out, p.batch, p.queries, p.heads, p.size);
  const Heads query = heads_of(q, p.batch, p.queries, p.heads, p.size);
  const Heads key = heads_of(k, p.batch, p.keys, p.groups, p.size);
  const Heads value = heads_of(v, p.batch, p.keys, p.groups, p.size);
  float* log_sums = flat(lse, p.batch * p.heads * p.queries);
  visibility_.prepare(mask, p.batch, p.queries, p.keys);
  const std::int64_t block_size = scratch_of_thread(p, false);
  auto* scores = scratch<float>(static_cast<std::size_t>(threads_ * block_size));
  // Some eight tasks for each thread: whole heads where there are enough of them.
  const std::int64_t heads = p.batch * p.heads, blocks = p.blocks();
  const std::int64_t parts =
      std::clamp<std::int64_t>((8 * threads_ + heads - 1) / std::max<std::int64_t>(1, heads), 1,
                               std::max<std::int64_t>(1, blocks));
  parallel_tasks(threads_, heads * parts, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / (p.heads * parts), h = task / parts % p.heads;
    const std::int64_t group = p.group_of(h);
    float* own = scores + thread * block_size;
    float* keys = own + query_block * p.row();
    transpose(keys, p.row(), key.at(b, 0, group), key.stride, p.keys, p.size);
    VisibleKeys& visible = visible_[static_cast<std::size_t>(thread)];
    for (std::int64_t block = task % parts; block < blocks; block += parts) {
      const std::int64_t begin = block * query_block;
      const std::int64_t rows = std::min(query_block, p.queries - begin);
      visibility_.find(b, begin, begin + rows, 0, p.keys, visible);
      score_product(p, visible, begin, rows, p.scale, query.at(b, begin, h), query.stride, keys, 0,
                    own);
      float inverse[query_block];
      softmax_block(p.score_block(b, h, begin, rows, visible, own),
                    log_sums + (b * p.heads + h) * p.queries + begin, inverse);
      float* y = to.at(b, begin, h);
      weighted_product(p, visible, begin, rows, own, value.at(b, 0, group), value.stride, y,
                       to.stride, false);
      scale_rows(y, to.stride, rows, p.size, inverse);
    }
  });
}

void CpuOps::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                const Tensor& dout, const Tensor& out, const Tensor& lse,
                                const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionMask& mask, float scale, const Dropout& dropout,
                                const Tensor& samples, const HeadSlice& slice) {
  if (q.type() == DType::bf16) {
    return narrow_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, mask, scale, dropout,
                                     samples, slice);
  }
  Problem p = problem_of(q, k, scale, dropout, samples, visibility_, slice);
  p.scores_width = std::min(p.keys, key_chunk);
  const auto of_queries = [&](const Tensor& x) {
    return heads_of(x, p.batch, p.queries, p.heads, p.size);
  };
  const auto of_keys = [&](const Tensor& x) {
    return heads_of(x, p.batch, p.keys, p.groups, p.size);
  };
  const Gradients g{of_queries(q),   of_keys(k),       of_keys(v),
                    of_queries(out), of_queries(dout), of_queries(dq),
                    of_keys(dk),     of_keys(dv),      flat(lse, p.batch * p.heads * p.queries)};
  visibility_.prepare(mask, p.batch, p.queries, p.keys);
  const std::int64_t block_size = scratch_of_thread(p, true);
  const std::int64_t parts = parts_of(p);
  const std::int64_t part_size = p.keys * p.size;  // of dk, and as much of dv
  const std::int64_t kv_heads = p.batch * p.groups;
  auto* scores =
      scratch<float>(static_cast<std::size_t>(threads_ * block_size + partial_gradients(p)));
  float* partial = scores + threads_ * block_size;  // [B·G, parts, dk|dv, Tk, D]

  parallel_tasks(threads_, kv_heads * parts, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / parts / p.groups, group = task / parts % p.groups;
    float* my_dk = parts == 1 ? g.dk.at(b, 0, group) : partial + 2 * task * part_size;
    float* my_dv = parts == 1 ? g.dv.at(b, 0, group) : my_dk + part_size;
    const std::int64_t dk_stride = parts == 1 ? g.dk.stride : p.size;
    const std::int64_t dv_stride = parts == 1 ? g.dv.stride : p.size;
    zero_rows(my_dk, dk_stride, p.keys, p.size);
    zero_rows(my_dv, dv_stride, p.keys, p.size);
    float* own = scores + thread * block_size;
    float* turned = own + 2 * query_block * p.row();
    const BackwardScratch scratch{own, own + query_block * p.row(), turned,
                                  turned + p.size * p.row()};
    const std::int64_t blocks = p.blocks();
    const std::int64_t head = p.first_head(group), heads = p.first_head(group + 1) - head;
    VisibleKeys& visible = visible_[static_cast<std::size_t>(thread)];
    for (std::int64_t first = 0; first < p.keys; first += key_chunk) {
      const std::int64_t last = std::min(first + key_chunk, p.keys);
      bool ready = false;
      for (std::int64_t i = task % parts; i < heads * blocks; i += parts) {
        const std::int64_t h = head + i / blocks, begin = i % blocks * query_block;
        const std::int64_t end = std::min(begin + query_block, p.queries);
        if (first == 0) zero_rows(g.dq.at(b, begin, h), g.dq.stride, end - begin, p.size);
        visibility_.find(b, begin, end, first, last, visible);
        if (visible.columns == 0) continue;
        if (!ready) {
          transpose(scratch.keys, p.row(), g.k.at(b, first, group), g.k.stride, last - first,
                    p.size);
          transpose(scratch.values, p.row(), g.v.at(b, first, group), g.v.stride, last - first,
                    p.size);
          ready = true;
        }
        backward_block(p, g, b, h, begin, first, visible, scratch, my_dk, dk_stride, my_dv,
                       dv_stride);
      }
    }
  });
  if (parts == 1) return;
  join_parts(
      threads_, p, partial,
      [&](bool of_v, std::int64_t head, std::int64_t begin, std::int64_t rows, const float* sums) {
        const Heads& to = of_v ? g.dv : g.dk;
        for (std::int64_t r = 0; r < rows; ++r) {
          std::copy_n(sums + r * p.size, p.size,
                      to.at(head / p.groups, begin + r, head % p.groups));
        }
      });
}

}  // namespace trireme::ops
