// Attention in bf16: products of bf16 with fp32 sums, scores and softmax in fp32, probabilities and
// their gradients rounded to bf16 for the products that read them. A task is some blocks of queries
// of one head; its keys and values are packed once and stay in the core's cache.
#include "attention_problem.hpp"
#include "bf16_tiles.hpp"
#include "cpu_ops.hpp"
#include "threads.hpp"

namespace trireme::ops {
namespace {

/// One thread's scratch; the second group only with `backward`.
struct Work {
  float* scores;                            // [64, row], as bf16 once it is rounded
  std::uint32_t *transposed_keys, *values;  // packed: kᵀ; v, or in backward vᵀ
  float* sums;                              // [64, D] of out or dq
  // Backward alone
  float* gradients;                // of scores
  std::uint32_t* keys;             // packed: k
  std::uint32_t *queries, *douts;  // packed: one block of q and of dout
  std::uint32_t* weights;          // packed: scores or their gradients, of one chunk of keys
  float *dk, *dv;                  // [Tk, D], if a head is one part

  Work(const Problem& p, bool backward, ScratchAllocator& from) {
    const std::int64_t chunk = std::min(p.keys, key_chunk);
    scores = from.take<float>(query_block * p.row());
    transposed_keys = from.take<std::uint32_t>(packed_words(p.size, p.keys));
    values = from.take<std::uint32_t>(backward ? packed_words(p.size, p.keys)
                                               : packed_words(p.keys, p.size));
    sums = from.take<float>(query_block * p.size);
    gradients = from.take<float>(backward ? query_block * p.row() : 0);
    keys = from.take<std::uint32_t>(backward ? packed_words(p.keys, p.size) : 0);
    queries = from.take<std::uint32_t>(backward ? packed_words(query_block, p.size) : 0);
    douts = from.take<std::uint32_t>(backward ? packed_words(query_block, p.size) : 0);
    weights = from.take<std::uint32_t>(backward ? packed_words(query_block, chunk) : 0);
    const bool own = backward && parts_of(p) == 1;
    dk = from.take<float>(own ? p.keys * p.size : 0);
    dv = from.take<float>(own ? p.keys * p.size : 0);
  }
};

/// body(first, last) for pieces of [begin, end) of which only the first may begin inside a panel.
template <class Body>
void for_panels(std::int64_t begin, std::int64_t end, const Body& body) {
  const std::int64_t inside = begin % panel_columns;
  const std::int64_t cut = inside == 0 ? begin : std::min(end, begin + panel_columns - inside);
  if (begin < cut) body(begin, cut);
  if (cut < end) body(cut, end);
}

/// Rows that are multiplied at a time. Between steps memory is prefetched, and with a plain mask
/// keys after the step's last row are skipped.
std::int64_t row_step() {
  const std::int64_t rows = bf16_tiles().rows;
  return rows * std::max<std::int64_t>(1, 2 * tile_rows / rows);
}
/// Lines to prefetch while `rows` rows are multiplied.
std::int64_t lines_of(std::int64_t rows) { return 28 * rows / (2 * tile_rows); }

/// One past the last key that rows [row, row + count) of a block from `begin` on see.
std::int64_t reach_of(const Problem& p, std::int64_t begin, std::int64_t row, std::int64_t count) {
  return p.visibility->plain() ? begin + row + count : p.keys;
}

/// scores [rows, visible] = factor·x [rows, D] · packed transpose of all keys; 0 for keys that a
/// plain mask hides from a whole step of rows.
void score_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                   std::int64_t rows, float factor, const Bf16* x, std::int64_t stride,
                   const std::uint32_t* words, float* scores, PrefetchQueue& ahead) {
  const std::int64_t step = row_step();
  const auto of_panel = [&](const KeyRun& run, std::int64_t first, std::int64_t last) {
    for (std::int64_t row = 0; row < rows; row += step) {
      const std::int64_t count = std::min(step, rows - row);
      const std::int64_t wanted =
          std::clamp<std::int64_t>(reach_of(p, begin, row, count) - first, 0, last - first);
      const std::int64_t columns = std::min(last - first, (wanted + 15) / 16 * 16);
      TileResult result;
      result.wide = scores + row * p.row() + run.column + first - run.begin;
      result.stride = p.row();
      result.factor = factor;
      for (std::int64_t r = 0; r < count && columns < last - first; ++r) {
        std::fill_n(result.wide + r * p.row() + columns, last - first - columns, 0.0F);
      }
      if (columns == 0) continue;
      bf16_tiles().multiply(
          count, columns, p.size, x + row * stride, stride,
          words + first / panel_columns * panel_words(p.size) + first % panel_columns, result);
      ahead.fetch(lines_of(count));
    }
  };
  for (const KeyRun& run : visible.runs) {
    for_panels(run.begin, run.end,
               [&](std::int64_t first, std::int64_t last) { of_panel(run, first, last); });
  }
}

/// sums [rows, D] = (or += with `add`) weights [rows, visible] · packed rows of all keys.
void weighted_product(const Problem& p, const VisibleKeys& visible, std::int64_t begin,
                      std::int64_t rows, const float* weights, const std::uint32_t* words, bool add,
                      float* sums, PrefetchQueue& ahead) {
  const Bf16Tiles& tiles = bf16_tiles();
  const std::int64_t step = row_step();
  const auto* narrow = reinterpret_cast<const Bf16*>(weights);
  for (const KeyRun& run : visible.runs) {
    for (std::int64_t row = 0; row < rows; row += step) {
      const std::int64_t count = std::min(step, rows - row);
      const std::int64_t keys = std::clamp<std::int64_t>(reach_of(p, begin, row, count) - run.begin,
                                                         0, run.end - run.begin);
      for (std::int64_t column = 0; column < p.size; column += panel_columns) {
        TileResult result;
        result.wide = sums + row * p.size + column;
        result.stride = p.size;
        result.accumulate = add;
        tiles.multiply(
            count, std::min(panel_columns, p.size - column), keys,
            narrow + row * 2 * p.row() + run.column, 2 * p.row(),
            words + column / panel_columns * panel_words(p.keys) + run.begin / 2 * panel_columns,
            result);
      }
      ahead.fetch(lines_of(count));
    }
    add = true;
  }
}

/// y [Tk, D] += weightsᵀ · `rows` packed rows.
void transposed_product(const Problem& p, const VisibleKeys& visible, std::int64_t rows,
                        const float* weights, const std::uint32_t* words, std::uint32_t* packed,
                        float* y) {
  const Bf16Tiles& tiles = bf16_tiles();
  tiles.pack(rows, visible.columns, false, reinterpret_cast<const Bf16*>(weights), 2 * p.row(),
             packed);
  for (const KeyRun& run : visible.runs) {
    for_panels(run.column, run.column + run.end - run.begin,
               [&](std::int64_t first, std::int64_t last) {
                 TileResult result;
                 result.wide = y + (run.begin + first - run.column) * p.size;
                 result.stride = p.size;
                 result.accumulate = true;
                 tiles.multiply_packed(
                     last - first, p.size, rows,
                     packed + first / panel_columns * panel_words(rows) + first % panel_columns,
                     words, result, nullptr);
               });
  }
}

using Gradients = GradientsOf<Bf16>;

/// dq of one block of queries of one head, and its share of the head's dk and dv [Tk, D].
void backward_block(const Problem& p, const Gradients& g, std::int64_t b, std::int64_t h,
                    std::int64_t begin, VisibleKeys& visible, const Work& work, float* dk,
                    float* dv, PrefetchQueue& ahead) {
  const Bf16Tiles& tiles = bf16_tiles();
  const std::int64_t rows = std::min(query_block, p.queries - begin);
  const Bf16* dout = g.dout.at(b, begin, h);
  const Bf16* q = g.q.at(b, begin, h);
  float delta[query_block];
  row_dots(dout, g.dout.stride, g.out.at(b, begin, h), g.out.stride, rows, p.size, delta);
  tiles.pack(rows, p.size, false, q, g.q.stride, work.queries);
  tiles.pack(rows, p.size, false, dout, g.dout.stride, work.douts);
  bool any = false;
  for (std::int64_t first = 0; first < p.keys; first += key_chunk) {
    p.visibility->find(b, begin, begin + rows, first, std::min(first + key_chunk, p.keys), visible);
    if (visible.columns == 0) continue;
    score_product(p, visible, begin, rows, p.scale, q, g.q.stride, work.transposed_keys,
                  work.scores, ahead);
    score_product(p, visible, begin, rows, 1.0F, dout, g.dout.stride, work.values, work.gradients,
                  ahead);
    softmax_gradient_block<Bf16>(p.score_block(b, h, begin, rows, visible, work.scores),
                                 work.gradients, g.lse + (b * p.heads + h) * p.queries + begin,
                                 delta, p.scale);
    transposed_product(p, visible, rows, work.scores, work.douts, work.weights, dv);
    transposed_product(p, visible, rows, work.gradients, work.queries, work.weights, dk);
    weighted_product(p, visible, begin, rows, work.gradients, work.keys, any, work.sums, ahead);
    any = true;
  }
  if (!any) std::fill_n(work.sums, rows * p.size, 0.0F);
  scale_rows(g.dq.at(b, begin, h), g.dq.stride, work.sums, p.size, rows, p.size, nullptr);
}

}  // namespace

