// Embedding, rotary positions and dropout.
#include "elements.cuh"
#include "philox.cuh"

namespace trireme::ops {
namespace {

/// Row of a tile for an id, −1 if another tile has it. An id outside the table is an error.
struct Tile {
  std::int64_t first, rows, all;
  __device__ std::int64_t row(std::int32_t id) const {
    if (id < 0 || id >= all) fail("token id where the table has so many rows", id, all);
    const std::int64_t r = id - first;
    return r >= 0 && r < rows ? r : -1;
  }
};

template <class T>
struct Embed {
  View<T> y, table;
  const std::int32_t* ids;
  Tile tile;
  LookupMode mode;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t row = tile.row(ids[r]);
    float v[pack] = {}, other[pack] = {};
    if (row < 0) {
      if (mode == LookupMode::write) y.store(v, r, c, count);
      return;
    }
    table.load(v, row, c, count);
    if (mode == LookupMode::add) y.load(other, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) v[i] = other[i] + v[i];  // adding +0 makes −0 a +0
    y.store(v, r, c, count);
  }
};

__global__ void embedding_keys_kernel(std::uint32_t* keys, std::int32_t* values,
                                      const std::int32_t* ids, std::int64_t count, Tile tile) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = tile.row(ids[i]);
  keys[i] = static_cast<std::uint32_t>(row < 0 ? tile.rows : row);
  values[i] = static_cast<std::int32_t>(i);
}

constexpr int segment_threads = 128;
constexpr int segment_ahead = 4;  // rows loaded before the first is added

/// The block at the first of equal sorted keys adds all gradients of that row, in order.
template <class T>
__global__ void embedding_segments_kernel(View<float> dtable, View<T> dy, const std::uint32_t* keys,
                                          const std::int32_t* rows, std::int64_t count,
                                          std::int64_t columns, std::uint32_t table_rows) {
  std::int64_t i = blockIdx.x;
  const std::uint32_t key = keys[i];
  if (key >= table_rows || (i > 0 && keys[i - 1] == key)) return;
  const std::int64_t c =
      (static_cast<std::int64_t>(blockIdx.y) * segment_threads + threadIdx.x) * pack;
  if (c >= columns) return;
  const int width = columns - c < pack ? static_cast<int>(columns - c) : pack;
  float sum[pack], v[segment_ahead][pack];
  dtable.load(sum, key, c, width);
  for (bool more = true; more; i += segment_ahead) {
#pragma unroll
    for (int j = 0; j < segment_ahead; ++j) {
      more = more && i + j < count && keys[i + j] == key;
      if (more) {
        dy.load(v[j], rows[i + j], c, width);
      } else {
#pragma unroll
        for (int e = 0; e < pack; ++e) v[j][e] = -0.0F;  // neutral
      }
    }
#pragma unroll
    for (int j = 0; j < segment_ahead; ++j) {
#pragma unroll
      for (int e = 0; e < pack; ++e) sum[e] += v[j][e];
    }
  }
  dtable.store(sum, key, c, width);
}

constexpr std::int64_t heads_at_once = 4;

/// A row is (row of x, group of heads); columns are pairs.
template <class T>
struct Rotate {
  T* x;
  RotaryShape shape;
  std::uint32_t groups;
  const std::int32_t* positions;
  const float* frequencies;
  float sign;
  bool low_aligned, high_aligned;
  __device__ void operator()(std::int64_t row, std::int64_t c, int count) const {
    const auto index = static_cast<std::uint32_t>(row);  // 64-bit division is slow
    const std::int64_t r = index / groups, first = index % groups * heads_at_once;
    const std::int64_t last =
        first + heads_at_once < shape.heads ? first + heads_at_once : shape.heads;
    T* from = x + r * shape.stride + first * shape.head_stride + c;
    float cosine[pack], sine[pack];
    const auto position = static_cast<double>(positions[r]);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      // fp64: fp32 would be off by several thousandths at position 100,000.
      const double turns = position * static_cast<double>(i < count ? frequencies[c + i] : 0.0F) *
                           0.159154943091895335769;
      sincospif(2.0F * static_cast<float>(turns - rint(turns)), &sine[i], &cosine[i]);
      sine[i] *= sign;
    }
    const auto turn = [&](float(&a)[pack], float(&b)[pack]) {
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        const float turned = fmaf(-b[i], sine[i], rounded_product(a[i], cosine[i]));
        b[i] = fmaf(a[i], sine[i], rounded_product(b[i], cosine[i]));
        a[i] = turned;
      }
    };
    float a[pack], b[pack];
    if (low_aligned && high_aligned && count == pack && last - first == heads_at_once) {
      PackWords<T> low[heads_at_once], high[heads_at_once];
#pragma unroll
      for (int h = 0; h < heads_at_once; ++h) {
        low[h] = words_at(from + h * shape.head_stride);
        high[h] = words_at(from + h * shape.head_stride + shape.pairs);
      }
#pragma unroll
      for (int h = 0; h < heads_at_once; ++h) {
        unpack(a, low[h]);
        unpack(b, high[h]);
        turn(a, b);
        repack(words_at(from + h * shape.head_stride), a);
        repack(words_at(from + h * shape.head_stride + shape.pairs), b);
      }
      return;
    }
