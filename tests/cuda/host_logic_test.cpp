// The backend's host logic: keys of products, bytes of algorithms, tiles, masks, selection of
// library attention. Also the emulator itself.
#include <algorithm>

#include "trireme/core/error.hpp"

#include "../../src/ops/cuda/cuda_ops.hpp"
#include "../../src/ops/cuda/kernels.hpp"
#include "../../src/ops/cuda/libraries.hpp"
#include "harness.hpp"
#include "language.cuh"
#include "support/traffic.hpp"

namespace trireme::ops {
namespace {

alignas(16) float memory[64];

Product example() {
  Product p;
  p.c = {memory, Element::bf16, 5, 7, 16};
  p.a = {memory, Element::bf16, 5, 3, 8};
  p.b = {memory, Element::bf16, 3, 7, 24};
  return p;
}

TEST(ProductKeys, SeeRowMajorAsTransposedColumnMajor) {
  const ProductKey key = key_of(example());
  EXPECT_EQ(key.left, (BlasMatrix{7, 3, 24, false}));    // bᵀ
  EXPECT_EQ(key.right, (BlasMatrix{3, 5, 8, false}));    // aᵀ
  EXPECT_EQ(key.result, (BlasMatrix{7, 5, 16, false}));  // cᵀ
  Product p = example();
  p.transpose_a = true;
  std::swap(p.a.rows, p.a.columns);
  EXPECT_EQ(key_of(p).right, (BlasMatrix{5, 3, 8, true}));
  EXPECT_NE(key_of(p), key);
}

TEST(ProductKeys, DistinguishWhatAnAlgorithmDependsOn) {
  const ProductKey plain = key_of(example());
  std::vector<ProductKey> keys = {plain};
  const auto with = [&](auto change) {
    Product p = example();
    change(p);
    keys.push_back(key_of(p));
  };
  with([](Product& p) { p.accumulate = true; });
  with([](Product& p) { p.bias = memory; });
  with([](Product& p) { p.before_gelu = p.c; });
  with([](Product& p) { p.gelu_input = p.c; });
  with([](Product& p) { p.row_sum = memory; });
  with([](Product& p) { p.c.type = Element::f32; });
  with([](Product& p) { p.c.stride = 17; });
  with([](Product& p) { p.a.data = reinterpret_cast<char*>(memory) + 2; });
  with([](Product& p) { p.a.type = p.b.type = Element::f16; });
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " " << j;
  }
  // Of every row: 17 elements of two bytes.
  EXPECT_EQ(plain.result_alignment, 16);
  EXPECT_EQ(keys[7].result_alignment, 2);
  // Alignment beyond 16 bytes does not matter.
  Product p = example();
  p.a.data = reinterpret_cast<char*>(memory) + 16;
  EXPECT_EQ(key_of(p), plain);
}

TEST(ProductKeys, ReportWhatLibrariesCannotFuse) {
  const auto fuses = [](auto change) {
    Product p = example();
    change(p);
    return can_fuse(p);
  };
  EXPECT_TRUE(fuses([](Product& p) { p.bias = memory; }));
  EXPECT_FALSE(fuses([](Product& p) { p.bias = reinterpret_cast<char*>(memory) + 8; }));
  EXPECT_TRUE(fuses([](Product& p) { p.before_gelu = p.c; }));
  // Its tanh may be an approximation.
  const auto wide = [](Product& p) { p.a.type = p.b.type = p.c.type = Element::f32; };
  EXPECT_FALSE(fuses([&](Product& p) {
    wide(p);
    p.before_gelu = p.c;
  }));
  EXPECT_FALSE(fuses([&](Product& p) {
    wide(p);
    p.gelu_input = p.c;
  }));
  EXPECT_TRUE(fuses([&](Product& p) {
    wide(p);
    p.bias = memory;
  }));
  EXPECT_FALSE(fuses([](Product& p) {
    p.before_gelu = p.c;
    p.before_gelu.stride = 12;
  }));
  EXPECT_FALSE(fuses([](Product& p) {
    p.gelu_input = p.c;
    p.gelu_input.data = reinterpret_cast<char*>(memory) + 2;
  }));
  EXPECT_FALSE(fuses([](Product& p) { p.row_sum = memory; }));  // into bf16
  EXPECT_TRUE(fuses([](Product& p) {
    p.row_sum = memory;
    p.c.type = Element::f32;
    p.accumulate = true;
  }));
  EXPECT_FALSE(fuses([](Product& p) {
    p.bias = memory;
    p.c.type = Element::f32;
  }));
}

TEST(Without, IsAListOfKnownNames) {
  const auto is = [](const char* list, const CudaWithout& expected) {
    const CudaWithout w = read_cuda_without(list);
    return w.cudnn == expected.cudnn && w.cublaslt == expected.cublaslt &&
           w.bias == expected.bias && w.gelu == expected.gelu && w.row_sum == expected.row_sum &&
           w.timing == expected.timing && w.split == expected.split;
  };
  EXPECT_TRUE(is("", {}));
  EXPECT_TRUE(is("gelu", {.gelu = true}));
  EXPECT_TRUE(is("cudnn,cublaslt,timing", {.cudnn = true, .cublaslt = true, .timing = true}));
  EXPECT_TRUE(is("bias,row_sum", {.bias = true, .row_sum = true}));
  EXPECT_TRUE(is("split", {.split = true}));
  for (const char* wrong : {"gelus", "cudnn, gelu", ","}) {
    EXPECT_THROW(read_cuda_without(wrong), Error) << wrong;
  }
}

/// A library that computes nothing and notes which epilogues it was asked for.
class NotingProducts final : public Products {
 public:
  explicit NotingProducts(std::vector<ProductKey>& asked) : asked_(asked) {}
  bool multiply(const Product& product) override {
    asked_.push_back(key_of(product));
    return true;
  }
  std::vector<std::byte> algorithms() const override { return {}; }
  void use_algorithms(std::span<const std::byte>) override {}
  std::vector<Choice> describe_algorithms() const override { return {}; }

