// Sums of matrix products of bf16 factors. Sums of some products stay in a core's caches.
#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

#include "trireme/core/pairwise.hpp"
#include "trireme/ops/workspace.hpp"

#include "bf16_product.hpp"
#include "cpu_ops.hpp"
#include "threads.hpp"

namespace trireme::ops {
namespace {

// Words of packed right factors in a pass: they stay in the caches.
constexpr std::int64_t words_of_thread = std::int64_t{3} << 17;

/// Prefetches rows of `bytes` bytes into the second-level cache.
template <bool written>
void fetch_rows(const void* first, std::int64_t stride, std::int64_t rows, std::int64_t bytes) {
  const auto* row = static_cast<const char*>(first);
  for (; rows > 0; --rows, row += stride) {
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, written, 2);
  }
}

/// How a sum of products [m, n] is divided: into passes over blocks of columns, whose right factors
/// are packed first. A task is a panel by some blocks of rows.
struct SumDivision {
  int threads;
  std::int64_t block = 1;      // rows whose sums of some products stay in the first-level cache
  std::int64_t rows = 1;       // of a task
  Blocks passes;               // of columns
  std::size_t words = 0;       // of the packed right factors of a pass
  std::size_t bias_bytes = 0;  // of a product's rounded bias
  std::size_t own = 0;         // fp32 sums of a thread
  std::size_t bytes = 0;       // of scratch

  SumDivision(std::int64_t m, std::int64_t n, std::span<const std::int64_t> inner, int most)
      : threads(most), passes(n, 1, panel_columns), bias_bytes(rounded_vector_bytes(n)) {
    if (m == 0 || n == 0) return;
    const std::int64_t all = std::reduce(inner.begin(), inner.end());
    if (m * n * all < (1 << 18)) threads = 1;
    block = parts(24, bf16_tiles().rows) * bf16_tiles().rows;
    rows = 4 * block;
    const auto slots = std::bit_width(inner.size()) - 1;  // of the tree, but for the first
    own = static_cast<std::size_t>(slots) * static_cast<std::size_t>(block * panel_columns);
    const std::int64_t panel = std::max<std::int64_t>(1, words_of(inner, panel_columns));
    const std::int64_t fit = std::max<std::int64_t>(1, threads * words_of_thread / panel);
    passes = Blocks(n, parts(parts(n, panel_columns), fit), panel_columns);
    words = static_cast<std::size_t>(words_of(inner, passes.most()));
    bytes = words * sizeof(std::uint32_t) + inner.size() * bias_bytes +
            static_cast<std::size_t>(threads) * own * sizeof(float);
  }
  static std::int64_t words_of(std::span<const std::int64_t> inner, std::int64_t columns) {
    std::int64_t words = 0;
    for (const std::int64_t k : inner) words += packed_words(k, columns);
    return words;
  }
};

/// How sums of products of transposed left factors are divided: into passes over pieces, which are
/// columns of a sum, or of all sums where they share right factors. The right factors of a pass are
/// packed first. A task is a piece by a panel of a sum's rows, whose left factors it packs itself.
struct LeftSumDivision {
  struct Piece {
    std::size_t sum;
    Range columns;
    std::int64_t words;  // where its packed right factors begin
  };
  using Pass = std::vector<Piece>;
  int threads;
  bool shared;
  std::vector<Pass> passes;
  std::int64_t words = 0;       // of the packed right factors of a pass
  std::int64_t left_words = 0;  // of a thread
  std::int64_t own = 0;         // fp32 sums of a thread
  std::size_t bytes = 0;        // of scratch

