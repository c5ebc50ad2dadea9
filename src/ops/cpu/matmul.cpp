// Matrix products of fp32 by oneDNN.
#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <vector>

#include <dnnl.h>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace trireme::ops {

namespace {

// A thread multiplies at least so many rows of the result in fast mode.
constexpr std::int64_t enough_rows = 96;

/// How reproducible mode divides a result [m, n] among threads: each group of rows alike. It
/// depends on the shape alone: the bits of oneDNN's sums may change with the shape of a product.
/// Counts of a group are powers of two.
class Pieces {
 public:
  // Smaller pieces cost more packing than a second thread saves.
  static constexpr std::int64_t least_rows = 128, least_columns = 192, enough = 16;

  /// m: a multiple of `group_rows`, if that is not 0.
  Pieces(std::int64_t m, std::int64_t n, std::int64_t group_rows)
      : m_(group_rows == 0 ? m : group_rows),
        n_(n),
        groups_(m_ == 0 ? 0 : m / m_),
        of_rows_(pieces_of(m_, least_rows)) {
    TRIREME_ASSERT(groups_ * m_ == m, "{} rows in groups of {}", m, m_);
    if (of_rows_ < enough) {
      of_columns_ = std::min(enough / of_rows_, pieces_of(n, least_columns));
    }
  }
  std::int64_t count() const { return groups_ * of_rows_ * of_columns_; }
  /// Elements of the largest.
  std::int64_t most() const {
    return (m_ + of_rows_ - 1) / of_rows_ * ((n_ + of_columns_ - 1) / of_columns_);
  }
  Range rows(std::int64_t i) const {
    const std::int64_t row = i / of_columns_, before = row / of_rows_ * m_;
    const Range own = part(m_, row % of_rows_, of_rows_);
    return {before + own.begin, before + own.end};
  }
  Range columns(std::int64_t i) const { return part(n_, i % of_columns_, of_columns_); }

 private:
  static std::int64_t pieces_of(std::int64_t size, std::int64_t least) {
    return static_cast<std::int64_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, size / least))));
  }
  static Range part(std::int64_t all, std::int64_t i, std::int64_t count) {
    return {all * i / count, all * (i + 1) / count};
  }

  std::int64_t m_, n_;  // of a group
  std::int64_t groups_, of_rows_, of_columns_ = 1;
};

/// c [m, n] (+)= op(a)·op(b), on one thread in a parallel region, else on all of OpenMP's.
void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate,
           float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  // A view of one row may have any stride; oneDNN requires at least the width.
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a,
                 std::max(lda, transpose_a ? m : k), b, std::max(ldb, transpose_b ? k : n),
                 accumulate ? 1.0F : 0.0F, c, std::max(ldc, n));
  if (status == dnnl_out_of_memory) {
    throw Error(
        "memory: oneDNN has too little for a product of {} x {} x {}; use a smaller model or "
        "batch",
        m, n, k);
  }
  TRIREME_ASSERT(status == dnnl_success, "dnnl_sgemm of {} x {} x {} returned {}", m, n, k,
                 static_cast<int>(status));
}

/// One product and what is applied to its result.
class FloatProduct {
 public:
  explicit FloatProduct(const Matmul& p)
      : transpose_a_(p.options.transpose_a),
        transpose_b_(p.options.transpose_b),
        accumulate_(p.options.accumulate),
        group_rows_(p.options.group_rows),
        gelu_(p.options.before_gelu),
        dgelu_(p.options.gelu_input) {
    const auto shape = product_shape(p.c, p.a, p.b, p.options);
    m = shape.m, n = shape.n, k_ = shape.k;
    out_ = rows_of(gelu_ ? p.options.before_gelu : p.c);
    left_ = rows_of(p.a), right_ = rows_of(p.b);
    bias_ = flat_or_null(p.options.bias, n);
    if (gelu_) activated_ = rows_of(p.c);
    if (dgelu_) slopes_ = rows_of(p.options.gelu_input);
    streamed_ = gelu_ && beyond_caches(m * n * std::int64_t{sizeof(float)});
  }

