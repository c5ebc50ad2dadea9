#include <algorithm>
#include <cstring>

#include "trireme/core/error.hpp"

#include "product.hpp"

namespace trireme::ops {
namespace {

constexpr std::uint64_t magic =
    0x32676c6174757274;  // of the packed bytes, with the layout's number

using Words = std::vector<std::uint64_t>;
constexpr std::size_t head_words = 3, entry_words = 29;

void append(Words& words, const BlasMatrix& x) {
  for (const std::int64_t value : {x.rows, x.columns, x.leading, std::int64_t{x.transposed}}) {
    words.push_back(static_cast<std::uint64_t>(value));
  }
}

void append(Words& words, const KeyedAlgorithm& each) {
  const ProductKey& key = each.key;
  for (const BlasMatrix& x : {key.left, key.right, key.result}) append(words, x);
  words.push_back(static_cast<std::uint64_t>(key.aux_leading));
  words.push_back(
      static_cast<std::uint64_t>(key.factors) | static_cast<std::uint64_t>(key.results) << 8 |
      static_cast<std::uint64_t>(key.epilogue) << 16 | std::uint64_t{key.accumulate} << 24);
  for (const std::uint8_t alignment :
       {key.left_alignment, key.right_alignment, key.result_alignment}) {
    words.push_back(alignment);
  }
  words.insert(words.end(), std::begin(each.algorithm.words), std::end(each.algorithm.words));
  words.push_back(each.algorithm.workspace);
  words.push_back(static_cast<std::uint64_t>(each.algorithm.id));
  words.push_back(each.algorithm.refused ? 1 : 0);
  words.push_back(each.algorithm.timed ? 1 : 0);
}

BlasMatrix matrix_at(const std::uint64_t* words) {
  const auto value = [&](int i) { return static_cast<std::int64_t>(words[i]); };
  return {value(0), value(1), value(2), words[3] != 0};
}

KeyedAlgorithm entry_at(const std::uint64_t* words) {
  KeyedAlgorithm each;
  each.key.left = matrix_at(words);
  each.key.right = matrix_at(words + 4);
  each.key.result = matrix_at(words + 8);
  each.key.aux_leading = static_cast<std::int64_t>(words[12]);
  each.key.factors = static_cast<Element>(words[13] & 0xffU);
  each.key.results = static_cast<Element>(words[13] >> 8 & 0xffU);
  each.key.epilogue = static_cast<Epilogue>(words[13] >> 16 & 0xffU);
  each.key.accumulate = (words[13] >> 24 & 1U) != 0;
  each.key.left_alignment = static_cast<std::uint8_t>(words[14]);
  each.key.right_alignment = static_cast<std::uint8_t>(words[15]);
  each.key.result_alignment = static_cast<std::uint8_t>(words[16]);
  std::copy_n(words + 17, 8, each.algorithm.words);
  each.algorithm.workspace = words[25];
  each.algorithm.id = static_cast<std::int64_t>(words[26]);
  each.algorithm.refused = words[27] != 0;
  each.algorithm.timed = words[28] != 0;
  return each;
}

std::uint8_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::uint8_t>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

/// Row-major x as column-major: its transpose. A view of one row may have any stride; libraries
/// require at least its width.
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

bool can_fuse(const Product& p) {
  const bool gelu = p.before_gelu.data != nullptr, slope = p.gelu_input.data != nullptr;
  const bool finished = gelu || slope || p.bias != nullptr;
  if (p.row_sum != nullptr && (finished || p.c.type != Element::f32)) return false;
  if ((gelu && slope) || (slope && p.bias != nullptr) || (finished && p.accumulate)) return false;
  // Epilogues need one type of factors and result.
  if (finished && p.c.type != p.a.type) return false;
  // The library may approximate tanh to 11 bits, too few for fp32.
  if ((gelu || slope) && p.a.type == Element::f32) return false;
  return bias_fits(p.bias) && aux_fits(p.before_gelu) && aux_fits(p.gelu_input);
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
  key.left_alignment = alignment_of(product.b.data);
  key.right_alignment = alignment_of(product.a.data);
  key.result_alignment = alignment_of(product.c.data);
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
                        : fmt::format("{}, work space {} bytes", algorithm.id, algorithm.workspace);
  choice.source = algorithm.timed ? "timed" : "heuristic";
  return choice;
}

std::vector<std::byte> pack_algorithms(std::uint64_t version,
                                       const std::vector<KeyedAlgorithm>& algorithms) {
  Words words = {magic, version, algorithms.size()};
  for (const KeyedAlgorithm& each : algorithms) append(words, each);
  std::vector<std::byte> bytes(words.size() * sizeof(words[0]));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::vector<KeyedAlgorithm> unpack_algorithms(std::uint64_t version,
                                              std::span<const std::byte> bytes) {
  Words words(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(words[0]));
  if (bytes.size() % sizeof(std::uint64_t) != 0 || words.size() < head_words || words[0] != magic ||
      (words.size() - head_words) % entry_words != 0 ||
      (words.size() - head_words) / entry_words != words[2]) {
    throw Error("algorithms of products: {} bytes that are not such; run one build on all ranks",
                bytes.size());
  }
  if (words[1] != version) {
    throw Error(
        "algorithms of products: chosen for library and device {}, here they are {} (cuBLASLt's "
        "version, then the device's capability in three digits); use one version and one kind of "
        "GPU on all ranks",
        words[1], version);
  }
  std::vector<KeyedAlgorithm> algorithms;
  for (std::size_t i = head_words; i < words.size(); i += entry_words) {
    algorithms.push_back(entry_at(&words[i]));
  }
  return algorithms;
}

}  // namespace trireme::ops