std::size_t cpu_narrow_attention_workspace(std::span<const AttentionShape> calls, int threads,
                                           bool reproducible) {
  return attention_workspace<Work>(calls, threads, reproducible);
}

void CpuOps::attend(std::span<const Problem> calls, std::span<const OperandsOf<Bf16>> operands) {
  const std::size_t own = scratch_bytes_of<Work>(calls, false);
  auto* scratch_of_all = scratch<std::byte>(static_cast<std::size_t>(threads_) * own);
  const std::int64_t parts = forward_parts(calls, threads_);
  Tasks tasks;
  for (const Problem& p : calls) tasks.add_call(p.batch * p.heads * parts);
  parallel_tasks(threads_, tasks.count(), [&](std::int64_t task, int thread) {
    const auto [call, own_task] = tasks.find(task);
    const Problem& p = calls[call];
    const OperandsOf<Bf16>& x = operands[call];
    const std::int64_t head = own_task / parts, b = head / p.heads, h = head % p.heads;
    const std::int64_t group = p.group_of(h);
    ScratchAllocator allocator(scratch_of_all + static_cast<std::size_t>(thread) * own);
    const Work work(p, false, allocator);
    PrefetchQueue ahead;
    if (parts == 1) ahead = ahead_of_forward(p, x, head);
    VisibleKeys& visible = visible_[static_cast<std::size_t>(thread)];
    const Bf16Tiles& tiles = bf16_tiles();
    const TileScope scope(tiles);
    tiles.pack(p.size, p.keys, true, x.k.at(b, 0, group), x.k.stride, work.transposed_keys);
    tiles.pack(p.keys, p.size, false, x.v.at(b, 0, group), x.v.stride, work.values);
    for (std::int64_t block = own_task % parts; block < p.blocks(); block += parts) {
      const std::int64_t begin = block * query_block;
      const std::int64_t rows = std::min(query_block, p.queries - begin);
      visibility_.find(b, begin, begin + rows, 0, p.keys, visible);
      score_product(p, visible, begin, rows, p.scale, x.q.at(b, begin, h), x.q.stride,
                    work.transposed_keys, work.scores, ahead);
      float inverse[query_block];
      softmax_block<Bf16>(p.score_block(b, h, begin, rows, visible, work.scores),
                          x.lse + (b * p.heads + h) * p.queries + begin, inverse);
      weighted_product(p, visible, begin, rows, work.scores, work.values, false, work.sums, ahead);
      scale_rows(x.out.at(b, begin, h), x.out.stride, work.sums, p.size, rows, p.size, inverse);
    }
  });
}

