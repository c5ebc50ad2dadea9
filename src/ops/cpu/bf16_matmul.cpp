// Matrix products of bf16 factors. A task is a block of columns by a section of rows; it packs its
// part of the right factor and, if that is transposed, of the left one. How a sum is divided
// depends on the inner extent and on whether the left factor is transposed, not on the threads.
#include <algorithm>
#include <span>
#include <vector>

#include "trireme/ops/workspace.hpp"

#include "bf16_product.hpp"
#include "cpu_ops.hpp"
#include "threads.hpp"

namespace trireme::ops {
namespace {

/// How a product is divided. It depends on shape and threads alone, so that scratch is predictable.
struct Cut {
  std::int64_t k, inner;  // inner extent, and how much of it is summed at once
  bool packs_left;
  std::int64_t rows;  // of the left factor that fit a core's cache
  Blocks columns, sections;

  Cut(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed, int threads)
      : k(k),
        inner(std::clamp<std::int64_t>(k, 1, transposed ? packed_depth : depth)),
        packs_left(transposed),
        rows(row_block(bf16_tiles().rows)),
        columns(n, column_blocks(n, threads), panel_columns),
        sections(m, section_count(m, threads), transposed ? panel_columns : bf16_tiles().rows) {}
  std::int64_t tasks() const { return columns.count() * sections.count(); }
  std::size_t words() const {
    return static_cast<std::size_t>(packed_words(inner, columns.most()));
  }
  std::size_t left_words() const {
    if (!packs_left) return 0;
    return static_cast<std::size_t>(packed_words(inner, std::min(rows, sections.most())));
  }
  /// fp32 sums over all inner blocks but the last.
  std::size_t sums_bytes(bool wide) const {
    if (wide || k <= inner) return 0;
    return device::aligned(static_cast<std::size_t>(sections.most() * columns.most()) *
                           sizeof(float));
  }
  std::size_t bytes_of_thread(bool wide) const {
    return (words() + left_words()) * sizeof(std::uint32_t) + sums_bytes(wide);
  }

 private:
  /// With AMX packing a block for few rows costs: threads divide columns, not rows.
  static bool fast() { return bf16_tiles().rows > tile_rows; }
  std::int64_t row_block(std::int64_t tile) const {
    if (packs_left) return 4 * panel_columns;
    const std::int64_t fit = (std::int64_t{1} << 15) / inner / tile;
    return std::max<std::int64_t>(fast() ? 4 : 1, fit) * tile;
  }
  std::int64_t column_blocks(std::int64_t n, int threads) const {
    // A packed block of 1 MB, or of 2 MB if every further block packs the left factor again.
    const std::int64_t most = std::max<std::int64_t>(
        1, (std::int64_t{3} << (packs_left ? 18 : 17)) / inner / panel_columns);
    const std::int64_t panels = parts(n, panel_columns);
    const std::int64_t wanted = packs_left ? 1 : std::min<std::int64_t>(panels, threads);
    const std::int64_t count = std::max({std::int64_t{1}, parts(panels, most), wanted});
    if (!fast() || packs_left || count < threads) return count;
    return std::min(panels, parts(count, threads) * threads);
  }
  std::int64_t section_count(std::int64_t m, int threads) const {
    const std::int64_t least = fast() && !packs_left ? 768 : 192;  // rows that pay for packing
    if (threads == 1) return 1;
    const std::int64_t blocks = std::max<std::int64_t>(1, columns.count());
    const std::int64_t wanted = parts(4 * std::int64_t{threads}, blocks);
    // Few columns: every thread gets rows all the same.
    const std::int64_t each = parts(std::int64_t{threads}, blocks);
    const std::int64_t most = std::max({std::int64_t{1}, m / least, std::min(each, m / 192)});
    return std::clamp<std::int64_t>(wanted, 1, most);
  }
};

/// The activation of rows and columns that are still in the core's cache.
void activate(const NarrowProduct& p, std::int64_t row, std::int64_t rows, std::int64_t column,
              std::int64_t columns) {
  for (std::int64_t r = row; r < row + rows; ++r) {
    Bf16* value = p.narrow.row(r) + column;
    if (p.gelu.data != nullptr) gelu_row(columns, p.gelu.row(r) + column, value);
    if (p.gelu_input.data != nullptr) {
      gelu_backward_row(columns, value, value, p.gelu_input.row(r) + column);
    }
  }
}

/// Where a task of rows [row, …) and columns [column, …) stores its sums over [from, to) of k.
TileResult result_of(const NarrowProduct& p, const Cut& cut, std::int64_t row, std::int64_t column,
                     std::int64_t from, std::int64_t to, float* sums) {
  TileResult result;
  const bool ends = to == cut.k;
  if (p.wide.data != nullptr) {
    result.wide = p.wide.row(row) + column;
    result.stride = p.wide.stride;
    result.accumulate = p.accumulate || from > 0;
  } else if (ends) {
    result.narrow = p.narrow.row(row) + column;
    result.stride = p.narrow.stride;
    result.accumulate = p.accumulate;
    result.before = from > 0 ? sums : nullptr;
    result.before_stride = cut.columns.most();
  } else {
    result.wide = sums;
    result.stride = cut.columns.most();
    result.accumulate = from > 0;
  }
  if (ends && p.bias != nullptr) result.bias = p.bias + column;
  return result;
}

/// The same, `rows` rows further down.
TileResult lower(TileResult result, std::int64_t rows) {
  if (result.wide != nullptr) result.wide += rows * result.stride;
  if (result.narrow != nullptr) result.narrow += rows * result.stride;
  if (result.before != nullptr) result.before += rows * result.before_stride;
  return result;
}

void run_task(const NarrowProduct& p, const Cut& cut, std::int64_t task, std::byte* scratch) {
  const Bf16Tiles& tiles = bf16_tiles();
  const TileScope scope(tiles);
  auto* words = reinterpret_cast<std::uint32_t*>(scratch);
  std::uint32_t* left = words + cut.words();
  auto* sums = reinterpret_cast<float*>(left + cut.left_words());
  // Neighboring tasks share a block of columns.
  const std::int64_t block = task / cut.sections.count(), section = task % cut.sections.count();
  const std::int64_t column = cut.columns.begin(block), n = cut.columns.end(block) - column;
  const std::int64_t first = cut.sections.begin(section), last = cut.sections.end(section);
  for (std::int64_t from = 0; from == 0 || from < cut.k; from += cut.inner) {
    const std::int64_t to = std::min(cut.k, from + cut.inner), k = to - from;
    pack_right(p, from, k, column, n, words);
    const TileResult result = result_of(p, cut, first, column, from, to, sums);
    for (std::int64_t row = first; row < last; row += cut.rows) {
      const std::int64_t m = std::min(cut.rows, last - row);
      const TileResult part = lower(result, row - first);
      if (p.transpose_left) {
        tiles.pack(k, m, false, p.left.row(from) + row, p.left.stride, left);
        PrefetchQueue ahead;
        if (row + m < last) {
          ahead.add(p.left.row(from) + row + m, p.left.stride, k,
                    std::min(cut.rows, last - row - m));
        }
        tiles.multiply_packed(m, n, k, left, words, part, &ahead);
      } else {
        tiles.multiply(m, n, k, p.left.row(row) + from, p.left.stride, words, part);
      }
      if (to == cut.k && p.narrow.data != nullptr) activate(p, row, m, column, n);
    }
  }
}

/// How products that may run at once are divided. It depends on shapes and threads alone.
struct Division {
  int threads;                 // of all; one for products too small to divide
  std::vector<Cut> cuts;       // by shape that is not empty
  std::int64_t count = 0;      // of products that are not empty
  std::size_t own = 0;         // bytes of scratch of a thread
  std::size_t bias_bytes = 0;  // of a product's rounded bias

