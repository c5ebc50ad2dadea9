#include <algorithm>
#include <cstring>
#include <type_traits>

#include "trireme/core/error.hpp"

#include "libraries.hpp"

namespace trireme::ops {
namespace {

/// Before the algorithms, as they are in memory.
struct PackedHead {
  std::uint64_t magic = 0x34676c6174757274;  // with the layout's number
  std::uint64_t version = 0, count = 0;
};
static_assert(std::is_trivially_copyable_v<KeyedAlgorithm>);

/// Of a number of bytes: the largest power of two up to 16 that divides it.
std::uint8_t alignment_of(std::uintptr_t bytes) {
  return static_cast<std::uint8_t>(std::min<std::uintptr_t>(16, bytes & (~bytes + 1)));
}

std::uint8_t alignment_of(const void* data) {
  return alignment_of(reinterpret_cast<std::uintptr_t>(data));
}

/// Of every row of a matrix.
std::uint8_t row_alignment(const Matrix& x) {
  const std::uint8_t first = alignment_of(x.data);
  if (x.rows <= 1) return first;
  return std::min(first, alignment_of(static_cast<std::uintptr_t>(x.stride * bytes_of(x.type))));
}

/// Row-major x as column-major: its transpose. Strides are at least the width, of one row too.
BlasMatrix blas_matrix(const Matrix& x, bool transposed) {
  return {x.columns, x.rows, std::max(x.stride, x.columns), transposed};
}

Epilogue epilogue_of(const Product& product) {
  if (product.row_sum != nullptr) return Epilogue::row_sum;
  if (product.gelu_input.data != nullptr) return Epilogue::gelu_slope;
  if (product.before_gelu.data != nullptr) {
    return product.bias != nullptr ? Epilogue::bias_gelu : Epilogue::gelu;
  }
  return product.bias != nullptr ? Epilogue::bias : Epilogue::none;
}

/// The stride of a single row is free.
std::int64_t aux_leading(const Matrix& aux) {
  return aux.rows <= 1 ? (aux.columns + 7) / 8 * 8 : aux.stride;
}

/// The library reads 16 bytes of a bias at once.
bool bias_fits(const void* bias) { return bias == nullptr || alignment_of(bias) == 16; }

bool aux_fits(const Matrix& aux) {
  return aux.data == nullptr || (alignment_of(aux.data) == 16 && aux_leading(aux) % 8 == 0);
}

}  // namespace

bool can_fuse(const Product& p, const CudaWithout& without) {
  const bool gelu = p.before_gelu.data != nullptr, slope = p.gelu_input.data != nullptr;
  if ((without.bias && p.bias != nullptr) || (without.gelu && (gelu || slope)) ||
      (without.row_sum && p.row_sum != nullptr)) {
    return false;
  }
  const bool finished = gelu || slope || p.bias != nullptr;
  if (p.row_sum != nullptr && (finished || p.c.type != Element::f32)) return false;
  if ((gelu && slope) || (slope && p.bias != nullptr) || (finished && p.accumulate)) return false;
  // Epilogues need one type of factors and result.
  if (finished && p.c.type != p.a.type) return false;
  // The library may approximate tanh to 11 bits, too few for fp32.
  if ((gelu || slope) && p.a.type == Element::f32) return false;
  return bias_fits(p.bias) && aux_fits(p.before_gelu) && aux_fits(p.gelu_input);
}

Product without_epilogue(const Product& product) {
  Product plain = product;
  plain.row_sum = nullptr;
  plain.gelu_input = {};
  if (product.before_gelu.data != nullptr) {
    plain.c = product.before_gelu;
    plain.before_gelu = {};
  }
  return plain;
}

std::size_t epilogue_workspace(const Product& product) {
  if (product.row_sum == nullptr || !product.transpose_a) return 0;
  return column_sum_workspace(product.a.rows, product.a.columns, 1);
}

void apply_epilogue(const Product& product, float* workspace, CUstream_st* stream) {
  if (product.before_gelu.data != nullptr) gelu(product.c, product.before_gelu, stream);
  if (product.gelu_input.data != nullptr) {
    gelu_backward(product.c, product.c, product.gelu_input, stream);
  }
  if (product.row_sum == nullptr) return;
  if (product.transpose_a) {
    column_sum(product.row_sum, product.a, workspace, stream);
  } else {
    row_sum(product.row_sum, product.a, stream);
  }
}

std::optional<std::array<Product, 2>> split_uneven(const Product& product) {
  constexpr std::int64_t step = 8, large = 1024;
  if (product.a.type == Element::f32 || epilogue_of(product) != Epilogue::none) return {};
  for (const Matrix& matrix : {product.a, product.b, product.c}) {
    if (row_alignment(matrix) < 16) return {};
  }
  const auto uneven = [&](std::int64_t extent) { return extent >= large && extent % step != 0; };
  std::array<Product, 2> parts{product, product};
  Product &rest = parts[0], &steps = parts[1];
  const auto split = [&](Matrix Product::*of, bool columns) {
    const Matrix& whole = product.*of;
    const std::int64_t extent = columns ? whole.columns : whole.rows, end = extent / step * step;
    const std::int64_t skipped = end * (columns ? 1 : whole.stride) * bytes_of(whole.type);
    (columns ? (steps.*of).columns : (steps.*of).rows) = end;
    (columns ? (rest.*of).columns : (rest.*of).rows) = extent - end;
    (rest.*of).data = static_cast<char*>(whole.data) + skipped;
  };
  if (uneven(product.c.columns)) {
    split(&Product::c, true);
    split(&Product::b, !product.transpose_b);
  } else if (product.transpose_a && uneven(product.c.rows)) {
    split(&Product::c, false);
    split(&Product::a, product.transpose_a);
  } else if ((!product.transpose_a || product.transpose_b) && uneven(product.depth())) {
    split(&Product::a, !product.transpose_a);
    split(&Product::b, product.transpose_b);
    steps.accumulate = true;
  } else {
    return {};
  }
  return parts;
}

ProductKey key_of(const Product& product) {
  ProductKey key;
  key.left = blas_matrix(product.b, product.transpose_b);
  key.right = blas_matrix(product.a, product.transpose_a);
  key.result = blas_matrix(product.c, false);
  key.factors = product.a.type;
  key.results = product.c.type;
  key.epilogue = epilogue_of(product);
  key.accumulate = product.accumulate;
  key.left_alignment = row_alignment(product.b);
  key.right_alignment = row_alignment(product.a);
  key.result_alignment = row_alignment(product.c);
  const Matrix& aux =
      product.before_gelu.data != nullptr ? product.before_gelu : product.gelu_input;
  if (aux.data != nullptr) key.aux_leading = aux_leading(aux);
  return key;
}

Choice describe(const KeyedAlgorithm& each) {
  constexpr const char* types[] = {"fp32", "bf16", "fp16"};
  constexpr const char* epilogues[] = {"none",          "bias",          "gelu",
                                       "bias and gelu", "slope of gelu", "row sums"};
  const ProductKey& key = each.key;
  const Algorithm& algorithm = each.algorithm;
  Choice choice;
  // Column-major, the library's `left` is our b, and `result` has our columns as its rows.
  choice.rows = key.result.columns;
  choice.columns = key.result.rows;
  choice.depth = key.right.transposed ? key.right.columns : key.right.rows;
  choice.factors = types[static_cast<int>(key.factors)];
  choice.result = types[static_cast<int>(key.results)];
  choice.form = {key.right.transposed ? 'T' : 'N', key.left.transposed ? 'T' : 'N'};
  choice.accumulates = key.accumulate;
  choice.epilogue = epilogues[static_cast<int>(key.epilogue)];
  choice.algorithm =
      algorithm.refused ? "none of the library's"
      : algorithm.apart ? "a plain product and a kernel of its own"
                        : fmt::format("{}, work space {} bytes", algorithm.id, algorithm.workspace);
  choice.source = algorithm.timed ? "timed" : "heuristic";
  return choice;
}

// A change of the layout needs another magic number.
static_assert(sizeof(KeyedAlgorithm) == 200);

std::vector<std::byte> pack_algorithms(std::uint64_t version,
                                       const std::vector<KeyedAlgorithm>& algorithms) {
  const PackedHead head{.version = version, .count = algorithms.size()};
  std::vector<std::byte> bytes(sizeof head + algorithms.size() * sizeof(KeyedAlgorithm));
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy_n(reinterpret_cast<const std::byte*>(algorithms.data()), bytes.size() - sizeof head,
              bytes.begin() + sizeof head);
  return bytes;
}

std::vector<KeyedAlgorithm> unpack_algorithms(std::uint64_t version,
                                              std::span<const std::byte> bytes) {
  PackedHead head{.magic = 0};
  if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
  const std::size_t rest = bytes.size() - sizeof head;
  if (head.magic != PackedHead{}.magic || rest % sizeof(KeyedAlgorithm) != 0 ||
      rest / sizeof(KeyedAlgorithm) != head.count) {
    throw Error("algorithms of products: {} bytes that are not such; run one build on all ranks",
                bytes.size());
  }
  if (head.version != version) {
    throw Error(
        "algorithms of products: chosen for library and device {}, here they are {} (cuBLASLt's "
        "version, then the device's capability in three digits); use one version and one kind of "
        "GPU on all ranks",
        head.version, version);
  }
  std::vector<KeyedAlgorithm> algorithms(head.count);
  std::copy_n(bytes.data() + sizeof head, rest, reinterpret_cast<std::byte*>(algorithms.data()));
  for (const KeyedAlgorithm& each : algorithms) {
    if (each.key.epilogue > Epilogue::row_sum || each.key.factors > Element::f16 ||
        each.key.results > Element::f16) {
      throw Error("algorithms of products: unknown values; run one build on all ranks");
    }
  }
  return algorithms;
}

}  // namespace trireme::ops