  /// `shared`: all sums have the same right factors.
  LeftSumDivision(std::span<const ProductSumShape> sums, std::int64_t terms, bool shared, int most)
      : threads(most), shared(shared) {
    double work = 0;  // may exceed 2^63
    std::int64_t deepest = 1;
    for (const ProductSumShape& sum : sums) {
      work += static_cast<double>(sum.m * sum.n) * static_cast<double>(sum.k * sum.count);
      deepest = std::max(deepest, sum.k);
    }
    if (work < (1 << 18)) threads = 1;
    std::int64_t used = 0, widest = 0;
    for (std::size_t s = 0; s < (shared ? 1 : sums.size()); ++s) {
      const std::int64_t n = sums[s].n, panel = sums[s].count * panel_words(sums[s].k);
      for (std::int64_t column = 0; column < n; column += panel_columns) {
        if (passes.empty() || used + panel > threads * words_of_thread) {
          passes.emplace_back();
          used = 0;
        }
        Pass& pieces = passes.back();
        if (pieces.empty() || pieces.back().sum != s) pieces.push_back({s, {column, column}, used});
        pieces.back().columns.end = std::min(n, column + panel_columns);
        used += panel;
        words = std::max(words, used);
        widest = std::max(widest, pieces.back().columns.size());
      }
    }
    left_words = packed_words(std::min(deepest, packed_depth), panel_columns);
    const auto slots = std::bit_width(static_cast<std::uint64_t>(terms)) - 1;
    own = slots * panel_columns * whole_panels(widest);
    bytes = static_cast<std::size_t>(words + threads * (left_words + own)) * sizeof(float);
  }
  static std::int64_t whole_panels(std::int64_t columns) {
    return parts(columns, panel_columns) * panel_columns;
  }
};

/// `result` ← the sum of `terms` terms, at least 2, in sum_pairwise's order. multiply(term, to,
/// accumulate) writes or adds a term; whether it may be added: at_once(term), which has no sum of
/// its own. `own`: log2(terms) blocks of the result's rows with `stride` elements each.
template <class AtOnce, class Multiply>
void sum_block(std::int64_t terms, const Rows<float>& result, float* own, std::int64_t stride,
               const AtOnce& at_once, const Multiply& multiply) {
  const auto slot = [&](std::int64_t i) {
    if (i == 0) return result;
    return Rows<float>{own + (i - 1) * result.rows * stride, result.rows, result.columns, stride};
  };
  const auto add = [&](std::int64_t to, std::int64_t from) {
    add_block(slot(to), slot(from), {0, result.rows}, {0, result.columns});
  };
  const std::int64_t spare = std::bit_width(static_cast<std::uint64_t>(terms)) - 1;
  sum_pairwise(
      terms / 2,
      [&](std::int64_t pair, std::int64_t to) {
        multiply(2 * pair, slot(to), false);
        const bool adds = at_once(2 * pair + 1);
        multiply(2 * pair + 1, slot(adds ? to : spare), adds);
        if (!adds) add(to, spare);
      },
      add);
}

}  // namespace

std::size_t cpu_left_sum_workspace(std::span<const ProductSumShape> sums, std::int64_t terms,
                                   bool shared, int threads) {
  return LeftSumDivision(sums, terms, shared, threads).bytes;
}

std::size_t cpu_sum_workspace(std::int64_t m, std::int64_t n, std::span<const std::int64_t> inner,
                              int threads) {
  return SumDivision(m, n, inner, threads).bytes;
}

