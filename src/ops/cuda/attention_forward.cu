// Attention, forward: one block of threads per 64 queries of a head, 16 per warp. It iterates over
// tiles of keys with a running maximum and sum of each query (Dao et al., 2022;
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#include "attention_tiles.cuh"

namespace trireme::ops {
namespace {

constexpr int forward_threads = 128;

/// Running state of a lane's two rows: [0] row g, [1] row g + 8. Scores are base-2 logarithms.
struct Running {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

/// Hidden scores become −∞.
template <int Tiles>
__device__ inline void mask_scores(float (&scores)[Tiles][4], const Attention& p,
                                   const Places& keys, std::int64_t key,
                                   const std::int32_t* position, const std::int32_t* document) {
#pragma unroll
  for (int j = 0; j < Tiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = 8 * j + lane_of_thread() % 4 * 2 + e % 2;
      const bool visible = key + column < p.keys &&
                           (!p.causal || keys.positions[column] <= position[e / 2]) &&
                           keys.documents[column] == document[e / 2];
      if (!visible) scores[j][e] = -INFINITY;
    }
  }
}

/// scores ← exp(scores − maximum); updates the maximum and rescales earlier sums.
template <int Tiles, int Columns>
__device__ inline void exponentiate(float (&scores)[Tiles][4], Running& running,
                                    float (&out)[Columns][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float maximum = running.maximum[half];
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      maximum = fmaxf(maximum, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    }
    maximum = fmaxf(maximum, from_lane_xor(maximum, 1));
    maximum = fmaxf(maximum, from_lane_xor(maximum, 2));
    const float base = maximum == -INFINITY ? 0.0F : maximum;  // −∞ − −∞ would be NaN
    const float factor = exp2f(running.maximum[half] - base);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        scores[j][e] = exp2f(scores[j][e] - base);
        sum += scores[j][e];
      }
    }
    running.maximum[half] = maximum;
    running.sum[half] = fmaf(running.sum[half], factor, sum);
#pragma unroll
    for (int j = 0; j < Columns; ++j) {
      out[j][2 * half] *= factor;
      out[j][2 * half + 1] *= factor;
    }
  }
}

template <int Tiles>
__device__ inline void drop(float (&weights)[Tiles][4], const Attention& p, std::int64_t b,
                            std::int64_t h, std::int64_t query, std::int64_t key) {
  const std::uint64_t low = dropout_row(p, b, h, query), high = dropout_row(p, b, h, query + 8);
  const std::int64_t first = key + lane_of_thread() % 4 * 2;
  const std::uint32_t bits = kept<Tiles>(p.keep, [&](int j, int e) {
    return (e < 2 ? low : high) + static_cast<std::uint64_t>(first + 8 * j + e % 2);
  });
#pragma unroll
  for (int j = 0; j < Tiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      weights[j][e] *= bits >> (4 * j + e) & 1U ? p.keep.factor : 0.0F;
    }
  }
}

__device__ inline void finish_rows(const Attention& p, const Running& running, std::int64_t b,
                                   std::int64_t h, std::int64_t query, float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = running.sum[half];
    sum += from_lane_xor(sum, 1);
    sum += from_lane_xor(sum, 2);
    factor[half] = sum == 0.0F ? 0.0F : 1.0F / sum;
    const std::int64_t i = query + 8 * half;
    if (i < p.queries && lane_of_thread() % 4 == 0) {
      p.lse[(b * p.heads + h) * p.queries + i] =
          sum == 0.0F ? -INFINITY : (running.maximum[half] + log2f(sum)) * log_of_2;
    }
  }
}

template <class T, int D>
__global__ void __launch_bounds__(forward_threads)
    attention_forward_kernel(Attention p, Extents extents) {
  constexpr int rows = tile_rows(D), step = row_step_of<T, D>();
  T* q_tile = reinterpret_cast<T*>(dynamic_shared());
  T* k_tile = q_tile + own_rows * step;
  T* v_tile = k_tile + rows * step;
  auto* places = reinterpret_cast<std::int32_t*>(v_tile + rows * step);
  const Places key_places{places, places + rows};
  float* stash = reinterpret_cast<float*>(places + 2 * rows) +
                 static_cast<int>(threadIdx.x) / 32 * 16 * stash_step<rows / 8>;

  // Under a causal mask late blocks have most work: they start first, for balance.
  const std::int64_t blocks = ceil_div(p.queries, own_rows);
  const std::int64_t block = blocks - 1 - blockIdx.x % blocks, h = blockIdx.x / blocks % p.heads;
  const std::int64_t b = blockIdx.x / blocks / p.heads, first = block * own_rows;
  const int size = static_cast<int>(p.size);
  const Head<const T> q(p.q, b, h), k(p.k, b, p.group_of(h)), v(p.v, b, p.group_of(h));
  const Extent own = extent_of(extents.queries, b, block, own_rows, p.queries);

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t query = first + 16 * warp + lane_of_thread() / 4;
  std::int32_t position[2], document[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t i = query + 8 * half < p.queries ? query + 8 * half : p.queries - 1;
    position[half] = value_at(p.query_positions, b * p.queries + i, static_cast<std::int32_t>(i));
    document[half] = value_at(p.query_documents, b * p.queries + i, 0);
  }
  load_tile<T, D, own_rows>(q_tile, q.data + first * q.stride, q.stride, p.queries - first, size,
                            q.aligned);
  float out[D / 8][4] = {};
  Running running;
  for (std::int64_t key = 0; key < p.keys; key += rows) {
    const Seen visible = seen(own, extent_of(extents.keys, b, key / rows, rows, p.keys), p.causal);
    if (visible == Seen::none) continue;
    __syncthreads();  // before the tile is overwritten
    load_tile<T, D, rows>(k_tile, k.data + key * k.stride, k.stride, p.keys - key, size, k.aligned);
    load_tile<T, D, rows>(v_tile, v.data + key * v.stride, v.stride, p.keys - key, size, v.aligned);
    key_places.load(p.key_positions, p.key_documents, b, key, rows, p.keys);
    __syncthreads();
    float scores[rows / 8][4] = {};
    multiply_rows<T, D>(scores, q_tile + 16 * warp * step, k_tile);
#pragma unroll
    for (int j = 0; j < rows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[j][e] *= p.scale * log2_of_e;
    }
    if (visible != Seen::all || p.keys - key < rows) {
      mask_scores(scores, p, key_places, key, position, document);
    }
    exponentiate(scores, running, out);
    if (p.samples != nullptr) drop(scores, p, b, h, query, key);
    multiply_columns<T, D>(out, scores, v_tile, stash);
  }
  float factor[2];
  finish_rows(p, running, b, h, query, factor);
  const Head<T> to(p.out, b, h);
  store_rows(to.data, to.stride, out, factor, query, p.queries, 0, size, to.pairs);
}

