// Attention, backward, from lse and delta = Σ dout·out of each query (Dao et al., 2022). Two
// kernels recompute the probabilities: one per block of queries for dq, one per block of keys for
// dk and dv. No two blocks add to one element, so every sum has one order.
#include "attention_tiles.cuh"

namespace trireme::ops {
namespace {

/// What the kernels read beside the call.
struct Backward {
  Attention call;
  AttentionGradients to;
  Extents extents;
  const float* delta;  // [B, H, Tq]
};

/// delta: one warp per query.
template <class T>
__global__ void delta_kernel(Attention p, Heads dout, float* delta, std::int64_t count) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (row >= count) return;
  const std::int64_t i = row % p.queries, h = row / p.queries % p.heads;
  const std::int64_t b = row / p.queries / p.heads;
  const Head<const T> x(p.out, b, h), y(dout, b, h);
  float sum = 0;
  for (std::int64_t c = lane_of_thread(); c < p.size; c += 32) {
    sum = fmaf(to_float(x.data[i * x.stride + c]), to_float(y.data[i * y.stride + c]), sum);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += from_lane_xor(sum, mask);
  if (lane_of_thread() == 0) delta[row] = sum;
}

/// Base-2 lse and delta of query i; past the last query, values that give it no weight.
__device__ inline void statistics(const Backward& p, std::int64_t b, std::int64_t h, std::int64_t i,
                                  float& lse, float& delta) {
  const Attention& call = p.call;
  const std::int64_t row = (b * call.heads + h) * call.queries + i;
  lse = i < call.queries ? call.lse[row] * log2_of_e : INFINITY;
  delta = i < call.queries ? p.delta[row] : 0.0F;
}

/// Of a query and a key: the probability that multiplied v, and the scaled score's gradient.
struct Pair {
  float weight, gradient;
};
__device__ inline Pair pair_of(const Attention& p, float score, float dprobability, float lse,
                               float delta, bool visible, float keep) {
  const float probability = visible ? exp2f(score * (p.scale * log2_of_e) - lse) : 0.0F;
  return {probability * keep, probability * p.scale * fmaf(dprobability, keep, -delta)};
}

constexpr int query_threads = 128;

template <class T, int D>
__global__ void __launch_bounds__(query_threads) query_gradient_kernel(Backward p) {
  const Attention& call = p.call;
  constexpr int rows = tile_rows(D), step = row_step_of<T, D>();
  T* q_tile = reinterpret_cast<T*>(dynamic_shared());
  T* dout_tile = q_tile + own_rows * step;
  T* k_tile = dout_tile + own_rows * step;
  T* v_tile = k_tile + rows * step;
  auto* places = reinterpret_cast<std::int32_t*>(v_tile + rows * step);
  const Places key_places{places, places + rows};
  float* stash = reinterpret_cast<float*>(places + 2 * rows) +
                 static_cast<int>(threadIdx.x) / 32 * 16 * stash_step<rows / 8>;

  const std::int64_t blocks = ceil_div(call.queries, own_rows);
  const std::int64_t block = blocks - 1 - blockIdx.x % blocks;
  const std::int64_t h = blockIdx.x / blocks % call.heads, b = blockIdx.x / blocks / call.heads;
  const std::int64_t first = block * own_rows, group = call.group_of(h);
  const int size = static_cast<int>(call.size), warp = static_cast<int>(threadIdx.x) / 32;
  const Head<const T> q(call.q, b, h), dout(p.to.dout, b, h), k(call.k, b, group),
      v(call.v, b, group);
  const Extent own = extent_of(p.extents.queries, b, block, own_rows, call.queries);
  load_tile<T, D, own_rows>(q_tile, q.data + first * q.stride, q.stride, call.queries - first, size,
                            q.aligned);
  load_tile<T, D, own_rows>(dout_tile, dout.data + first * dout.stride, dout.stride,
                            call.queries - first, size, dout.aligned);

  const std::int64_t query = first + 16 * warp + lane_of_thread() / 4;
  std::int32_t position[2], document[2];
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    statistics(p, b, h, query + 8 * half, lse[half], delta[half]);
    const std::int64_t i = query + 8 * half < call.queries ? query + 8 * half : call.queries - 1;
    position[half] =
        value_at(call.query_positions, b * call.queries + i, static_cast<std::int32_t>(i));
    document[half] = value_at(call.query_documents, b * call.queries + i, 0);
  }
  float sums[D / 8][4] = {};
  for (std::int64_t key = 0; key < call.keys; key += rows) {
    const Seen visible =
        seen(own, extent_of(p.extents.keys, b, key / rows, rows, call.keys), call.causal);
    if (visible == Seen::none) continue;
    __syncthreads();  // before the tile is overwritten
    load_tile<T, D, rows>(k_tile, k.data + key * k.stride, k.stride, call.keys - key, size,
                          k.aligned);
    load_tile<T, D, rows>(v_tile, v.data + key * v.stride, v.stride, call.keys - key, size,
                          v.aligned);
    key_places.load(call.key_positions, call.key_documents, b, key, rows, call.keys);
    __syncthreads();
    float scores[rows / 8][4] = {}, products[rows / 8][4] = {};
    multiply_rows<T, D>(scores, q_tile + 16 * warp * step, k_tile);
    multiply_rows<T, D>(products, dout_tile + 16 * warp * step, v_tile);
    const bool whole = visible == Seen::all && call.keys - key >= rows;
    std::uint32_t bits = 0xffffffffU;
    if (call.samples != nullptr) {
      const std::uint64_t low = dropout_row(call, b, h, query);
      const std::uint64_t high = dropout_row(call, b, h, query + 8);
      bits = kept<rows / 8>(call.keep, [&](int j, int e) {
        const std::int64_t at = key + 8 * j + lane_of_thread() % 4 * 2 + e % 2;
        return (e < 2 ? low : high) + static_cast<std::uint64_t>(at);
      });
    }
    const float factor = call.keep.factor;
#pragma unroll
    for (int j = 0; j < rows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 8 * j + lane_of_thread() % 4 * 2 + e % 2, half = e / 2;
        const bool sees =
            whole || (key + column < call.keys &&
                      (!call.causal || key_places.positions[column] <= position[half]) &&
                      key_places.documents[column] == document[half]);
        const float keep = bits >> (4 * j + e) & 1U ? factor : 0.0F;
        scores[j][e] =
            pair_of(call, scores[j][e], products[j][e], lse[half], delta[half], sees, keep)
                .gradient;
      }
    }
    multiply_columns<T, D>(sums, scores, k_tile, stash);
  }
  const float whole[2] = {1.0F, 1.0F};
  const Head<T> to(p.to.dq, b, h);
  store_rows(to.data, to.stride, sums, whole, query, call.queries, 0, size, to.pairs);
}

