#include "harness.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "trireme/core/half.hpp"

namespace trireme::ops {
namespace {

constexpr double sentinel = -77;

DType type_of(Kind kind, DType compute) {
  switch (kind) {
    case Kind::compute:
      return compute;
    case Kind::f32:
      return DType::f32;
    case Kind::f64:
      return DType::f64;
    case Kind::i32:
      return DType::i32;
    default:
      return DType::i64;
  }
}

void put(std::byte* to, DType type, double value) {
  const auto store = [&](auto v) { std::memcpy(to, &v, sizeof(v)); };
  switch (type) {
    case DType::f32:
      return store(static_cast<float>(value));
    case DType::bf16:
      return store(float_to_bf16(static_cast<float>(value)));
    case DType::f16:
      return store(float_to_fp16(static_cast<float>(value)));
    case DType::f64:
      return store(value);
    case DType::i32:
      return store(static_cast<std::int32_t>(value));
    default:
      return store(static_cast<std::int64_t>(value));
  }
}

double get(const std::byte* from, DType type) {
  const auto fetch = [&](auto v) {
    std::memcpy(&v, from, sizeof(v));
    return v;
  };
  switch (type) {
    case DType::f32:
      return fetch(float{});
    case DType::bf16:
      return bf16_to_float(fetch(std::uint16_t{}));
    case DType::f16:
      return fp16_to_float(fetch(std::uint16_t{}));
    case DType::f64:
      return fetch(double{});
    case DType::i32:
      return fetch(std::int32_t{});
    default:
      return static_cast<double>(fetch(std::int64_t{}));
  }
}

double rounded_to(DType type, double value) {
  std::byte bytes[8];
  put(bytes, type, value);
  return get(bytes, type);
}

/// An argument in a device's memory.
class Placed {
 public:
  Placed(device::Device& device, const Argument& argument, DType type, int offset)
      : device_(device), type_(type), size_(size_of(type)), offset_(offset) {
    const Shape& shape = argument.shape;
    const int last = shape.dimensions() - 1;
    strides_[static_cast<std::size_t>(last)] = 1;
    std::int64_t stride = shape[last] + argument.gap;
    for (int i = last - 1; i >= 0; --i) {
      strides_[static_cast<std::size_t>(i)] = stride;
      stride *= shape[i];
    }
    const std::int64_t total = last == 0 ? shape[0] : stride;
    shape_ = shape;
    image_.resize((static_cast<std::size_t>(total + offset) + 16) * size_);
    for (std::size_t i = 0; i < image_.size(); i += size_) put(&image_[i], type, sentinel);
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const bool poison = argument.role == Role::out;
      put(at(i), type,
          poison ? std::numeric_limits<double>::quiet_NaN()
                 : argument.values[static_cast<std::size_t>(i)]);
    }
    before_ = image_;
    memory_ = static_cast<std::byte*>(device.allocate(image_.size()));
    if (memory_ == nullptr) throw Error("no memory for a test");
    device.copy(memory_, image_.data(), image_.size());
    device.synchronize();
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  ~Placed() { device_.release(memory_); }

  Tensor view() const {
    return Tensor(memory_ + static_cast<std::size_t>(offset_) * size_, type_, shape_, strides_);
  }
  void fetch() {
    device_.copy(image_.data(), memory_, image_.size());
    device_.synchronize();
  }
  std::vector<double> values() const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < shape_.elements(); ++i) result.push_back(get(at(i), type_));
    return result;
  }
  const std::vector<std::byte>& image() const { return image_; }
  /// Whether only elements were written, and with `all`, not even these.
  bool rest_untouched(bool all) {
    std::vector<std::byte> now = image_;
    if (!all) {
      for (std::int64_t i = 0; i < shape_.elements(); ++i) {
        std::memcpy(&now[place(i)], &before_[place(i)], size_);
      }
    }
    return now == before_;
  }

 private:
  std::size_t place(std::int64_t i) const {
    std::int64_t where = offset_;
    for (int dimension = shape_.dimensions() - 1; dimension >= 0; --dimension) {
      where += i % shape_[dimension] * strides_[static_cast<std::size_t>(dimension)];
      i /= shape_[dimension];
    }
    return static_cast<std::size_t>(where) * size_;
  }
  std::byte* at(std::int64_t i) { return &image_[place(i)]; }
  const std::byte* at(std::int64_t i) const { return &image_[place(i)]; }

  device::Device& device_;
  DType type_;
  std::size_t size_;
  int offset_;
  Shape shape_;
  std::array<std::int64_t, 4> strides_{};
  std::vector<std::byte> image_, before_;
  std::byte* memory_ = nullptr;
};

using PlacedList = std::vector<std::unique_ptr<Placed>>;

PlacedList run(Ops& ops, device::Device& device, const std::vector<Argument>& arguments, DType type,
               int offset, const Call& call) {
  PlacedList placed;
  std::vector<Tensor> tensors;
  for (const Argument& argument : arguments) {
    const bool moves = argument.kind == Kind::compute || argument.kind == Kind::f32;
    placed.push_back(std::make_unique<Placed>(device, argument, type_of(argument.kind, type),
                                              moves ? offset : 0));
    tensors.push_back(placed.back()->view());
  }
  call(ops, tensors);
  device.synchronize();
  for (const auto& each : placed) each->fetch();
  return placed;
}