void CpuOps::sum_narrow_matmuls(const Tensor& sum, std::span<const Matmul> products) {
  const std::int64_t m = sum.extent(0), n = sum.extent(1);
  std::vector<std::int64_t> inner;
  for (const Matmul& p : products) inner.push_back(p.a.extent(1));
  const SumDivision division(m, n, inner, threads_);
  auto* work = scratch<std::byte>(division.bytes);
  auto* words = reinterpret_cast<std::uint32_t*>(work);
  work += division.words * sizeof(std::uint32_t);
  auto* sums = reinterpret_cast<float*>(work);
  work += static_cast<std::size_t>(division.threads) * division.own * sizeof(float);
  std::vector<NarrowProduct> all;
  for (const Matmul& p : products) {
    TRIREME_ASSERT(is_wide(p), "a sum of products into {}", p.c.shape().to_string());
    all.push_back(product_of(p, n, reinterpret_cast<Bf16*>(work)));
    work += division.bias_bytes;
  }
  const Rows<float> result = rows_of(sum);

  const std::int64_t count = std::ssize(all), sections = parts(m, division.rows);
  for (std::int64_t pass = 0; pass < division.passes.count(); ++pass) {
    const std::int64_t first = division.passes.begin(pass), last = division.passes.end(pass);
    const std::int64_t panels = parts(last - first, panel_columns);
    // By panel, product and part of the inner extent.
    const auto visit_panel = [&](std::int64_t panel, std::int64_t i, const auto& visit) {
      std::uint32_t* to =
          words + panel * SumDivision::words_of(inner, panel_columns) +
          SumDivision::words_of(std::span(inner).first(static_cast<std::size_t>(i)), panel_columns);
      const std::int64_t own = inner[static_cast<std::size_t>(i)];
      for (std::int64_t from = 0; from == 0 || from < own; from += depth) {
        const std::int64_t size = std::min(depth, own - from);
        visit(from, size, to);
        to += panel_words(size);
      }
    };
    const auto columns_of = [&](std::int64_t panel) {
      const std::int64_t begin = first + panel * panel_columns;
      return Range{begin, std::min(last, begin + panel_columns)};
    };
    parallel_tasks(division.threads, panels * count, [&](std::int64_t task, int /*thread*/) {
      const Range columns = columns_of(task / count);
      visit_panel(task / count, task % count, [&](auto from, auto size, std::uint32_t* to) {
        pack_right(all[static_cast<std::size_t>(task % count)], from, size, columns.begin,
                   columns.size(), to);
      });
    });
    const auto sum_rows = [&](std::int64_t panel, Range rows, float* own) {
      const Range columns = columns_of(panel);
      const Rows<float> block{result.row(rows.begin) + columns.begin, rows.size(), columns.size(),
                              result.stride};
      constexpr std::int64_t wide = sizeof(float), narrow = sizeof(Bf16);
      fetch_rows<true>(block.data, block.stride * wide, block.rows, block.columns * wide);
      const std::int64_t following = std::min(m - rows.end, division.block);
      sum_block(
          count, block, own, panel_columns,
          [&](std::int64_t i) { return inner[static_cast<std::size_t>(i)] <= depth; },
          [&](std::int64_t i, const Rows<float>& to, bool accumulate) {
            const NarrowProduct& p = all[static_cast<std::size_t>(i)];
            if (panel == 0 && following > 0) {  // later panels read the same rows
              fetch_rows<false>(p.left.row(rows.end), p.left.stride * narrow, following,
                                p.left.columns * narrow);
            }
            visit_panel(panel, i, [&](auto from, auto size, const std::uint32_t* packed) {
              TileResult tile{.wide = to.data, .stride = to.stride};
              tile.accumulate = accumulate || from > 0;
              if (p.bias != nullptr && from + size == inner[static_cast<std::size_t>(i)]) {
                tile.bias = p.bias + columns.begin;
              }
              bf16_tiles().multiply(rows.size(), columns.size(), size,
                                    p.left.row(rows.begin) + from, p.left.stride, packed, tile);
            });
          });
    };
    parallel_tasks(division.threads, panels * sections, [&](std::int64_t task, int thread) {
      const TileScope scope(bf16_tiles());
      float* own = sums + static_cast<std::size_t>(thread) * division.own;
      const std::int64_t begin = task / panels * division.rows;
      const std::int64_t end = std::min(m, begin + division.rows);
      for (std::int64_t row = begin; row < end; row += division.block) {
        sum_rows(task % panels, {row, std::min(end, row + division.block)}, own);
      }
    });
  }
}

