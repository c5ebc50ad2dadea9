// Operations on tensors that no cache holds, beside a copy of the same run with the same threads.
//   memory_bench [--results FILE] [MiB]
// MiB is the size of one fp32 activation (default 256, several times a last-level cache).
// Bytes are counted as an operation cannot do without them: each tensor that is read, once; each
// that is written, once; one that is updated in place twice. What a processor reads of a line only
// because it is about to be overwritten counts for nothing, in the copy neither (which writes past
// the caches). Every time of an operation stands between two of a copy, since what memory gives
// changes while others use it: `achieved` is the median of the ratios to the mean of the two.
// Threads: OMP_NUM_THREADS.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>

#include <omp.h>

#include "trireme/core/files.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/report/json.hpp"

namespace trireme::bench {
namespace {

constexpr std::int64_t columns = 1024, vocabulary = 50257;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One operation, what it moves at least, and the best time seen.
struct Row {
  std::string name;
  DType type;
  double bytes;
  std::function<void()> work;
  std::vector<double> seconds = {};
  std::vector<double> achieved = {};
};

/// Tensors of one type, all as large, and small ones beside them.
class Tensors {
 public:
  Tensors(ops::Ops& ops, device::MemoryLedger& ledger, DType type, std::int64_t rows)
      : ops_(&ops), ledger_(&ledger), type_(type), rows_(rows) {
    for (Tensor* x : {&a, &b, &c}) *x = make(type, {rows, columns}, 0.5F);
    pair = make(type, {rows, 2 * columns}, 0.25F);
    dpair = make(type, {rows, 2 * columns}, 0.0F);
    gain = make(type, {columns}, 1.0F);
    bias = make(type, {columns}, 0.1F);
    dgain = make(DType::f32, {columns}, 0.0F);
    dbias = make(DType::f32, {columns}, 0.0F);
    mean = make(DType::f32, {rows}, 0.1F);
    rstd = make(DType::f32, {rows}, 1.0F);
    const std::int64_t tokens = rows * columns / vocabulary;
    logits = Tensor(a.data(), type, {tokens, vocabulary});
    maximum = make(DType::f32, {tokens}, 1.0F);
    sum = make(DType::f32, {tokens}, static_cast<float>(vocabulary));
    target_logit = make(DType::f32, {tokens}, 0.0F);
    factor = make(DType::f32, {tokens}, 1.0F);
    ids.resize(static_cast<std::size_t>(tokens));
    std::iota(ids.begin(), ids.end(), 0);
    targets = Tensor(ids.data(), {tokens});
  }
  Tensor make(DType type, const Shape& shape, float value) {
    buffers_.emplace_back(*ledger_, device::Use::workspace,
                          static_cast<std::size_t>(shape.elements()) * size_of(type));
    const Tensor x = buffers_.back().view(type, shape);
    ops_->fill(x, value);
    return x;
  }
  Tensor a, b, c, pair, dpair, gain, bias, dgain, dbias, mean, rstd;
  Tensor logits, maximum, sum, target_logit, factor, targets;
  std::vector<std::int32_t> ids;

