// The benchmarks of `trireme bench`. Every rank does the same at once, as in training, and results
// are checked. All are collective over the world. docs/benchmarks.md derives every column.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/bench/measure.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/plan/peak.hpp"

namespace trireme::bench {

/// Sizes from `begin` to `end` bytes, each `factor` times the one before.
struct Sizes {
  std::int64_t begin = 8, end = 1 << 24, factor = 8;
  /// Throws ConfigError where there are none: a benchmark that measures nothing finds nothing
  /// wrong.
  std::vector<std::int64_t> all() const;
  /// Numbers of elements of `element_bytes` that fit into these, at least 1, each once.
  std::vector<std::int64_t> counts(std::int64_t element_bytes) const;
};

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send_receive,
  count
};
std::string_view name_of(Collective operation);
/// Every name, in their order.
std::vector<std::string> collective_names();
bool reduces(Collective operation);

/// What turns algorithm bandwidth S/t into bus bandwidth: bytes that the busiest rank must at least
/// send or receive, over S.
double bus_factor(Collective operation, int ranks);

struct CollectiveOptions {
  std::vector<Collective> operations;
  comm::GroupKind group = comm::GroupKind::world;
  Sizes sizes;
  std::vector<DType> types;
  comm::Reduction reduction = comm::Reduction::sum;
  int root = 0;  // of broadcasts
  Rounds rounds;
  bool check = true;
};

/// All groups of one kind at once. Wrong elements are added up in `sheet`. Throws AgreedError where
/// a root is in no group.
void bench_collectives(const Place& place, comm::Grid& grid, const CollectiveOptions& options,
                       Sheet& sheet);

struct StageMessageOptions {
  Sizes sizes;
  std::vector<DType> types;
  Rounds rounds;
  bool check = true;
};

/// Messages between neighboring pipeline stages, by the channels that a run uses. For each size:
/// `ping-pong` (half of there and back, between the pairs of neighbors that the stages form),
/// `activations` (each stage sends to the next), `gradients` (to the one before) and `both` at
/// once. Throws AgreedError where the grid has one stage.
void bench_stage_messages(const Place& place, comm::Grid& grid, const StageMessageOptions& options,
                          Sheet& sheet);

struct CopyOptions {
  Sizes sizes{.begin = 1 << 16, .end = 1 << 28, .factor = 16};
  std::vector<std::int64_t> threads;  // of the host's copies
  Rounds rounds;
};

/// Copies in memory of the host by threads, in a device's, and between the two. Bandwidths count
/// bytes read and bytes written, but between host and device each byte once.
void bench_copies(const Place& place, const CopyOptions& options, Sheet& sheet);

struct FileOptions {
  std::filesystem::path folder;   // where files are written; a folder of ours is made inside
  std::int64_t bytes = 64 << 20;  // of each rank's file
  std::filesystem::path dataset;  // empty: none is read
  std::int64_t length = 256, sequences = 8;  // of the micro-batches read
  Rounds rounds;
};

/// Reading a dataset as training does, and writing and reading back a file as large as a rank's
/// part of a checkpoint. What is read is compared by hash with what was written. Leaves nothing
/// behind, also where it throws.
void bench_files(const Place& place, const FileOptions& options, Sheet& sheet);

/// c [m, n] of a·b (NN), a·bᵀ (NT: a layer's forward) or aᵀ·b (TN: a weight's gradient, added in
/// fp32).
enum class Form : std::uint8_t { nn, nt, tn };
std::string_view name_of(Form form);

struct Product {
  plan::ProductShape shape;
  Form form = Form::nt;
};

/// The products of a layer's forward (NT), backward for inputs (NN) and for weights (TN), where
/// `forward` is the first.
std::vector<Product> products_of_layer(const plan::ProductShape& forward);

struct ProductOptions {
  std::vector<Product> products;
  std::vector<DType> types;
  double peak = 0;  // operations per second of a rank; 0: square products, measured in each type
  Rounds rounds;
};

/// Matrix products: speed and share of the peak.
void bench_products(const Place& place, const ProductOptions& options, Sheet& sheet);

/// Floating-point operations of causal attention with `out` [B, Tq, H, D] and `k` [B, Tk, G, D]:
/// two products of half of Tq·Tk scores.
inline double attention_operations(const Tensor& out, const Tensor& k) {
  return 2.0 * static_cast<double>(out.elements()) * static_cast<double>(k.extent(1));
}
/// Of its backward: five, one of which forward had made.
inline double attention_backward_operations(const Tensor& dq, const Tensor& k) {
  return 5.0 * static_cast<double>(dq.elements()) * static_cast<double>(k.extent(1));
}

struct AttentionShape {
  std::int64_t sequences = 1, heads = 1, tokens = 1, head_size = 1;  // B, H, T, D
  std::int64_t kv_heads = 1;                                         // G, a divisor of H
};

struct AttentionOptions {
  std::vector<AttentionShape> shapes;
  std::vector<DType> types;
  Rounds rounds;
};

/// Causal attention, forward and backward. Some rows of each result are compared with plain sums in
/// fp64 (count_wrong_rows).
void bench_attention(const Place& place, const AttentionOptions& options, Sheet& sheet);

/// Everything as the host reads it, widened: [B, T, H or G, D] each, and lse [B, H, T].
struct AttentionValues {
  std::vector<double> q, k, v, out, dout, dq, dk, dv, lse;
};

/// Wrong elements among some rows of out and lse (`backward` false), or of dq, dk and dv, in
/// attention that computes in `type`. An element is wrong where it is further from the plain sum
/// than rounding explains: each term of the sum may be off by a few units of `type`'s rounding and
/// of the T + D additions in fp32 before it.
std::int64_t count_wrong_rows(const AttentionShape& shape, DType type, double scale,
                              const AttentionValues& values, bool backward);

}  // namespace trireme::bench