std::vector<Argument> rounded(std::vector<Argument> arguments, DType type) {
  for (Argument& argument : arguments) {
    if (argument.kind != Kind::compute) continue;
    for (double& value : argument.values) value = rounded_to(type, value);
  }
  return arguments;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) sum += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(sum);
}

double norm(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += std::isinf(x) ? 0 : x * x;
  return std::sqrt(sum);
}

std::uint32_t next_stream() {
  static std::uint32_t stream = 0;
  return ++stream;
}

}  // namespace

std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("TRIREME_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

std::vector<double> random_values(std::int64_t count) {
  const RandomKey key{test_seed(), Purpose::initialization, next_stream()};
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(uniform(key, static_cast<std::uint64_t>(i)));
  }
  return values;
}

std::vector<double> random_integers(std::int64_t count, std::int64_t below) {
  std::vector<double> values = random_values(count);
  for (double& value : values) value = std::floor(value * static_cast<double>(below));
  return values;
}

double relative_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  const double size = norm(expected), error = distance(actual, expected);
  return error == 0 ? 0 : error / (size > 0 ? size : 1);
}

Case& Case::add(const Shape& shape, Kind kind, Role role, std::int64_t gap, double scale) {
  Argument argument{shape, kind, role, {}, gap};
  if (role != Role::out) {
    argument.values = random_values(shape.elements());
    // Representable in fp32, so that the reference has the same inputs.
    for (double& value : argument.values) value = static_cast<float>(scale * (2 * value - 1));
  }
  arguments_.push_back(std::move(argument));
  return *this;
}

Case& Case::in(const Shape& shape, double scale, std::int64_t gap, Kind kind) {
  return add(shape, kind, Role::in, gap, scale);
}
Case& Case::inout(const Shape& shape, double scale, std::int64_t gap, Kind kind) {
  return add(shape, kind, Role::inout, gap, scale);
}
Case& Case::out(const Shape& shape, std::int64_t gap, Kind kind) {
  return add(shape, kind, Role::out, gap, 0);
}
Case& Case::integers(const Shape& shape, std::vector<double> values, Kind kind) {
  arguments_.push_back({shape, kind, Role::in, std::move(values), 0});
  return *this;
}
Case& Case::given(const Shape& shape, std::vector<double> values, Kind kind, Role role) {
  arguments_.push_back({shape, kind, role, std::move(values), 0});
  return *this;
}

void Case::check(const Call& call) { check(call, {DType::f32, DType::bf16, DType::f16}); }

void Case::check(const Call& call, const std::vector<DType>& types) {
  for (const DType type : types) {
    for (const int offset : {0, 1}) check_type(call, type, offset);
  }
}

void Case::check_type(const Call& call, DType type, int offset) {
  const std::string what =
      fmt::format("{} in {} at {} (seed {})", name_, trireme::name_of(type), offset, test_seed());
  SCOPED_TRACE(what);
  const std::unique_ptr<Ops> oracle = make_cpu_ops(1);
  device::Device& host = device::host_device();
  const PlacedList exact = run(*oracle, host, arguments_, DType::f32, 0, call);
  const std::vector<Argument> inputs = rounded(arguments_, type);
  const PlacedList expected = run(*oracle, host, inputs, DType::f32, 0, call);
  const PlacedList actual = run(tested_ops(), tested_device(), inputs, type, offset, call);
  disturb();
  const PlacedList again = run(tested_ops(), tested_device(), inputs, type, offset, call);
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    EXPECT_TRUE(actual[i]->rest_untouched(argument.role == Role::in))
        << "argument " << i << ": memory beside it was written";
    if (argument.role == Role::in) continue;
    EXPECT_EQ(actual[i]->image(), again[i]->image())
        << "argument " << i << ": a second run gave other bits";
    const std::vector<double> result = actual[i]->values(), ideal = expected[i]->values();
    if (type == DType::f32) {
      EXPECT_LE(relative_error(result, ideal), tolerance_) << "argument " << i;
      continue;
    }
    const double size = std::max(norm(ideal), terms_);
    const double narrow = argument.kind == Kind::f64 ? tolerance_ + narrow_ : narrow_;
    EXPECT_LE(distance(result, ideal), narrow * size) << "argument " << i << ", of " << size;
    // The result's own rounding, if it is of the type: to nearest at most 2^-8 or 2^-11 of each
    // element, twice that if stochastic.
    const std::vector<double> all = exact[i]->values();
    const double rounding = type == DType::bf16 ? 0x1p-8 : 0x1p-11;
    const double own = argument.kind == Kind::compute ? std::max(norm(all), terms_) * rounding : 0;
    const double allowed = times_ * (distance(ideal, all) + own) + tolerance_ * norm(all);
    EXPECT_LE(distance(result, all), allowed) << "argument " << i << ", of " << norm(all);
  }
}

}  // namespace trireme::ops