/// One warp per block of tokens.
__global__ void extents_kernel(Extent* extents, const std::int32_t* positions,
                               const std::int32_t* documents, std::int64_t tokens, int rows) {
  const std::int64_t blocks = ceil_div(tokens, rows);
  const std::int64_t b = blockIdx.x / blocks, block = blockIdx.x % blocks;
  constexpr std::int32_t least = -0x7fffffff - 1, most = 0x7fffffff;
  std::int32_t low[2] = {most, most}, high[2] = {least, least};
  for (std::int64_t i = block * rows + threadIdx.x; i < (block + 1) * rows && i < tokens; i += 32) {
    const std::int32_t value[2] = {
        value_at(positions, b * tokens + i, static_cast<std::int32_t>(i)),
        value_at(documents, b * tokens + i, 0)};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      low[j] = value[j] < low[j] ? value[j] : low[j];
      high[j] = value[j] > high[j] ? value[j] : high[j];
    }
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::int32_t other_low = from_lane_xor(low[j], mask);
      const std::int32_t other_high = from_lane_xor(high[j], mask);
      low[j] = other_low < low[j] ? other_low : low[j];
      high[j] = other_high > high[j] ? other_high : high[j];
    }
  }
  if (threadIdx.x == 0) extents[blockIdx.x] = Extent{low[0], high[0], low[1], high[1]};
}

bool has_places(const Attention& call) {
  return call.query_positions != nullptr || call.query_documents != nullptr;
}

}  // namespace

std::size_t extents_bytes(const Attention& call, int query_rows, int key_rows) {
  if (!has_places(call)) return 0;
  return static_cast<std::size_t>(
             call.batch * (ceil_div(call.queries, query_rows) + ceil_div(call.keys, key_rows))) *
         sizeof(Extent);
}

Extents find_extents(const Attention& call, int query_rows, int key_rows, void* memory,
                     CUstream_st* stream) {
  if (!has_places(call)) return {nullptr, nullptr};
  const std::int64_t query_blocks = call.batch * ceil_div(call.queries, query_rows);
  const std::int64_t key_blocks = call.batch * ceil_div(call.keys, key_rows);
  const Extents extents{static_cast<Extent*>(memory), static_cast<Extent*>(memory) + query_blocks};
  launch("attention_extents", extents_kernel, dim3(static_cast<unsigned>(query_blocks)), dim3(32),
         0, stream, extents.queries, call.query_positions, call.query_documents, call.queries,
         query_rows);
  if (key_blocks == 0) return extents;
  launch("attention_extents", extents_kernel, dim3(static_cast<unsigned>(key_blocks)), dim3(32), 0,
         stream, extents.keys, call.key_positions, call.key_documents, call.keys, key_rows);
  return extents;
}

std::size_t attention_workspace(const Attention& call) {
  return extents_bytes(call, own_rows, tile_rows(padded_head(call.size)));
}

void attention_forward(const Attention& call, void* workspace, CUstream_st* stream) {
  const std::int64_t blocks = call.batch * call.heads * ceil_div(call.queries, own_rows);
  if (blocks == 0) return;
  with_head(call, [&]<class T, class Size>(T, Size) {
    constexpr int padded = Size::value, rows = tile_rows(padded);
    const Extents extents = find_extents(call, own_rows, rows, workspace, stream);
    const std::size_t shared =
        static_cast<std::size_t>((own_rows + 2 * rows) * row_step_of<T, padded>()) * sizeof(T) +
        2 * rows * sizeof(std::int32_t) + stash_bytes<T, rows / 8, forward_threads / 32>();
    launch("attention_forward", attention_forward_kernel<T, padded>,
           dim3(static_cast<unsigned>(blocks)), dim3(forward_threads), shared, stream, call,
           extents);
  });
}

}  // namespace trireme::ops