 private:
  std::vector<ProductKey>& asked_;
};

TEST(Without, ProductsAreFinishedByOurKernels) {
  using enum Epilogue;
  const auto asked_without = [](const char* list) {
    std::vector<ProductKey> keys;
    CudaParts parts(tested_device());
    parts.products = std::make_unique<NotingProducts>(keys);
    parts.without = read_cuda_without(list);
    CudaOps ops(std::move(parts));
    alignas(16) std::uint16_t space[4][64] = {};
    alignas(16) float sums[64] = {};
    const auto tensor = [&](int i, std::int64_t rows, std::int64_t columns) {
      return Tensor(space[i], DType::bf16, Shape{rows, columns});
    };
    const Tensor a = tensor(0, 8, 8), b = tensor(1, 8, 8), c = tensor(2, 8, 8);
    const Tensor bias(space[3], DType::bf16, Shape{8});
    ops.matmul(c, a, b, {.bias = bias});
    ops.matmul(c, a, b, {.bias = bias, .before_gelu = tensor(3, 8, 8)});
    ops.matmul(c, a, b, {.gelu_input = tensor(3, 8, 8)});
    ops.matmul(Tensor(sums, {8, 8}), a, b, {.transpose_a = true, .row_sum = Tensor(sums, {8})});
    std::vector<Epilogue> asked;
    for (const ProductKey& key : keys) asked.push_back(key.epilogue);
    return asked;
  };
  EXPECT_EQ(asked_without(""), (std::vector{bias, bias_gelu, gelu_slope, row_sum}));
  EXPECT_EQ(asked_without("bias"), (std::vector{none, none, gelu_slope, row_sum}));
  EXPECT_EQ(asked_without("gelu"), (std::vector{bias, bias, none, row_sum}));
  EXPECT_EQ(asked_without("row_sum"), (std::vector{bias, bias_gelu, gelu_slope, none}));
}

/// The rest of the inner extent is written first, and the whole steps are accumulated on it.
TEST(Without, UnevenProductsAreAskedForInTwoParts) {
  const auto asked = [](const char* without, bool reproducible) {
    std::vector<ProductKey> keys;
    CudaParts parts(tested_device());
    parts.products = std::make_unique<NotingProducts>(keys);
    parts.without = read_cuda_without(without);
    parts.reproducible = reproducible;
    CudaOps ops(std::move(parts));
    alignas(16) std::uint16_t space[3][8 * 1032] = {};
    const Tensor a = Tensor(space[0], DType::bf16, Shape{8, 1032}).slice(1, 0, 1027);
    ops.matmul(Tensor(space[2], DType::bf16, Shape{8, 8}), a,
               Tensor(space[1], DType::bf16, Shape{1027, 8}), {});
    return keys;
  };
  const std::vector<ProductKey> two = asked("", false);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_FALSE(two[0].accumulate);
  EXPECT_TRUE(two[1].accumulate);
  EXPECT_EQ(two[0].right.rows + two[1].right.rows, 1027);
  EXPECT_EQ(two[1].right.rows, 1024);
  EXPECT_EQ(asked("split", false).size(), 1U);
  EXPECT_EQ(asked("", true).size(), 1U);
}

TEST(Algorithms, RoundTripAsBytes) {
  std::vector<KeyedAlgorithm> all;
  for (std::uint64_t i = 0; i < 3; ++i) {
    KeyedAlgorithm each;
    each.key = key_of(example());
    each.key.aux_leading = static_cast<std::int64_t>(i) << 40;
    each.key.accumulate = i == 1;
    each.algorithm.workspace = 77 * i;
    each.algorithm.refused = i == 2;
    each.algorithm.timed = i == 1;
    each.algorithm.apart = i == 0;
    each.algorithm.id = static_cast<std::int64_t>(i) - 1;
    for (std::uint64_t j = 0; j < 8; ++j) each.algorithm.words[j] = ~(i * 8 + j);
    all.push_back(each);
  }
  const std::vector<std::byte> bytes = pack_algorithms(130000, all);
  const std::vector<KeyedAlgorithm> back = unpack_algorithms(130000, bytes);
  ASSERT_EQ(back.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(back[i].key, all[i].key);
    EXPECT_TRUE(
        std::equal(back[i].algorithm.words, back[i].algorithm.words + 8, all[i].algorithm.words));
    EXPECT_EQ(back[i].algorithm.workspace, all[i].algorithm.workspace);
    EXPECT_EQ(back[i].algorithm.refused, all[i].algorithm.refused);
    EXPECT_EQ(back[i].algorithm.timed, all[i].algorithm.timed);
    EXPECT_EQ(back[i].algorithm.apart, all[i].algorithm.apart);
    EXPECT_EQ(back[i].algorithm.id, all[i].algorithm.id);
  }
  EXPECT_THROW(unpack_algorithms(130001, bytes), Error);
  for (const std::size_t length : {std::size_t{0}, std::size_t{3}, bytes.size() - 8}) {
    EXPECT_THROW(unpack_algorithms(130000, std::span(bytes).first(length)), Error);
  }
  EXPECT_TRUE(unpack_algorithms(1, pack_algorithms(1, {})).empty());
}

TEST(Algorithms, HaveReadableDescriptions) {
  Product product;  // c [3, 5] += aᵀ·b, a [7, 3], b [7, 5]
  product.c = {memory, Element::f32, 3, 5, 5};
  product.a = {memory, Element::bf16, 7, 3, 3};
  product.b = {memory, Element::bf16, 7, 5, 5};
  product.transpose_a = product.accumulate = true;
  product.row_sum = memory;
  KeyedAlgorithm each{key_of(product), {}};
  each.algorithm.id = 21;
  each.algorithm.workspace = 4096;
  each.algorithm.timed = true;
  const Choice choice = describe(each);
  EXPECT_EQ(choice.rows, 3);
  EXPECT_EQ(choice.columns, 5);
  EXPECT_EQ(choice.depth, 7);
  EXPECT_EQ(choice.factors, "bf16");
  EXPECT_EQ(choice.result, "fp32");
  EXPECT_EQ(choice.form, "TN");
  EXPECT_TRUE(choice.accumulates);
  EXPECT_EQ(choice.epilogue, "row sums");
  EXPECT_EQ(choice.algorithm, "21, work space 4096 bytes");
  EXPECT_EQ(choice.source, "timed");
  product.transpose_a = product.accumulate = false;
  product.row_sum = nullptr;
  product.transpose_b = true;  // c [7, 7] = a·bᵀ, b [7, 3]
  product.c = {memory, Element::bf16, 7, 7, 7};
  product.b = {memory, Element::bf16, 7, 3, 3};
  product.bias = memory;
  const Choice other = describe({key_of(product), {.refused = true}});
  EXPECT_EQ(other.form, "NT");
  EXPECT_EQ(other.depth, 3);
  EXPECT_EQ(other.epilogue, "bias");
  EXPECT_EQ(other.algorithm, "none of the library's");
  EXPECT_EQ(other.source, "heuristic");
}

/// A library that records its calls.
class RememberingProducts final : public Products {
 public:
  explicit RememberingProducts(std::vector<std::byte>& used) : used_(used) {}
  bool multiply(const Product&) override { return false; }
  std::vector<std::byte> algorithms() const override { return {std::byte{7}, std::byte{8}}; }
  void use_algorithms(std::span<const std::byte> bytes) override {
    used_.assign(bytes.begin(), bytes.end());
  }
  std::vector<Choice> describe_algorithms() const override {
    return {describe({key_of(example()), {.id = 9}})};
  }

