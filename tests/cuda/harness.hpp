// One description of a call, run on the CPU backend (the reference) and on the backend under test:
// a GPU, or the emulator on the host. Outputs are poisoned with NaN, gaps between rows hold a
// sentinel, memory may be off 16-byte alignment, and a second run must give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/random.hpp"
#include "trireme/device/device.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::ops {

/// The backend under test, defined by device_under_test.cpp or emulator_under_test.cpp.
device::Device& tested_device();
Ops& tested_ops();
/// A new backend with options.
std::unique_ptr<Ops> make_tested_ops(const CudaOpsOptions& options);
/// Called before the second of two runs that must agree.
void disturb();
/// Scale of sizes where they do not matter: the emulator is slow.
bool is_emulated();

/// Random per run unless TRIREME_TEST_SEED is set; printed at start.
std::uint64_t test_seed();

enum class Kind : std::uint8_t { compute, f32, f64, i32, i64 };
enum class Role : std::uint8_t { in, out, inout };

struct Argument {
  Shape shape;
  Kind kind = Kind::compute;
  Role role = Role::in;
  std::vector<double> values;  // row-major
  std::int64_t gap = 0;        // elements between rows
};

using Call = std::function<void(Ops&, const std::vector<Tensor>&)>;

/// Norm of the difference over the norm of the expected. NaN if only one side has a NaN; equal
/// infinities do not differ.
double relative_error(const std::vector<double>& actual, const std::vector<double>& expected);

class Case {
 public:
  explicit Case(std::string name) : name_(std::move(name)) {}

  /// Uniform in (−scale, scale).
  Case& in(const Shape& shape, double scale = 1, std::int64_t gap = 0, Kind kind = Kind::compute);
  Case& inout(const Shape& shape, double scale = 1, std::int64_t gap = 0,
              Kind kind = Kind::compute);
  Case& out(const Shape& shape, std::int64_t gap = 0, Kind kind = Kind::compute);
  Case& integers(const Shape& shape, std::vector<double> values, Kind kind = Kind::i32);
  Case& given(const Shape& shape, std::vector<double> values, Kind kind = Kind::f32,
              Role role = Role::in);
  std::vector<double>& last() { return arguments_.back().values; }

  /// fp32 within this of the reference; 0: the same bits.
  Case& within(double tolerance) {
    tolerance_ = tolerance;
    return *this;
  }
  /// bf16 and fp16 within this of the reference on rounded inputs.
  Case& narrow_within(double tolerance) {
    narrow_ = tolerance;
    return *this;
  }
  /// Bound of a narrow result's error in multiples of the inputs' rounding error (see check).
  Case& times_rounding(double times) {
    times_ = times;
    return *this;
  }

  /// A narrow result is a sum of terms of at most this norm, and each term may be rounded. Where
  /// the terms cancel, the result is smaller than what was rounded.
  Case& sum_of_terms(double norm) {
    terms_ = norm;
    return *this;
  }

  /// Runs the call for each compute type and both alignments. Narrow types: with E the reference's
  /// results on the inputs and R those on inputs rounded to the type, |result − R| ≤ narrow·N and
  /// |result − E| ≤ times·(|R − E| + rounding of N), with N the greater of |R| and sum_of_terms.
  void check(const Call& call);
  void check(const Call& call, const std::vector<DType>& types);

 private:
  void check_type(const Call& call, DType type, int offset);
  Case& add(const Shape& shape, Kind kind, Role role, std::int64_t gap, double scale);
  std::string name_;
  std::vector<Argument> arguments_;
  double tolerance_ = 1e-5, narrow_ = 1e-2, times_ = 2, terms_ = 0;
};

/// Uniform integers below `below`, from the test's seed.
std::vector<double> random_integers(std::int64_t count, std::int64_t below);
/// Uniform in (0, 1), from the test's seed.
std::vector<double> random_values(std::int64_t count);

}  // namespace trireme::ops
