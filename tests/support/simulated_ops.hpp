// The operations of a simulated device: the CPU's, executed later by the device's thread, in fp32
// on rounded values for bf16 and fp16 tensors.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/core/half.hpp"
#include "trireme/ops/forwarding.hpp"

#include "simulated_device.hpp"

namespace trireme::testing_support {

/// Replaces narrow tensors in one CPU operation: widens the arguments to fp32, and rounds the
/// results back.
class Widening {
 public:
  template <class T>
  const T& wide(const T& value) {
    return value;
  }
  Tensor wide(const Tensor& tensor) {
    if (!tensor || (tensor.type() != DType::bf16 && tensor.type() != DType::f16)) return tensor;
    for (const Pair& pair : pairs_) {
      if (pair.narrow.data() == tensor.data() && pair.narrow.shape() == tensor.shape()) {
        return Tensor(pair.values->data(), tensor.shape());
      }
    }
    const auto size = static_cast<std::size_t>(tensor.elements()) + 1;
    pairs_.push_back({tensor, std::make_unique<std::vector<float>>(size), {}});
    Pair& pair = pairs_.back();
    each_element(tensor, [&](std::size_t i, std::uint16_t& value) {
      (*pair.values)[i] =
          tensor.type() == DType::bf16 ? bf16_to_float(value) : fp16_to_float(value);
    });
    pair.before = *pair.values;
    return Tensor(pair.values->data(), tensor.shape());
  }
  ops::MatmulOptions wide(const ops::MatmulOptions& options) {
    ops::MatmulOptions result = options;
    for (Tensor* each : {&result.bias, &result.before_gelu, &result.gelu_input}) {
      *each = wide(*each);
    }
    return result;
  }
  ops::RoundedCopy wide(const ops::RoundedCopy& copy) {
    ops::RoundedCopy result = copy;
    if (!copy.stochastic) result.values = wide(copy.values);  // else the CPU rounds it itself
    return result;
  }
  void round_back() {
    for (const Pair& pair : pairs_) {
      if (std::memcmp(pair.values->data(), pair.before.data(),
                      pair.before.size() * sizeof(float)) == 0) {
        continue;  // read-only, perhaps a view of what was written
      }
      const bool brain = pair.narrow.type() == DType::bf16;
      each_element(pair.narrow, [&](std::size_t i, std::uint16_t& value) {
        value = brain ? float_to_bf16((*pair.values)[i]) : float_to_fp16((*pair.values)[i]);
      });
    }
  }

 private:
  struct Pair {
    Tensor narrow;
    std::unique_ptr<std::vector<float>> values;
    std::vector<float> before;
  };
  template <class Visit>
  static void each_element(const Tensor& x, const Visit& visit) {
    std::size_t i = 0;
    std::array<std::int64_t, 4> at{};
    const int dimensions = x.shape().dimensions();
    for (std::int64_t left = x.elements(); left > 0; --left) {
      std::int64_t place = 0;
      for (int d = 0; d < dimensions; ++d) {
        place += at[static_cast<std::size_t>(d)] * x.stride(d);
      }
      visit(i++, static_cast<std::uint16_t*>(x.data())[place]);
      for (int d = dimensions - 1; d >= 0; --d) {
        if (++at[static_cast<std::size_t>(d)] < x.shape()[d]) break;
        at[static_cast<std::size_t>(d)] = 0;
      }
    }
  }
  std::vector<Pair> pairs_;
};

class SimulatedOps final : public ops::ForwardingOps<SimulatedOps> {
 public:
  SimulatedOps(SimulatedDevice& device, std::unique_ptr<ops::Ops> cpu)
      : device_(device), cpu_(std::move(cpu)) {}
  ~SimulatedOps() override { device_.synchronize(); }

  /// In two, so that the norm reads the rounded sum.
  void add_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& sum,
                const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
                float epsilon) override {
    add(sum, a, b);
    norm(y, mean, rstd, sum, gain, bias, epsilon);
  }

  template <class... Parameters, class... Arguments>
  void forward(const char* /*name*/, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    device_.compute([this, operation, ... taken = real(arguments)] {
      Widening widening;
      ((*cpu_).*operation)(widening.wide(taken)...);
      widening.round_back();
    });
  }

 private:
  template <class T>
  T real(const T& value) {
    return value;
  }
  Tensor real(const Tensor& tensor) {
    if (!tensor || tensor.elements() == 0) return tensor;
    std::array<std::int64_t, 4> strides{};
    for (int d = 0; d < tensor.shape().dimensions(); ++d) {
      strides[static_cast<std::size_t>(d)] = tensor.stride(d);
    }
    return {device_.real(tensor.data()), tensor.type(), tensor.shape(), strides};
  }
  ops::MatmulOptions real(const ops::MatmulOptions& options) {
    ops::MatmulOptions result = options;
    for (Tensor* each : {&result.bias, &result.before_gelu, &result.gelu_input, &result.row_sum}) {
      *each = real(*each);
    }
    return result;
  }
  ops::AttentionMask real(const ops::AttentionMask& mask) {
    ops::AttentionMask result = mask;
    for (Tensor* each : {&result.query_positions, &result.key_positions, &result.query_documents,
                         &result.key_documents}) {
      *each = real(*each);
    }
    return result;
  }
  ops::RoundedCopy real(const ops::RoundedCopy& copy) {
    ops::RoundedCopy result = copy;
    result.values = real(copy.values);
    return result;
  }
  SimulatedDevice& device_;
  std::unique_ptr<ops::Ops> cpu_;
};

}  // namespace trireme::testing_support