void CpuOps::attend_backward(std::span<const Problem> calls, std::span<const Gradients> operands,
                             std::int64_t begin, std::int64_t end) {
  const std::size_t own = scratch_bytes_of<Work>(calls, true);
  const BackwardTasks tasks(calls, begin, end);
  auto* work_of_all =
      scratch<std::byte>(static_cast<std::size_t>(threads_) * own + tasks.partial_bytes());
  auto* partial = reinterpret_cast<float*>(work_of_all + static_cast<std::size_t>(threads_) * own);

  parallel_tasks(threads_, tasks.count(), [&](std::int64_t task, int thread) {
    const BackwardTask t = tasks.find(task);
    const Problem& p = calls[t.call];
    const Gradients& g = operands[t.call];
    const std::int64_t part_size = p.keys * p.size, b = t.b, group = t.group;
    ScratchAllocator allocator(work_of_all + static_cast<std::size_t>(thread) * own);
    const Work work(p, true, allocator);
    PrefetchQueue ahead;
    if (t.parts == 1) ahead = ahead_of_backward(p, g, b * p.groups + group);
    float* my_dk = t.parts == 1 ? work.dk : partial + t.partial;
    float* my_dv = t.parts == 1 ? work.dv : my_dk + part_size;
    std::fill_n(my_dk, part_size, 0.0F);
    std::fill_n(my_dv, part_size, 0.0F);
    const Bf16Tiles& tiles = bf16_tiles();
    const TileScope scope(tiles);
    tiles.pack(p.size, p.keys, true, g.k.at(b, 0, group), g.k.stride, work.transposed_keys);
    tiles.pack(p.size, p.keys, true, g.v.at(b, 0, group), g.v.stride, work.values);
    tiles.pack(p.keys, p.size, false, g.k.at(b, 0, group), g.k.stride, work.keys);
    const std::int64_t blocks = p.blocks();
    const std::int64_t first = p.first_head(group), heads = p.first_head(group + 1) - first;
    for (std::int64_t i = t.part; i < heads * blocks; i += t.parts) {
      backward_block(p, g, b, first + i / blocks, i % blocks * query_block,
                     visible_[static_cast<std::size_t>(thread)], work, my_dk, my_dv, ahead);
    }
    if (t.parts > 1) return;
    scale_rows(g.dk.at(b, 0, group), g.dk.stride, my_dk, p.size, p.keys, p.size, nullptr);
    scale_rows(g.dv.at(b, 0, group), g.dv.stride, my_dv, p.size, p.keys, p.size, nullptr);
  });
  tasks.join_parts(threads_, partial,
                   [&](std::size_t call, bool of_v, std::int64_t b, std::int64_t group,
                       std::int64_t first, std::int64_t rows, const float* sums) {
                     const Problem& p = calls[call];
                     const HeadsOf<Bf16>& to = of_v ? operands[call].dv : operands[call].dk;
                     scale_rows(to.at(b, first, group), to.stride, sums, p.size, rows, p.size,
                                nullptr);
                   });
}

}  // namespace trireme::ops