  std::int64_t m, n;

  Pieces pieces() const { return {m, n, group_rows_}; }
  bool activates() const { return gelu_ || dgelu_; }
  /// Rows and columns of the result.
  Rows<float> block(Range row, Range column) const {
    return {out_.row(row.begin) + column.begin, row.size(), column.size(), out_.stride};
  }

  /// Rows and columns of the result into `to`.
  void multiply(Range row, Range column, const Rows<float>& to) const {
    // The GELU pass adds the bias; else filled rows are, as fast as oneDNN's product with bias.
    const float* filling = gelu_ ? nullptr : bias_;
    const bool fill = filling != nullptr || (k_ == 0 && !accumulate_);
    const auto bytes = static_cast<std::size_t>(column.size()) * sizeof(float);
    for (std::int64_t r = 0; fill && r < row.size(); ++r) {
      if (filling != nullptr) {
        std::memcpy(to.row(r), filling + column.begin, bytes);
      } else {
        std::memset(to.row(r), 0, bytes);
      }
    }
    if (k_ > 0) {
      sgemm(row.size(), column.size(), k_, transpose_a_, transpose_b_,
            left_.data + row.begin * (transpose_a_ ? 1 : left_.stride), left_.stride,
            right_.data + column.begin * (transpose_b_ ? right_.stride : 1), right_.stride,
            fill || accumulate_, to.data, to.stride);
    }
  }

  void activate(Range row, Range column) const {
    const std::int64_t first = column.begin;
    for (std::int64_t r = row.begin; r < row.end; ++r) {
      float* to = out_.row(r) + first;
      if (gelu_) {
        biased_gelu_row(column.size(), activated_.row(r) + first, to,
                        bias_ == nullptr ? nullptr : bias_ + first, streamed_);
      }
      if (dgelu_) gelu_backward_row(column.size(), to, to, slopes_.row(r) + first);
    }
    if (gelu_) end_stream(streamed_);
  }

  /// Both, on the calling thread.
  void compute(Range row, Range column) const {
    const ThreadScope scope(1);
    multiply(row, column, block(row, column));
    if (activates()) activate(row, column);
  }

 private:
  std::int64_t k_;
  bool transpose_a_, transpose_b_, accumulate_;
  std::int64_t group_rows_;
  bool gelu_, dgelu_, streamed_ = false;
  Rows<float> out_, left_, right_, activated_ = {}, slopes_ = {};
  const float* bias_;
};

/// Elements of scratch for a piece of a sum of some terms; 0 for one term, and for pieces too large
/// for caches, whose sums of some terms are in the slots.
std::int64_t scratch_of_piece(const Pieces& pieces, std::int64_t terms) {
  constexpr std::int64_t most = 1 << 16;
  return terms > 1 && pieces.most() <= most ? pieces.most() : 0;
}

}  // namespace

std::size_t cpu_float_sum_workspace(std::int64_t m, std::int64_t n, std::int64_t group_rows,
                                    std::int64_t terms, int threads) {
  if (m == 0 || n == 0) return 0;
  const int slots = std::countr_zero(static_cast<std::uint64_t>(terms));
  return static_cast<std::size_t>(threads * slots * scratch_of_piece({m, n, group_rows}, terms)) *
         sizeof(float);
}

void CpuOps::matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                    const MatmulOptions& options) {
  const Matmul product{c, a, b, options};
  independent_matmuls({&product, 1});
}

