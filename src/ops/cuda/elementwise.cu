// Fill, copy, conversion, add, scale.
#include "elements.cuh"

namespace trireme::ops {
namespace {

template <class Unit>
__global__ void fill_kernel(Unit* y, std::int64_t count, Unit value) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    y[i] = value;
  }
}

template <class Unit>
void fill_units(void* y, std::int64_t count, Unit value, CUstream_st* stream) {
  const std::int64_t blocks = (count + 255) / 256;
  const dim3 grid(static_cast<unsigned>(blocks < 65536 ? blocks : 65536));
  launch("fill", fill_kernel<Unit>, grid, dim3(256), 0, stream, static_cast<Unit*>(y), count,
         value);
}

/// A word that repeats the low `size` bytes of `bits`.
std::uint64_t repeated(std::uint64_t bits, int size) {
  if (size == 2) bits = (bits & 0xffffU) * 0x0001000100010001U;
  if (size == 4) bits = (bits & 0xffffffffU) * 0x0000000100000001U;
  return bits;
}

/// Copies whole units; rows and strides count them.
template <class Unit>
struct CopyUnits {
  Unit* y;
  const Unit* x;
  std::int64_t y_stride, x_stride;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    Unit* to = y + r * y_stride + c;
    const Unit* from = x + r * x_stride + c;
    Unit held[pack] = {};  // all loads before the first store, to overlap them
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      if (i < count) held[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      if (i < count) to[i] = held[i];
    }
  }
};

template <class Unit>
void copy_units(void* y, std::int64_t y_stride, const void* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t bytes, CUstream_st* stream) {
  const auto size = static_cast<std::int64_t>(sizeof(Unit));
  for_packs("copy", rows, bytes / size, stream,
            CopyUnits<Unit>{static_cast<Unit*>(y), static_cast<const Unit*>(x), y_stride / size,
                            x_stride / size});
}

template <class To, class From>
struct Convert {
  View<To> y;
  View<From> x;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[pack];
    x.load(v, r, c, count);
    y.store(v, r, c, count);
  }
};

template <class T>
struct Add {
  View<T> y, a, b;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float va[pack], vb[pack];
    a.load(va, r, c, count);
    b.load(vb, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) va[i] += vb[i];
    y.store(va, r, c, count);
  }
};

template <class T>
__device__ void scale_pack(const View<T>& y, float factor, std::int64_t r, std::int64_t c,
                           int count) {
  float v[pack];
  y.load(v, r, c, count);
#pragma unroll
  for (int i = 0; i < pack; ++i) v[i] *= factor;
  y.store(v, r, c, count);
}

template <class T>
struct Scale {
  View<T> y;
  float factor;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    scale_pack(y, factor, r, c, count);
  }
};

template <class T>
struct ScaleBy {
  View<T> y;
  const float* factor;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    scale_pack(y, *factor, r, c, count);
  }
};

/// What two results of attention are multiplied by in their sum; 0 for one that sees nothing.
struct MergeWeights {
  float own = 0, other = 0, lse;
  __device__ MergeWeights(float own_lse, float other_lse) : lse(fmaxf(own_lse, other_lse)) {
    if (lse == -INFINITY) return;
    const float a = expf(own_lse - lse), b = expf(other_lse - lse), sum = a + b;
    own = a / sum;
    other = b / sum;
    lse += logf(sum);
  }
};

struct MergeAttention {
  View<float> out, other;
  const float *lse, *other_lse;  // [heads, tokens]
  std::int64_t heads, tokens;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    const std::int64_t at = r % heads * tokens + r / heads;
    const MergeWeights w(lse[at], other_lse[at]);
    float x[pack], y[pack];
    out.load(x, r, c, count);
    other.load(y, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] = w.own * x[i] + w.other * y[i];
    out.store(x, r, c, count);
  }
};

struct MergeSums {
  float* lse;
  const float* other_lse;
  __device__ void operator()(std::int64_t /*r*/, std::int64_t c, int count) const {
    for (std::int64_t i = c; i < c + count; ++i) lse[i] = MergeWeights(lse[i], other_lse[i]).lse;
  }
};

}  // namespace

void fill_bits(void* y, std::int64_t count, int size, std::uint64_t bits, CUstream_st* stream) {
  if (count <= 0) return;
  const std::int64_t bytes = count * size;
  const std::uint64_t word = repeated(bits, size);
  if (is_aligned(y, bytes)) {
    const auto low = static_cast<unsigned>(word), high = static_cast<unsigned>(word >> 32);
    fill_units(y, bytes / 16, uint4{low, high, low, high}, stream);
  } else if (size == 2) {
    fill_units(y, count, static_cast<std::uint16_t>(bits), stream);
  } else if (size == 4) {
    fill_units(y, count, static_cast<std::uint32_t>(bits), stream);
  } else {
    fill_units(y, count, bits, stream);
  }
}

void copy_bytes(void* y, std::int64_t y_stride, const void* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t bytes, CUstream_st* stream) {
  if (rows == 1 || (y_stride == bytes && x_stride == bytes)) {
    bytes *= rows;
    rows = 1;
    y_stride = x_stride = 0;
  }
  // The widest unit that divides addresses, strides and bytes.
  const auto low_bits = reinterpret_cast<std::uintptr_t>(y) | reinterpret_cast<std::uintptr_t>(x) |
                        static_cast<std::uintptr_t>(y_stride | x_stride | bytes);
  if (low_bits % 16 == 0) {
    copy_units<uint4>(y, y_stride, x, x_stride, rows, bytes, stream);
  } else if (low_bits % 4 == 0) {
    copy_units<std::uint32_t>(y, y_stride, x, x_stride, rows, bytes, stream);
  } else if (low_bits % 2 == 0) {
    copy_units<std::uint16_t>(y, y_stride, x, x_stride, rows, bytes, stream);
  } else {
    copy_units<std::uint8_t>(y, y_stride, x, x_stride, rows, bytes, stream);
  }
}

void convert(const Matrix& y, const Matrix& x, CUstream_st* stream) {
  with_type(y.type, [&]<class To>(To) {
    with_type(x.type, [&]<class From>(From) {
      for_elements("convert", stream, Convert<To, From>{view<To>(y), view<From>(x)}, y, x);
    });
  });
}

void add(const Matrix& y, const Matrix& a, const Matrix& b, CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_elements("add", stream, Add<T>{view<T>(y), view<T>(a), view<T>(b)}, y, a, b);
  });
}

void scale(const Matrix& y, float factor, CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_elements("scale", stream, Scale<T>{view<T>(y), factor}, y);
  });
}

void scale_by(const Matrix& y, const float* factor, CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_elements("scale_by", stream, ScaleBy<T>{view<T>(y), factor}, y);
  });
}

void merge_attention(const Matrix& out, float* lse, const Matrix& other, const float* other_lse,
                     std::int64_t heads, CUstream_st* stream) {
  for_packs("merge_attention", out.rows, out.columns, stream,
            MergeAttention{view<float>(out), view<float>(other), lse, other_lse, heads,
                           out.rows / heads});
  for_packs("merge_attention", 1, out.rows, stream, MergeSums{lse, other_lse});
}

}  // namespace trireme::ops