void CpuOps::narrow_sums(std::span<const MatmulSum> sums) {
  std::vector<ProductSumShape> shapes;
  std::vector<std::vector<NarrowProduct>> all(sums.size());
  for (std::size_t s = 0; s < sums.size(); ++s) {
    for (std::int64_t i = 0; i < std::ssize(sums[s].products); ++i) {
      const Matmul p = sums[s].product_into(i, 0);
      const MatmulOptions& options = p.options;
      TRIREME_ASSERT(is_wide(p) && options.transpose_a && !options.bias && !options.before_gelu &&
                         !options.gelu_input,
                     "product {} of a sum has another form", i);
      const ProductShape own = product_shape(p.c, p.a, p.b, options);
      const ProductSumShape shape{own.m, own.n, own.k, std::ssize(sums[s].products)};
      if (i == 0) shapes.push_back(shape);
      TRIREME_ASSERT(shape == shapes.back(), "inner extents {} and {} of a sum", shapes.back().k,
                     own.k);
      all[s].push_back(product_of(p, own.n, nullptr));
    }
  }
  // Of tiles of a weight that is divided by rows.
  const bool shared = std::ranges::all_of(sums, [&](const MatmulSum& sum) {
    return std::ranges::equal(sum.products, sums.front().products,
                              [](const auto& x, const auto& y) {
                                return x.b.data() == y.b.data() && x.b.shape() == y.b.shape() &&
                                       x.b.stride(0) == y.b.stride(0) && x.b.type() == y.b.type() &&
                                       x.options.transpose_b == y.options.transpose_b;
                              });
  });
  const std::int64_t terms = sums.front().terms();
  const LeftSumDivision division(shapes, terms, shared, threads_);
  auto* words = scratch<std::uint32_t>(division.bytes / sizeof(std::uint32_t));
  std::uint32_t* const lefts = words + division.words;
  auto* const blocks = reinterpret_cast<float*>(lefts + division.threads * division.left_words);

  using Piece = LeftSumDivision::Piece;
  struct Task {
    const Piece* piece;
    std::size_t sum;
    std::int64_t index;  // of a product, or of a panel of rows
  };
  // Parts of the inner extent of a product, and the words of the piece's columns.
  const auto visit = [&](const Piece& piece, std::int64_t product, const auto& visit_part) {
    const std::int64_t k = shapes[piece.sum].k;
    std::uint32_t* to = words + piece.words + product * packed_words(k, piece.columns.size());
    for (std::int64_t from = 0; from == 0 || from < k; from += packed_depth) {
      const std::int64_t size = std::min(packed_depth, k - from);
      visit_part(from, size, to);
      to += packed_words(size, piece.columns.size());
    }
  };
  const Bf16Tiles& tiles = bf16_tiles();
  for (const LeftSumDivision::Pass& pass : division.passes) {
    std::vector<Task> packing, adding;
    for (const Piece& piece : pass) {
      for (std::int64_t i = 0; i < std::ssize(all[piece.sum]); ++i) {
        packing.push_back({&piece, piece.sum, i});
      }
      for (std::size_t s = piece.sum; s < (division.shared ? sums.size() : piece.sum + 1); ++s) {
        const std::int64_t panels = parts(shapes[s].m, panel_columns);
        for (std::int64_t i = 0; i < panels; ++i) adding.push_back({&piece, s, i});
      }
    }
    parallel_tasks(division.threads, std::ssize(packing), [&](std::int64_t task, int /*thread*/) {
      const Task& own = packing[static_cast<std::size_t>(task)];
      const Piece& piece = *own.piece;
      const NarrowProduct& p = all[own.sum][static_cast<std::size_t>(own.index)];
      visit(piece, own.index, [&](std::int64_t from, std::int64_t size, std::uint32_t* to) {
        pack_right(p, from, size, piece.columns.begin, piece.columns.size(), to);
      });
    });
    parallel_tasks(division.threads, std::ssize(adding), [&](std::int64_t task, int thread) {
      const TileScope scope(tiles);
      const Task& own = adding[static_cast<std::size_t>(task)];
      const Piece& piece = *own.piece;
      const Range columns = piece.columns;
      const ProductSumShape& shape = shapes[own.sum];
      const std::vector<NarrowProduct>& products = all[own.sum];
      const std::int64_t each = std::ssize(products) / terms;
      const std::int64_t row = own.index * panel_columns,
                         rows = std::min(panel_columns, shape.m - row);
      std::uint32_t* left = lefts + thread * division.left_words;
      const Rows<float>& whole = products.front().wide;
      sum_block(
          terms, {whole.row(row) + columns.begin, rows, columns.size(), whole.stride},
          blocks + thread * division.own, LeftSumDivision::whole_panels(columns.size()),
          [&](std::int64_t /*term*/) { return each == 1 && shape.k <= packed_depth; },
          [&](std::int64_t term, const Rows<float>& to, bool accumulate) {
            for (std::int64_t i = term * each; i < (term + 1) * each; ++i) {
              const NarrowProduct& p = products[static_cast<std::size_t>(i)];
              visit(
                  piece, i, [&](std::int64_t from, std::int64_t size, const std::uint32_t* right) {
                    tiles.pack(size, rows, false, p.left.row(from) + row, p.left.stride, left);
                    const TileResult result{.wide = to.data,
                                            .stride = to.stride,
                                            .accumulate = accumulate || p.accumulate || from > 0};
                    PrefetchQueue ahead;
                    if (i + 1 < std::ssize(products)) {
                      const NarrowProduct& next = products[static_cast<std::size_t>(i + 1)];
                      ahead.add(next.left.row(0) + row, next.left.stride,
                                std::min(packed_depth, next.left.rows), rows);
                    }
                    tiles.multiply_packed(rows, columns.size(), size, left, right, result, &ahead);
                  });
            }
          });
    });
  }
}

}  // namespace trireme::ops