void CpuOps::independent_matmuls(std::span<const Matmul> products) {
  if (products.empty()) return;
  std::vector<RowSums> sums;
  for (const Matmul& p : products) {
    TRIREME_ASSERT(p.a.type() == products.front().a.type(), "products of {} and {} factors",
                   name_of(p.a.type()), name_of(products.front().a.type()));
    product_shape(p.c, p.a, p.b, p.options);
    if (!p.options.row_sum) continue;
    TRIREME_ASSERT(p.options.transpose_a, "row sums of a factor that is not transposed");
    sums.push_back({.dgain = p.options.row_sum, .dy = p.a});
  }
  independent_row_sums(sums);
  if (products.front().a.type() == DType::bf16) return narrow_matmuls(products);
  float_matmuls(products);
}

void CpuOps::sum_of_matmuls(const Tensor& sum, std::span<const Tensor> levels,
                            std::span<const Matmul> products) {
  const bool narrow = products.front().a.type() == DType::bf16;
  if (products.size() == 1 || (!narrow && !reproducible_)) {
    return Ops::sum_of_matmuls(sum, levels, products);
  }
  TRIREME_ASSERT(products.size() >> levels.size() <= 1, "{} products and {} levels",
                 products.size(), levels.size());
  if (sum.elements() == 0) return;
  std::vector<Tensor> slots{sum};
  for (const Tensor& level : levels) slots.push_back(level.slice(0, 0, sum.extent(0)));
  std::vector<Matmul> all(products.begin(), products.end());
  sum_pairwise(
      std::ssize(all),
      [&](std::int64_t i, std::int64_t slot) {
        Matmul& p = all[static_cast<std::size_t>(i)];
        TRIREME_ASSERT(p.a.type() == all.front().a.type() && !p.options.transpose_a &&
                           !p.options.accumulate && !p.options.before_gelu &&
                           !p.options.gelu_input && !p.options.row_sum &&
                           p.options.group_rows == all.front().options.group_rows,
                       "product {} of a sum has another form", i);
        p.c = slots[static_cast<std::size_t>(slot)];
        product_shape(p.c, p.a, p.b, p.options);
      },
      [](std::int64_t, std::int64_t) {});
  if (narrow) return sum_narrow_matmuls(sum, all);
  const MatmulSum own{slots, all};
  float_sums({&own, 1});
}

void CpuOps::add_row_sums(std::span<const MatmulSum> sums) {
  std::int64_t most = 0;
  for (const MatmulSum& sum : sums) most = std::max(most, sum.products_of_term());
  for (std::int64_t i = 0; i < most; ++i) {
    std::vector<RowSums> calls;
    for (const MatmulSum& sum : sums) {
      for (std::int64_t term = 0; i < sum.products_of_term() && term < sum.terms(); ++term) {
        const Matmul p = sum.product(term, i, 0);
        if (p.options.row_sum) calls.push_back({.dgain = p.options.row_sum, .dy = p.a});
      }
    }
    if (!calls.empty()) independent_row_sums(calls);
  }
}

void CpuOps::independent_sums(std::span<const MatmulSum> sums) {
  if (sums.empty()) return;
  TRIREME_ASSERT(sums.front().products_of_term() > 0, "a sum without products");
  const bool narrow = sums.front().products.front().a.type() == DType::bf16;
  const auto single = [](const MatmulSum& sum) { return sum.products.size() == 1; };
  const bool apart = narrow ? sums.front().terms() == 1 : !reproducible_;
  if (apart || std::ranges::all_of(sums, single)) return Ops::independent_sums(sums);
  for (const MatmulSum& sum : sums) {
    TRIREME_ASSERT(sum.terms() == sums.front().terms(), "sums of {} and {} terms", sum.terms(),
                   sums.front().terms());
  }
  add_row_sums(sums);
  return narrow ? narrow_sums(sums) : float_sums(sums);
}