 private:
  ops::Ops* ops_;
  device::MemoryLedger* ledger_;
  DType type_;
  std::int64_t rows_;
  std::vector<device::Buffer> buffers_;
};

void add_norms(std::vector<Row>& rows, ops::Ops& ops, const Tensors& t) {
  const DType type = t.a.type();
  const auto unit = static_cast<double>(t.a.bytes());
  rows.push_back({"layer_norm", type, 2 * unit,
                  [&ops, &t] { ops.layer_norm(t.b, t.mean, t.rstd, t.a, t.gain, t.bias, 1e-5F); }});
  rows.push_back(
      {"rms_norm", type, 2 * unit, [&ops, &t] { ops.rms_norm(t.b, t.rstd, t.a, t.gain, 1e-5F); }});
  for (const bool add : {false, true}) {
    const std::string what =
        add ? "backward for inputs, added to the residual" : "backward for inputs";
    const double bytes = (add ? 4 : 3) * unit;
    rows.push_back({"layer_norm, " + what, type, bytes, [&ops, &t, add] {
                      ops.layer_norm_backward_input(t.c, t.b, t.a, t.gain, t.mean, t.rstd, add);
                    }});
    rows.push_back({"rms_norm, " + what, type, bytes, [&ops, &t, add] {
                      ops.rms_norm_backward_input(t.c, t.b, t.a, t.gain, t.rstd, add);
                    }});
  }
  rows.push_back({"layer_norm, backward for weights", type, 2 * unit, [&ops, &t] {
                    ops.layer_norm_backward_weight(t.dgain, t.dbias, t.b, t.a, t.mean, t.rstd);
                  }});
  rows.push_back({"rms_norm, backward for weights", type, 2 * unit,
                  [&ops, &t] { ops.rms_norm_backward_weight(t.dgain, t.b, t.a, t.rstd); }});
}

void add_others(std::vector<Row>& rows, ops::Ops& ops, const Tensors& t) {
  const DType type = t.a.type();
  const auto unit = static_cast<double>(t.a.bytes());
  const auto logits = static_cast<double>(t.logits.bytes());
  rows.push_back({"gelu", type, 2 * unit, [&ops, &t] { ops.gelu(t.b, t.a); }});
  rows.push_back(
      {"gelu_backward", type, 3 * unit, [&ops, &t] { ops.gelu_backward(t.c, t.b, t.a); }});
  rows.push_back({"swiglu", type, 3 * unit, [&ops, &t] { ops.swiglu(t.a, t.pair); }});
  rows.push_back({"swiglu_backward", type, 5 * unit,
                  [&ops, &t] { ops.swiglu_backward(t.dpair, t.a, t.pair); }});
  rows.push_back({"add", type, 3 * unit, [&ops, &t] { ops.add(t.c, t.b, t.a); }});
  rows.push_back({"column_sum", type, unit, [&ops, &t] { ops.column_sum(t.dgain, t.a); }});
  rows.push_back(
      {"row_maximum", type, logits, [&ops, &t] { ops.row_maximum(t.maximum, t.logits, false); }});
  rows.push_back({"exp_sum_and_target", type, logits, [&ops, &t] {
                    ops.exp_sum_and_target(t.sum, t.target_logit, t.logits, t.maximum, t.targets,
                                           0);
                  }});
  rows.push_back({"cross_entropy_gradient", type, 2 * logits, [&ops, &t] {
                    ops.cross_entropy_gradient(t.logits, t.maximum, t.sum, t.targets, t.factor, 0);
                  }});
}

/// Updates of fp32 parameters: what units read is a copy in bf16, or the parameters themselves.
void add_updates(std::vector<Row>& rows, ops::Ops& ops, Tensors& wide, const Tensors& narrow) {
  const auto unit = static_cast<double>(wide.a.bytes());
  const Tensor first = wide.make(DType::f32, wide.a.shape(), 0.1F);
  const Tensor second = wide.make(DType::f32, wide.a.shape(), 0.01F);
  for (const bool rounds : {false, true}) {
    ops::AdamWStep step;
    step.learning_rate = 1e-3F;
    step.weight_decay = 0.1F;
    ops::RoundedCopy copy;
    if (rounds) copy.values = narrow.c.slice(0, 0, wide.a.extent(0));
    rows.push_back({rounds ? "adamw and a copy in bf16" : "adamw", DType::f32,
                    (rounds ? 7.5 : 7) * unit, [&ops, &wide, first, second, step, copy] {
                      ops.adamw(wide.b, first, second, wide.a, step, copy);
                    }});
  }
  rows.push_back({"add_squares", DType::f32, unit, [&ops, &wide] {
                    double sum = 0;
                    ops.add_squares(Tensor(&sum, {1}), wide.a);
                  }});
}

int run(const std::vector<std::string>& words) {
  std::string results;
  std::int64_t mebibytes = 256;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--results" && i + 1 < words.size()) {
      results = words[++i];
    } else {
      mebibytes = std::atoll(words[i].c_str());
    }
  }
  if (mebibytes < 1 || mebibytes > 65536) throw Error("MiB: a number from 1 to 65536");
  const std::int64_t count = mebibytes * (1 << 20) / (columns * 4);
  device::MemoryLedger ledger;
  const auto ops = ops::make_cpu_ops(0, &ledger);
  Tensors wide(*ops, ledger, DType::f32, count), narrow(*ops, ledger, DType::bf16, 2 * count);
  std::vector<Row> rows;
  const auto unit = static_cast<double>(wide.a.bytes());
  for (const Tensors* t : {&wide, &narrow}) {
    add_norms(rows, *ops, *t);
    add_others(rows, *ops, *t);
  }
  add_updates(rows, *ops, wide, narrow);
  const auto copy = [&] { return 2 * unit / seconds_of([&] { ops->copy(wide.b, wide.a); }); };
  std::vector<double> copies = {copy()};  // bytes per second
  for (int round = 0; round < 9; ++round) {
    for (Row& row : rows) {
      row.seconds.push_back(seconds_of(row.work));
      copies.push_back(copy());
      const double beside = (copies.back() + copies[copies.size() - 2]) / 2;
      row.achieved.push_back(row.bytes / row.seconds.back() / beside);
    }
  }
  fmt::print("{} MiB, {} threads; copies, GB/s read and written: median {:.1f}, best {:.1f}\n",
             mebibytes, omp_get_max_threads(), median(copies) / 1e9,
             *std::max_element(copies.begin(), copies.end()) / 1e9);
  fmt::print("{:<56}{:>6}{:>10}{:>9}{:>10}\n", "operation", "type", "ms", "GB/s", "achieved");
  nlohmann::json all{{"mebibytes", mebibytes}, {"copies", median(copies)}, {"operations", {}}};
  for (const Row& row : rows) {
    const double seconds = median(row.seconds), achieved = median(row.achieved);
    fmt::print("{:<56}{:>6}{:>10.2f}{:>9.1f}{:>10.2f}\n", row.name, name_of(row.type),
               1e3 * seconds, row.bytes / seconds / 1e9, achieved);
    all["operations"].push_back({{"name", row.name},
                                 {"type", name_of(row.type)},
                                 {"bytes", row.bytes},
                                 {"seconds", seconds},
                                 {"achieved", achieved}});
  }
  if (!results.empty()) replace_file(results, report::to_text(all, 2) + "\n");
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  try {
    return trireme::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "memory_bench: {}\n", error.what());
    return 1;
  }
}