#pragma unroll 1
    for (std::int64_t h = first; h < last; ++h, from += shape.head_stride) {
      load(a, from, count, low_aligned);
      load(b, from + shape.pairs, count, high_aligned);
      turn(a, b);
      store(from, a, count, low_aligned);
      store(from + shape.pairs, b, count, high_aligned);
    }
  }
};

template <class T>
struct Drop {
  View<T> y, x;
  const std::int64_t* rows;
  std::int64_t columns;
  Keep keep;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[pack], factor[pack];
    x.load(v, r, c, count);
    keep_factors(factor, keep, static_cast<std::uint64_t>(rows[r] * columns + c));
#pragma unroll
    for (int i = 0; i < pack; ++i) v[i] *= factor[i];
    y.store(v, r, c, count);
  }
};

/// Parts of embedding_backward's workspace, each aligned to 256 bytes.
struct SortSpace {
  std::int64_t array, sort;
  int bits;
  SortSpace(std::int64_t rows, std::int64_t table_rows)
      : array(ceil_div(rows * 4, 256) * 256), sort(0), bits(key_bits(table_rows)) {
    sort = static_cast<std::int64_t>(sort_workspace(rows, bits));
  }
};

}  // namespace

void embedding(const Matrix& y, const std::int32_t* ids, const Matrix& table, std::int64_t first,
               std::int64_t all, LookupMode mode, CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_packs("embedding", y.rows, y.columns, stream,
              Embed<T>{view<T>(y), view<T>(table), ids, Tile{first, table.rows, all}, mode});
  });
}

std::size_t embedding_backward_workspace(std::int64_t rows, std::int64_t table_rows) {
  const SortSpace space(rows, table_rows);
  return static_cast<std::size_t>(4 * space.array + space.sort);
}

/// Rows are sorted by id, stably; then one block per table row and 1,024 columns adds its gradients
/// in order. A token that is a twentieth of 16,384 rows is a chain of 800 additions, about 0.1 ms.
void embedding_backward(const Matrix& dtable, const std::int32_t* ids, const Matrix& dy,
                        std::int64_t first, std::int64_t all, void* workspace,
                        CUstream_st* stream) {
  const std::int64_t rows = dy.rows;
  if (rows == 0 || dtable.rows == 0 || dy.columns == 0) return;
  const SortSpace space(rows, dtable.rows);
  auto* memory = static_cast<char*>(workspace);
  auto* keys = reinterpret_cast<std::uint32_t*>(memory);
  auto* sorted_keys = reinterpret_cast<std::uint32_t*>(memory + space.array);
  auto* values = reinterpret_cast<std::int32_t*>(memory + 2 * space.array);
  auto* sorted_values = reinterpret_cast<std::int32_t*>(memory + 3 * space.array);
  launch("embedding_keys", embedding_keys_kernel, dim3(static_cast<unsigned>(ceil_div(rows, 256))),
         dim3(256), 0, stream, keys, values, ids, rows, Tile{first, dtable.rows, all});
  sort_pairs(sorted_keys, keys, sorted_values, values, rows, space.bits, memory + 4 * space.array,
             static_cast<std::size_t>(space.sort), stream);
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>(ceil_div(dy.columns, segment_threads * pack)));
  with_type(dy.type, [&]<class T>(T) {
    launch("embedding_segments", embedding_segments_kernel<T>, grid, dim3(segment_threads), 0,
           stream, view<float>(dtable), view<T>(dy), sorted_keys, sorted_values, rows, dy.columns,
           static_cast<std::uint32_t>(dtable.rows));
  });
}

void rotary(void* x, Element type, const RotaryShape& shape, const std::int32_t* positions,
            const float* frequencies, bool inverse, CUstream_st* stream) {
  with_type(type, [&]<class T>(T) {
    const auto size = static_cast<std::int64_t>(sizeof(T));
    const bool low = is_aligned(x, (shape.stride | shape.head_stride) * size);
    const std::int64_t groups = ceil_div(shape.heads, heads_at_once);
    for_packs(
        "rotary", shape.rows * groups, shape.pairs, stream,
        Rotate<T>{static_cast<T*>(x), shape, static_cast<std::uint32_t>(groups), positions,
                  frequencies, inverse ? -1.0F : 1.0F, low, low && shape.pairs * size % 16 == 0});
  });
}

void dropout(const Matrix& y, const Matrix& x, const std::int64_t* rows, const Keep& keep,
             CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_packs("dropout", y.rows, y.columns, stream,
              Drop<T>{view<T>(y), view<T>(x), rows, y.columns, keep});
  });
}

}  // namespace trireme::ops