void CpuOps::float_sums(std::span<const MatmulSum> sums) {
  struct Sum {
    std::vector<Rows<float>> slots;
    std::vector<FloatProduct> products;
    std::int64_t own;  // scratch of a piece and a slot, or 0
  };
  struct Task {
    const Sum* sum;
    Range rows, columns;
  };
  std::vector<Sum> all(sums.size());
  std::vector<Task> tasks;
  std::int64_t own = 0;  // scratch of a thread
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const MatmulSum& from = sums[s];
    for (const Tensor& slot : from.slots) all[s].slots.push_back(rows_of(slot));
    for (std::int64_t i = 0; i < std::ssize(from.products); ++i) {
      all[s].products.emplace_back(from.product_into(i, 0));
    }
    const FloatProduct& first = all[s].products.front();
    if (first.m == 0 || first.n == 0) continue;
    const Pieces pieces = first.pieces();
    all[s].own = scratch_of_piece(pieces, from.terms());
    own = std::max(own, all[s].own * (std::ssize(from.slots) - 1));
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      tasks.push_back({&all[s], pieces.rows(i), pieces.columns(i)});
    }
  }
  auto* memory = scratch<float>(static_cast<std::size_t>(threads_ * own));
  // A piece's products follow each other while its sums are in a core's cache.
  parallel_tasks(threads_, std::ssize(tasks), [&](std::int64_t task, int thread) {
    const ThreadScope scope(1);
    const auto& [sum, rows, columns] = tasks[static_cast<std::size_t>(task)];
    const auto slot = [&, sum = sum, rows = rows, columns = columns](std::int64_t i) {
      const Rows<float>& whole = sum->slots[static_cast<std::size_t>(i)];
      if (i == 0 || sum->own == 0) {
        return Rows<float>{whole.row(rows.begin) + columns.begin, rows.size(), columns.size(),
                           whole.stride};
      }
      return Rows<float>{memory + thread * own + (i - 1) * sum->own, rows.size(), columns.size(),
                         columns.size()};
    };
    const std::int64_t terms = std::int64_t{1} << (sum->slots.size() - 1);
    const std::int64_t each = std::ssize(sum->products) / terms;
    sum_pairwise(
        terms,
        [&, sum = sum, rows = rows, columns = columns](std::int64_t term, std::int64_t to) {
          for (std::int64_t i = term * each; i < (term + 1) * each; ++i) {
            sum->products[static_cast<std::size_t>(i)].multiply(rows, columns, slot(to));
          }
        },
        [&, rows = rows, columns = columns](std::int64_t to, std::int64_t from) {
          add_block(slot(to), slot(from), {0, rows.size()}, {0, columns.size()});
        });
  });
}

void CpuOps::float_matmuls(std::span<const Matmul> products) {
  const std::vector<FloatProduct> all(products.begin(), products.end());
  if (reproducible_) {
    struct Task {
      const FloatProduct* product;
      Range rows, columns;
    };
    std::vector<Task> tasks;
    for (const FloatProduct& p : all) {
      if (p.m == 0 || p.n == 0) continue;
      const Pieces pieces = p.pieces();
      for (std::int64_t i = 0; i < pieces.count(); ++i) {
        tasks.push_back({&p, pieces.rows(i), pieces.columns(i)});
      }
    }
    std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
      return a.rows.begin * b.product->m < b.rows.begin * a.product->m;
    });
    return parallel_tasks(threads_, std::ssize(tasks), [&](std::int64_t i, int /*thread*/) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      task.product->compute(task.rows, task.columns);
    });
  }
  for (const FloatProduct& p : all) {
    const Range all_columns{0, p.n};
    if (threads_ > 1 && p.m >= enough_rows * threads_) {
      // This is up to 1.2 times as fast as oneDNN's own division.
      parallel_ranges(threads_, p.m, enough_rows, 16, [&](std::int64_t begin, std::int64_t end) {
        p.compute({begin, end}, all_columns);
      });
      continue;
    }
    {
      const ThreadScope scope(threads_);
      p.multiply({0, p.m}, all_columns, p.block({0, p.m}, all_columns));
    }
    if (!p.activates()) continue;
    parallel_rows(threads_, p.m, p.n, [&](std::int64_t begin, std::int64_t end) {
      p.activate({begin, end}, all_columns);
    });
  }
}

}  // namespace trireme::ops
