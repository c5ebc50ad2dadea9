// GELU, SwiGLU and the finish of a product.
#include "finish.cuh"

namespace trireme::ops {
namespace {

template <class T>
struct Gelu {
  View<T> y, x;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float v[pack];
    x.load(v, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) v[i] = gelu_value(v[i]);
    y.store(v, r, c, count);
  }
};

template <class T>
struct GeluBackward {
  View<T> dx, dy, x;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float g[pack], v[pack];
    dy.load(g, r, c, count);
    x.load(v, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) g[i] *= gelu_slope(v[i]);
    dx.store(g, r, c, count);
  }
};

/// Views of the two halves of a row, which may be aligned differently.
template <class T>
struct Halves {
  View<T> gate, up;
  explicit Halves(const Matrix& x) : gate(view<T>(x)), up(gate) {
    up.data += x.columns / 2;
    up.aligned = gate.aligned && is_aligned(up.data);
  }
};

template <class T>
struct Swiglu {
  View<T> y;
  Halves<T> x;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float g[pack], u[pack];
    x.gate.load(g, r, c, count);
    x.up.load(u, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) u[i] *= g[i] * logistic(g[i]);
    y.store(u, r, c, count);
  }
};

template <class T>
struct SwigluBackward {
  Halves<T> dx;
  View<T> dy;
  Halves<T> x;
  __device__ void operator()(std::int64_t r, std::int64_t c, int count) const {
    float d[pack], g[pack], u[pack];
    dy.load(d, r, c, count);
    x.gate.load(g, r, c, count);
    x.up.load(u, r, c, count);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const Sigmoid s = sigmoid(g[i]);
      u[i] = d[i] * u[i] * fmaf(g[i], s.slope, s.value);
      d[i] *= g[i] * s.value;
    }
    dx.gate.store(u, r, c, count);
    dx.up.store(d, r, c, count);
  }
};

template <class To, class T>
struct FinishPack {
  View<To> c;
  View<float> sums;
  FinishViews<T> finish;
  __device__ void operator()(std::int64_t r, std::int64_t column, int count) const {
    float v[pack];
    sums.load(v, r, column, count);
    finish.apply(v, c, r, column, count);
  }
};

}  // namespace

void gelu(const Matrix& y, const Matrix& x, CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_elements("gelu", stream, Gelu<T>{view<T>(y), view<T>(x)}, y, x);
  });
}

void gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& x, CUstream_st* stream) {
  with_type(dx.type, [&]<class T>(T) {
    for_elements("gelu_backward", stream, GeluBackward<T>{view<T>(dx), view<T>(dy), view<T>(x)}, dx,
                 dy, x);
  });
}

void swiglu(const Matrix& y, const Matrix& gate_up, CUstream_st* stream) {
  with_type(y.type, [&]<class T>(T) {
    for_packs("swiglu", y.rows, y.columns, stream, Swiglu<T>{view<T>(y), Halves<T>(gate_up)});
  });
}

void swiglu_backward(const Matrix& dgate_up, const Matrix& dy, const Matrix& gate_up,
                     CUstream_st* stream) {
  with_type(dy.type, [&]<class T>(T) {
    for_packs("swiglu_backward", dy.rows, dy.columns, stream,
              SwigluBackward<T>{Halves<T>(dgate_up), view<T>(dy), Halves<T>(gate_up)});
  });
}

void finish_product(const Matrix& c, const Matrix& sums, const Finish& finish,
                    CUstream_st* stream) {
  with_type(c.type, [&]<class To>(To) {
    with_type(finish.factors, [&]<class T>(T) {
      for_packs("finish_product", c.rows, c.columns, stream,
                FinishPack<To, T>{view<To>(c), view<float>(sums), FinishViews<T>(finish)});
    });
  });
}

}  // namespace trireme::ops
