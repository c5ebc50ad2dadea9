#include <algorithm>
#include <bit>

#include "trireme/device/device.hpp"

#include "cuda/tree.cuh"

namespace trireme::device {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): tree.cuh

/// Adds block by block, so that partial sums stay in the nearest cache; each block is complete
/// before it is written, because `out` may be a contribution.
template <class Type, class Join>
class Tree {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  static constexpr std::int64_t block = 1024;

 public:
  explicit Tree(std::span<const std::byte* const> contributions) : contributions_(contributions) {}

  void run(std::byte* out, std::int64_t elements) {
    const auto ranks = static_cast<int>(contributions_.size());
    Value sum[block];
    for (begin_ = 0; begin_ < elements; begin_ += block) {
      count_ = std::min(block, elements - begin_);
      add(0, ranks, sum);
      auto* target = reinterpret_cast<Stored*>(out) + begin_;
      for (std::int64_t i = 0; i < count_; ++i) target[i] = Type::store(sum[i]);
    }
  }

 private:
  const Stored* leaf(int rank) const {
    return reinterpret_cast<const Stored*>(contributions_[rank]) + begin_;
  }

  void add(int low, int high, Value* sum) const {  // NOLINT(misc-no-recursion): depth log2 of ranks
    const int ranks = high - low;
    if (ranks == 1) {
      const Stored* only = leaf(low);
      for (std::int64_t i = 0; i < count_; ++i) sum[i] = Type::load(only[i]);
      return;
    }
    if (ranks == 2) {
      const Stored* a = leaf(low);
      const Stored* b = leaf(low + 1);
      for (std::int64_t i = 0; i < count_; ++i) {
        sum[i] = Join::join(Type::load(a[i]), Type::load(b[i]));
      }
      return;
    }
    const int middle = low + static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks - 1)));
    add(low, middle, sum);
    Value right[block];
    add(middle, high, right);
    for (std::int64_t i = 0; i < count_; ++i) sum[i] = Join::join(sum[i], right[i]);
  }

  std::span<const std::byte* const> contributions_;
  std::int64_t begin_ = 0, count_ = 0;
};

}  // namespace

void reduce_tree(DType type, Reduction reduction, std::span<const std::byte* const> contributions,
                 std::byte* out, std::int64_t elements) {
  const bool reduces = with_reduced(type, [&]<class Type>(Type) {
    if (reduction == Reduction::max) {
      Tree<Type, Max>(contributions).run(out, elements);
    } else {
      Tree<Type, Sum>(contributions).run(out, elements);
    }
  });
  TRIREME_ASSERT(reduces, "no reduction of {}", name_of(type));
}

void convert_elements(DType to_type, std::byte* to, const std::byte* from, std::int64_t elements) {
  const bool converts = with_converted(to_type, [&]<class To, class From>(To, From) {
    const auto* source = reinterpret_cast<const typename From::Stored*>(from);
    auto* target = reinterpret_cast<typename To::Stored*>(to);
    for (std::int64_t i = 0; i < elements; ++i) target[i] = To::store(From::load(source[i]));
  });
  TRIREME_ASSERT(converts, "no conversion to {}", name_of(to_type));
}

}  // namespace trireme::device
