// Attention, one block of queries of one head at a time: scores, softmax and the product with the
// values run on one thread per block. Scratch per thread: forward one block of scores, 64 queries
// by all keys; backward, which knows log Σ exp already, two blocks of 64 queries by at most 512
// keys.
#include <algorithm>
#include <cstring>

#include "attention_problem.hpp"
#include "cpu_ops.hpp"
#include "sgemm.hpp"
#include "threads.hpp"

namespace trireme::ops {
namespace {

/// scores = scale·x·yᵀ over the visible keys; x [rows, D] one block, y all keys of a head.
void score_product(const Problem& p, const VisibleKeys& visible, std::int64_t rows, float scale,
                   const float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                   float* scores) {
  for (const KeyRun& run : visible.runs) {
    sgemm({rows, run.end - run.begin, p.size, false, true}, scale, x, x_stride,
          y + run.begin * y_stride, y_stride, 0.0F, scores + run.column, p.row());
  }
}

/// out [rows, D] += weights·y over the visible keys.
void weighted_product(const Problem& p, const VisibleKeys& visible, std::int64_t rows,
                      const float* weights, const float* y, std::int64_t y_stride, float* out,
                      std::int64_t out_stride) {
  for (const KeyRun& run : visible.runs) {
    sgemm({rows, p.size, run.end - run.begin, false, false}, 1.0F, weights + run.column, p.row(),
          y + run.begin * y_stride, y_stride, 1.0F, out, out_stride);
  }
}

/// y [Tk, D] += weightsᵀ·x over the visible keys; x [rows, D].
void transposed_product(const Problem& p, const VisibleKeys& visible, std::int64_t rows,
                        const float* weights, const float* x, std::int64_t x_stride, float* y,
                        std::int64_t y_stride) {
  for (const KeyRun& run : visible.runs) {
    sgemm({run.end - run.begin, p.size, rows, true, false}, 1.0F, weights + run.column, p.row(), x,
          x_stride, 1.0F, y + run.begin * y_stride, y_stride);
  }
}

/// Everything one call of backward reads and writes.
struct Gradients {
  Heads q, k, v, out, dout, dq, dk, dv;
  const float* lse;
};

/// dq of one block of queries of one head, and its share of the head's dk and dv [Tk, D].
void backward_block(const Problem& p, const Gradients& g, std::int64_t b, std::int64_t h,
                    std::int64_t begin, VisibleKeys& visible, float* scores, float* dk,
                    std::int64_t dk_stride, float* dv, std::int64_t dv_stride) {
  const std::int64_t group = p.group_of(h);
  const std::int64_t rows = std::min(query_block, p.queries - begin);
  float* dscores = scores + query_block * p.row();
  const float* dout = g.dout.at(b, begin, h);
  const float* q = g.q.at(b, begin, h);
  const float* k = g.k.at(b, 0, group);
  float* dq = g.dq.at(b, begin, h);
  float delta[query_block];
  row_dots(dout, g.dout.stride, g.out.at(b, begin, h), g.out.stride, rows, p.size, delta);
  zero_rows(dq, g.dq.stride, rows, p.size);
  for (std::int64_t first = 0; first < p.keys; first += key_chunk) {
    p.visibility->find(b, begin, begin + rows, first, std::min(first + key_chunk, p.keys), visible);
    if (visible.columns == 0) continue;
    score_product(p, visible, rows, p.scale, q, g.q.stride, k, g.k.stride, scores);
    score_product(p, visible, rows, 1.0F, dout, g.dout.stride, g.v.at(b, 0, group), g.v.stride,
                  dscores);
    softmax_gradient_block(p.score_block(b, h, begin, rows, visible, scores), dscores,
                           g.lse + (b * p.heads + h) * p.queries + begin, delta, p.scale);
    transposed_product(p, visible, rows, scores, dout, g.dout.stride, dv, dv_stride);
    transposed_product(p, visible, rows, dscores, q, g.q.stride, dk, dk_stride);
    weighted_product(p, visible, rows, dscores, k, g.k.stride, dq, g.dq.stride);
  }
}

/// fp32 elements of scores that one thread works on: forward all keys at once, backward two chunks
/// of them.
std::int64_t scores_of_thread(const Problem& p, bool backward) {
  return (backward ? 2 : 1) * query_block * p.row();
}

}  // namespace

std::size_t cpu_attention_workspace(const AttentionShape& shape, int threads) {
  Problem p{shape};
  p.scores_width = p.keys;
  const std::int64_t forward = threads * scores_of_thread(p, false);
  p.scores_width = std::min(p.keys, key_chunk);
  const std::int64_t backward = threads * scores_of_thread(p, true) + partial_gradients(p);
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
  const std::int64_t block_size = scores_of_thread(p, false);
  auto* scores = scratch<float>(static_cast<std::size_t>(threads_ * block_size));
  const std::int64_t blocks = p.blocks();
  const ThreadScope scope(1);  // also where the tasks run on the calling thread
  parallel_tasks(threads_, p.batch * p.heads * blocks, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / (p.heads * blocks), h = task / blocks % p.heads;
    // Late blocks see most under a causal mask: they come first, for an even end.
    const std::int64_t begin = (blocks - 1 - task % blocks) * query_block;
    const std::int64_t rows = std::min(query_block, p.queries - begin);
    const std::int64_t group = p.group_of(h);
    float* own = scores + thread * block_size;
    VisibleKeys& visible = visible_[static_cast<std::size_t>(thread)];
    visibility_.find(b, begin, begin + rows, 0, p.keys, visible);
    score_product(p, visible, rows, p.scale, query.at(b, begin, h), query.stride,
                  key.at(b, 0, group), key.stride, own);
    float inverse[query_block];
    softmax_block(p.score_block(b, h, begin, rows, visible, own),
                  log_sums + (b * p.heads + h) * p.queries + begin, inverse);
    zero_rows(to.at(b, begin, h), to.stride, rows, p.size);
    weighted_product(p, visible, rows, own, value.at(b, 0, group), value.stride, to.at(b, begin, h),
                     to.stride);
    scale_rows(to.at(b, begin, h), to.stride, rows, p.size, inverse);
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
  const std::int64_t block_size = scores_of_thread(p, true);
  const std::int64_t parts = parts_of(p);
  const std::int64_t part_size = p.keys * p.size;  // of dk, and as much of dv
  const std::int64_t kv_heads = p.batch * p.groups;
  auto* scores =
      scratch<float>(static_cast<std::size_t>(threads_ * block_size + partial_gradients(p)));
  float* partial = scores + threads_ * block_size;  // [B·G, parts, dk|dv, Tk, D]
  const ThreadScope scope(1);  // also where the tasks run on the calling thread

  parallel_tasks(threads_, kv_heads * parts, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / parts / p.groups, group = task / parts % p.groups;
    float* my_dk = parts == 1 ? g.dk.at(b, 0, group) : partial + 2 * task * part_size;
    float* my_dv = parts == 1 ? g.dv.at(b, 0, group) : my_dk + part_size;
    const std::int64_t dk_stride = parts == 1 ? g.dk.stride : p.size;
    const std::int64_t dv_stride = parts == 1 ? g.dv.stride : p.size;
    zero_rows(my_dk, dk_stride, p.keys, p.size);
    zero_rows(my_dv, dv_stride, p.keys, p.size);
    const std::int64_t blocks = p.blocks();
    const std::int64_t first = p.first_head(group), heads = p.first_head(group + 1) - first;
    for (std::int64_t i = task % parts; i < heads * blocks; i += parts) {
      backward_block(p, g, b, first + i / blocks, i % blocks * query_block,
                     visible_[static_cast<std::size_t>(thread)], scores + thread * block_size,
                     my_dk, dk_stride, my_dv, dv_stride);
    }
  });
  if (parts == 1) return;
  // [B·G, parts, dk|dv, Tk, D]: each task joins the parts of some rows of one head's dk or dv.
  const std::int64_t chunks = (p.keys + key_chunk - 1) / key_chunk;
  parallel_tasks(threads_, kv_heads * 2 * chunks, [&](std::int64_t task, int) {
    const std::int64_t head = task / chunks / 2, begin = task % chunks * key_chunk;
    const std::int64_t end = std::min(begin + key_chunk, p.keys);
    const bool of_v = task / chunks % 2 == 1;
    const Heads& to = of_v ? g.dv : g.dk;
    float* sums = partial + (2 * head * parts + (of_v ? 1 : 0)) * part_size + begin * p.size;
    sum_parts(sums, 2 * part_size, parts, (end - begin) * p.size);
    for (std::int64_t t = begin; t < end; ++t) {
      std::copy_n(sums + (t - begin) * p.size, p.size, to.at(head / p.groups, t, head % p.groups));
    }
  });
}

}  // namespace trireme::ops