  Division(std::span<const ProductShape> products, bool transposed, bool wide, int most,
           std::int64_t copies = 1)
      : threads(most) {
    double work = 0;  // may exceed 2^63
    for (const ProductShape& p : products) {
      if (p.m == 0 || p.n == 0) continue;
      work += static_cast<double>(p.m * p.n) *
              static_cast<double>(std::max<std::int64_t>(p.k, 1) * copies);
      count += copies;
    }
    if (work < (1 << 18)) threads = 1;
    for (const ProductShape& p : products) {
      if (p.m == 0 || p.n == 0) continue;
      // Several tasks for each thread, so that unequal ones do not keep the others waiting.
      const auto each =
          static_cast<int>(count <= 1 ? threads : parts(2 * std::int64_t{threads}, count));
      cuts.emplace_back(p.m, p.n, p.k, transposed, each);
      own = std::max(own, cuts.back().bytes_of_thread(wide));
      bias_bytes = std::max(bias_bytes, rounded_vector_bytes(p.n));
    }
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(threads) * own + static_cast<std::size_t>(count) * bias_bytes;
  }
};

}  // namespace

std::size_t cpu_product_workspace(std::span<const ProductShape> products, bool transposed,
                                  bool wide, int threads, std::int64_t copies) {
  return Division(products, transposed, wide, threads, copies).bytes();
}

void CpuOps::narrow_matmuls(std::span<const Matmul> products) {
  std::vector<ProductShape> shapes;
  for (const Matmul& p : products) {
    TRIREME_ASSERT(p.options.transpose_a == products.front().options.transpose_a &&
                       is_wide(p) == is_wide(products.front()),
                   "products of different forms at once");
    shapes.push_back(product_shape(p.c, p.a, p.b, p.options));
  }
  const Division division(shapes, products.front().options.transpose_a, is_wide(products.front()),
                          threads_);
  auto* work = scratch<std::byte>(division.bytes());
  struct Task {
    const NarrowProduct* product;
    const Cut* cut;
    std::int64_t index;
  };
  std::vector<NarrowProduct> all;
  all.reserve(division.cuts.size());
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < products.size(); ++i) {
    if (shapes[i].m == 0 || shapes[i].n == 0) continue;
    const Cut& cut = division.cuts[all.size()];
    all.push_back(product_of(products[i], shapes[i].n, reinterpret_cast<Bf16*>(work)));
    work += division.bias_bytes;
    for (std::int64_t task = 0; task < cut.tasks(); ++task) {
      tasks.push_back({&all.back(), &cut, task});
    }
  }
  // The largest first.
  const auto elements = [](const Task& task) {
    return task.cut->columns.most() * task.cut->sections.most() * task.cut->k;
  };
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const Task& a, const Task& b) { return elements(a) > elements(b); });
  parallel_tasks(division.threads, std::ssize(tasks), [&](std::int64_t i, int thread) {
    const Task& task = tasks[static_cast<std::size_t>(i)];
    run_task(*task.product, *task.cut, task.index,
             work + static_cast<std::size_t>(thread) * division.own);
  });
}

}  // namespace trireme::ops