/// With heads of 256 the sums exceed the registers: two warps share the columns of 16 keys.
constexpr int column_parts(int padded) { return padded == 256 ? 2 : 1; }

template <class T, int D>
__global__ void __launch_bounds__(128 * column_parts(D)) key_gradient_kernel(Backward p) {
  const Attention& call = p.call;
  constexpr int rows = tile_rows(D), step = row_step_of<T, D>(), columns = D / column_parts(D);
  T* k_tile = reinterpret_cast<T*>(dynamic_shared());
  T* v_tile = k_tile + own_rows * step;
  T* q_tile = v_tile + own_rows * step;
  T* dout_tile = q_tile + rows * step;
  auto* lse = reinterpret_cast<float*>(dout_tile + rows * step);
  float* delta = lse + rows;
  auto* places = reinterpret_cast<std::int32_t*>(delta + rows);
  const Places query_places{places, places + rows};
  float* stash = reinterpret_cast<float*>(places + 2 * rows) +
                 static_cast<int>(threadIdx.x) / 32 * 16 * stash_step<rows / 8>;

  const std::int64_t blocks = ceil_div(call.keys, own_rows), block = blockIdx.x % blocks;
  const std::int64_t group = blockIdx.x / blocks % call.groups;
  const std::int64_t b = blockIdx.x / blocks / call.groups, first = block * own_rows;
  const int size = static_cast<int>(call.size), warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int column = static_cast<int>(threadIdx.x) / 128 * columns;
  const Head<const T> k(call.k, b, group), v(call.v, b, group);
  const Extent own = extent_of(p.extents.keys, b, block, own_rows, call.keys);
  load_tile<T, D, own_rows>(k_tile, k.data + first * k.stride, k.stride, call.keys - first, size,
                            k.aligned);
  load_tile<T, D, own_rows>(v_tile, v.data + first * v.stride, v.stride, call.keys - first, size,
                            v.aligned);

  const std::int64_t key = first + 16 * warp + lane_of_thread() / 4;
  std::int32_t position[2], document[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t i = key + 8 * half < call.keys ? key + 8 * half : call.keys - 1;
    position[half] = value_at(call.key_positions, b * call.keys + i, static_cast<std::int32_t>(i));
    document[half] = value_at(call.key_documents, b * call.keys + i, 0);
  }
  float dk[columns / 8][4] = {}, dv[columns / 8][4] = {};
  for (std::int64_t h = call.first_head_of(group); h < call.first_head_of(group + 1); ++h) {
    const Head<const T> q(call.q, b, h), dout(p.to.dout, b, h);
    for (std::int64_t query = 0; query < call.queries; query += rows) {
      const Seen visible =
          seen(extent_of(p.extents.queries, b, query / rows, rows, call.queries), own, call.causal);
      if (visible == Seen::none) continue;
      __syncthreads();  // before the tile is overwritten
      load_tile<T, D, rows>(q_tile, q.data + query * q.stride, q.stride, call.queries - query, size,
                            q.aligned);
      load_tile<T, D, rows>(dout_tile, dout.data + query * dout.stride, dout.stride,
                            call.queries - query, size, dout.aligned);
      query_places.load(call.query_positions, call.query_documents, b, query, rows, call.queries);
      for (int i = threadIdx.x; i < rows; i += static_cast<int>(blockDim.x)) {
        statistics(p, b, h, query + i, lse[i], delta[i]);
      }
      __syncthreads();
      // [16 keys, queries]: the transposes of scores and of dout·vᵀ.
      float scores[rows / 8][4] = {}, products[rows / 8][4] = {};
      multiply_rows<T, D>(scores, k_tile + 16 * warp * step, q_tile);
      multiply_rows<T, D>(products, v_tile + 16 * warp * step, dout_tile);
      const bool whole = visible == Seen::all;
      std::uint32_t bits = 0xffffffffU;
      if (call.samples != nullptr) {
        const std::uint64_t first_row = dropout_row(call, b, h, query);
        bits = kept<rows / 8>(call.keep, [&](int j, int e) {
          const std::int64_t i = 8 * j + lane_of_thread() % 4 * 2 + e % 2;
          return first_row + static_cast<std::uint64_t>(i * call.keys + key + e / 2 * 8);
        });
      }
      const float factor = call.keep.factor;
#pragma unroll
      for (int j = 0; j < rows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = 8 * j + lane_of_thread() % 4 * 2 + e % 2, half = e / 2;
          const bool sees =
              whole || ((!call.causal || position[half] <= query_places.positions[i]) &&
                        document[half] == query_places.documents[i]);
          const float keep = bits >> (4 * j + e) & 1U ? factor : 0.0F;
          const Pair pair =
              pair_of(call, scores[j][e], products[j][e], lse[i], delta[i], sees, keep);
          scores[j][e] = pair.weight;
          products[j][e] = pair.gradient;
        }
      }
      multiply_columns<T, D>(dv, scores, dout_tile + column, stash);
      multiply_columns<T, D>(dk, products, q_tile + column, stash);
    }
  }
  const float whole[2] = {1.0F, 1.0F};
  const Head<T> to_k(p.to.dk, b, group), to_v(p.to.dv, b, group);
  store_rows(to_k.data, to_k.stride, dk, whole, key, call.keys, column, size, to_k.pairs);
  store_rows(to_v.data, to_v.stride, dv, whole, key, call.keys, column, size, to_v.pairs);
}