 private:
  std::vector<std::byte>& used_;
};

TEST(Algorithms, AreChosenByTheBackend) {
  std::vector<std::byte> used;
  CudaParts parts(tested_device());
  parts.products = std::make_unique<RememberingProducts>(used);
  CudaOps with(std::move(parts));
  auto& choosing = dynamic_cast<AlgorithmChoices&>(static_cast<Ops&>(with));
  const std::vector<std::byte> chosen = choosing.choices();
  EXPECT_EQ(chosen.size(), 2U);
  choosing.use_choices(chosen);
  EXPECT_EQ(used, chosen);
  ASSERT_EQ(choosing.describe_choices().size(), 1U);
  EXPECT_EQ(choosing.describe_choices().front().algorithm, "9, work space 0 bytes");
  // Our own kernels have nothing to choose.
  EXPECT_TRUE(dynamic_cast<AlgorithmChoices&>(tested_ops()).describe_choices().empty());
  EXPECT_TRUE(dynamic_cast<AlgorithmChoices&>(tested_ops()).choices().empty());
}

TEST(Tiles, CoverAllRowsOnce) {
  for (const std::int64_t rows : {1, 63, 64, 65, 127, 8191, 8192, 8193, 1000003}) {
    const std::int64_t each = rows_of_chunk(rows), chunks = ceil_div(rows, each);
    EXPECT_LE(chunks, sum_chunks(rows));
    EXPECT_LE(sum_chunks(rows), 128);
    EXPECT_GT(rows, (chunks - 1) * each);
  }
  EXPECT_EQ(key_bits(1), 1);
  EXPECT_EQ(key_bits(255), 8);
  EXPECT_EQ(key_bits(256), 9);
  EXPECT_EQ(elements_to_boundary(32, 2), 0);
  EXPECT_EQ(elements_to_boundary(34, 2), 7);
  EXPECT_EQ(elements_to_boundary(36, 4), 3);
}

TEST(Tiles, NeverHideAVisiblePair) {
  // All masks of short ranges: seen() of blocks against seen() of each pair.
  for (int trial = 0; trial < 2000; ++trial) {
    const std::vector<double> numbers = random_integers(16, 6);
    const auto range = [&](std::size_t i, std::size_t j) {
      const auto [low, high] = std::minmax({numbers[i], numbers[j]});
      return std::pair(static_cast<std::int32_t>(low), static_cast<std::int32_t>(high));
    };
    const auto [q0, q1] = range(0, 1);
    const auto [k0, k1] = range(2, 3);
    const auto [d0, d1] = range(4, 5);
    const auto [e0, e1] = range(6, 7);
    const bool causal = numbers[8] < 3;
    bool some = false, all = true;
    for (const std::int32_t q : {q0, q1}) {
      for (const std::int32_t k : {k0, k1}) {
        for (const std::int32_t d : {d0, d1}) {
          for (const std::int32_t e : {e0, e1}) {
            const bool sees = (!causal || k <= q) && d == e;
            some |= sees;
            all &= sees;
          }
        }
      }
    }
    const Seen said = seen({q0, q1, d0, d1}, {k0, k1, e0, e1}, causal);
    EXPECT_FALSE(said == Seen::none && some);
    EXPECT_FALSE(said == Seen::all && !all);
    EXPECT_TRUE(said == Seen::all || !(all && d0 == d1 && e0 == e1));
  }
}

TEST(Tiles, FitSharedMemory) {
  constexpr std::int64_t most = 227 << 10;  // of one block on Hopper
  for (const std::int64_t size : {64, 128, 256}) {
    const int padded = padded_head(size), rows = tile_rows(padded);
    const std::int64_t tiles = (2 * own_rows + 2 * rows) * row_elements(padded, 4) * 4;
    EXPECT_LE(tiles + 16 * rows + (padded == 256 ? 8 : 4) * 16 * (rows + 4) * 4, most);
    EXPECT_EQ(row_elements(padded, 2) * 2 % 16, 0);
    EXPECT_EQ(row_elements(padded, 2) * 2 / 4 % 32, 4);  // rows' banks
  }
}

Attention plain_call() {
  Attention call;
  call.type = Element::bf16;
  call.batch = 2;
  call.queries = call.keys = 64;
  call.heads = call.all_heads = 4;
  call.groups = 2;
  call.share = 2;
  call.size = 64;
  const Heads heads{memory, 64 * 256, 256, 64};
  call.q = call.k = call.v = call.out = heads;
  return call;
}

TEST(FusedAttention, AcceptsOnlyPlainCalls) {
  EXPECT_TRUE(can_fuse(plain_call()));
  const auto fuses = [](auto change) {
    Attention call = plain_call();
    change(call);
    return can_fuse(call);
  };
  const std::int32_t place = 0;
  const std::int64_t sample = 0;
  EXPECT_FALSE(fuses([](Attention& c) { c.type = Element::f32; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.causal = false; }));
  EXPECT_FALSE(fuses([&](Attention& c) { c.query_positions = c.key_positions = &place; }));
  EXPECT_FALSE(fuses([&](Attention& c) { c.query_documents = c.key_documents = &place; }));
  EXPECT_FALSE(fuses([&](Attention& c) { c.samples = &sample; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.keys = 65; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.size = 60; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.size = 136; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.heads = 3; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.k.stride = 260; }));
  EXPECT_FALSE(fuses([](Attention& c) { c.v.data = reinterpret_cast<char*>(memory) + 2; }));
}

__global__ void unmatched_kernel() {
  if (threadIdx.x == 0) __syncwarp();
  if (threadIdx.x != 0) __syncthreads();
}
__global__ void failing_kernel(int* to) {
  if (threadIdx.x == 3) fail("three", 3, 4);
  to[threadIdx.x] = 1;
}

/// Compares the kernels of each call with testing_support::kernel_launches.
class CheckedLaunches final : public ForwardingOps<CheckedLaunches> {
 public:
  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    const int before = emulator::launches();
    (tested_ops().*operation)(arguments...);
    EXPECT_EQ(emulator::launches() - before, testing_support::kernel_launches(name)) << name;
    ++calls;
  }
  int calls = 0;
};