/// Bytes of delta, and of the extents of the two kernels after it.
std::size_t delta_bytes(const Attention& call) {
  return static_cast<std::size_t>(
      ceil_div(call.batch * call.heads * call.queries * static_cast<std::int64_t>(sizeof(float)),
               256) *
      256);
}

template <class T, int D>
void launch_backward(Backward p, char* extents_memory, CUstream_st* stream) {
  const Attention& call = p.call;
  constexpr int rows = tile_rows(D);
  const std::size_t tiles =
      static_cast<std::size_t>((2 * own_rows + 2 * rows) * row_step_of<T, D>()) * sizeof(T);
  const std::int64_t queries = call.batch * call.heads * ceil_div(call.queries, own_rows);
  const std::int64_t keys = call.batch * call.groups * ceil_div(call.keys, own_rows);
  if (queries > 0) {
    p.extents = find_extents(call, own_rows, rows, extents_memory, stream);
    launch("attention_query_gradient", query_gradient_kernel<T, D>,
           dim3(static_cast<unsigned>(queries)), dim3(query_threads),
           tiles + 8 * rows + stash_bytes<T, rows / 8, query_threads / 32>(), stream, p);
  }
  if (keys > 0) {
    // The first kernel's memory: it ends before these extents are computed.
    p.extents = call.queries > 0 ? find_extents(call, rows, own_rows, extents_memory, stream)
                                 : Extents{nullptr, nullptr};
    launch("attention_key_gradient", key_gradient_kernel<T, D>, dim3(static_cast<unsigned>(keys)),
           dim3(128 * column_parts(D)),
           tiles + 16 * rows + stash_bytes<T, rows / 8, 4 * column_parts(D)>(), stream, p);
  }
}

}  // namespace

std::size_t attention_backward_workspace(const Attention& call) {
  const int rows = tile_rows(padded_head(call.size));
  const std::size_t first = extents_bytes(call, own_rows, rows);
  const std::size_t second = extents_bytes(call, rows, own_rows);
  return delta_bytes(call) + (first > second ? first : second);
}

void attention_backward(const Attention& call, const AttentionGradients& gradients, void* workspace,
                        CUstream_st* stream) {
  auto* delta = static_cast<float*>(workspace);
  const std::int64_t count = call.batch * call.heads * call.queries;
  with_head(call, [&]<class T, class Size>(T, Size) {
    if (count > 0) {
      launch("attention_delta", delta_kernel<T>, dim3(static_cast<unsigned>(ceil_div(count, 4))),
             dim3(128), 0, stream, call, gradients.dout, delta, count);
    }
    launch_backward<T, Size::value>(Backward{call, gradients, {nullptr, nullptr}, delta},
                                    static_cast<char*>(workspace) + delta_bytes(call), stream);
  });
}

}  // namespace trireme::ops