TEST(Launches, AreAsManyAsStepsAreCountedWith) {
  CheckedLaunches checked;
  Ops& ops = checked;
  const std::int64_t rows = 8, columns = 16;
  std::vector<std::vector<float>> memory(10, std::vector<float>(2 * rows * columns, 0.5F));
  const auto tensor = [&](int i) {
    return Tensor(memory[static_cast<std::size_t>(i)].data(), {rows, columns});
  };
  const auto vector = [&](int i, std::int64_t n) {
    return Tensor(memory[static_cast<std::size_t>(i)].data(), {n});
  };
  const Tensor x = tensor(0), y = tensor(1), dy = tensor(2), gain = vector(3, columns);
  const Tensor dgain = vector(4, columns), dbias = vector(5, columns), mean = vector(6, rows);
  const Tensor rstd = vector(7, rows), sum = vector(8, rows);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows), 1);
  const Tensor targets(ids.data(), {rows});
  double total[2] = {};
  ops.fill(y, 0);
  ops.copy(y, x);
  ops.add(y, x, y);
  ops.scale(y, 2);
  ops.scale_by(y, gain.slice(0, 0, 1));
  ops.column_sum(dgain, x);
  for (const bool centered : {true, false}) {
    const Tensor mean_of = centered ? mean : Tensor(), dbias_of = centered ? dbias : Tensor();
    ops.norm(y, mean_of, rstd, x, gain, {}, 1e-5F);
    ops.add_norm(y, mean_of, rstd, x, x, dy, gain, {}, 1e-5F);
    ops.norm_backward_input(y, dy, x, gain, mean_of, rstd, {});
    ops.norm_backward_weight(dgain, dbias_of, dy, x, mean_of, rstd);
    ops.norm_backward(y, dgain, dbias_of, dy, x, gain, mean_of, rstd, dy);
  }
  ops.gelu(y, x);
  ops.gelu_backward(y, dy, x);
  ops.embedding(y, targets, x, {}, Lookup::write);
  ops.row_maximum(mean, x);
  ops.exp_sum_and_target(sum, rstd, x, mean, targets, 0);
  ops.softmax_statistics(mean, sum, rstd, x, targets);
  ops.cross_entropy_gradient(x, mean, sum, targets, rstd, 0);
  ops.weighted_loss(Tensor(total, {1}), sum, mean, rstd, rstd);
  std::vector<float> many(5000, 1.0F);
  ops.add_squares(Tensor(total, {1}), Tensor(many.data(), {5000}));
  ops.adamw(y, dy, x, tensor(9), {});
  EXPECT_EQ(checked.calls, 26);
}

TEST(Emulator, FindsThreadsThatWaitForever) {
  EXPECT_THROW(launch("unmatched", unmatched_kernel, dim3(1), dim3(32), 0, nullptr), Error);
}

TEST(Emulator, ReportsFailures) {
  int to[32] = {};
  EXPECT_THROW(launch("failing", failing_kernel, dim3(1), dim3(32), 0, nullptr, to), Error);
  EXPECT_EQ(to[3], 0);
}

TEST(Emulator, RefusesIdsOutsideTheTable) {
  float table[8] = {}, y[4] = {};
  for (std::int32_t id : {-1, 2}) {
    EXPECT_THROW(tested_ops().embedding(Tensor(y, {1, 4}), Tensor(&id, {1}), Tensor(table, {2, 4})),
                 Error);
  }
}

}  // namespace
}  // namespace trireme::ops
