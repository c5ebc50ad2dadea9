// Operations on tensors larger than the caches, compared with a copy and with a plain loop over as
// many tensors (streams.hpp), of the same run with the same threads.
//   memory_bench [--results FILE] [--only WORD] [--rounds N] [MiB]
// MiB is the size of one activation; by default four times the last-level cache, at least 256 MiB,
// at most a sixteenth of the machine's memory: six of them are held at a time. WORD: rows whose
// name contains it.
// Bytes are the minimum that an operation must move: once for each tensor that is read and for each
// that is written, twice for one updated in place. Lines that are read only to be overwritten do
// not count; the copy writes past the caches. Each time of an operation is taken between two of a
// copy and two of the loop, since other users change the bandwidth: figures are medians of the
// ratios to the mean of the two. Threads: OMP_NUM_THREADS.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>

#include <omp.h>
#include <unistd.h>

#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"

#include "streams.hpp"

namespace trireme::bench {
namespace {

constexpr std::int64_t columns = 1024, vocabulary = 50257;
constexpr int slots = 6;

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

/// Bytes of the last-level cache, 0 if the system does not report them.
std::int64_t last_level_cache() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  return std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE));
#else
  return 0;
#endif
}

/// MiB of an activation, as defined at the head of this file.
std::int64_t default_size() {
  const std::int64_t memory =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGE_SIZE) / 16;
  return std::min(std::max<std::int64_t>(256, 4 * last_level_cache() >> 20), memory >> 20);
}

/// One operation, the bytes it must move, and its times.
struct Row {
  std::string name;
  Streams streams;
  double bytes;
  std::function<void()> work;
  std::vector<double> seconds = {}, of_copy = {}, of_streams = {};
};

/// Contiguous memory of `slots` activations.
struct Memory {
  explicit Memory(std::int64_t mebibytes)
      : bytes(mebibytes << 20),
        ops(ops::make_cpu_ops(0, &ledger)),
        buffer(ledger, device::Use::workspace, static_cast<std::size_t>(slots * bytes)) {}
  /// A tensor that begins at slot `slot`.
  Tensor at(int slot, DType type, const Shape& shape) const {
    return buffer.view(type, shape, static_cast<std::size_t>(slot * bytes));
  }
  double copy() const {
    const Shape shape{bytes / 4};
    const Tensor from = at(0, DType::f32, shape), to = at(1, DType::f32, shape);
    return seconds_of([&] { ops->copy(to, from); });
  }
  /// Seconds for the bytes that the operation moves.
  double stream(const Row& row) const {
    std::vector<std::uint16_t*> tensors;
    for (const int slot : {0, 1, 2, 3, 5, 4}) {  // 4: AdamW's squares, which stay positive
      tensors.push_back(static_cast<std::uint16_t*>(at(slot, DType::bf16, {bytes / 2}).data()));
    }
    const Streams& s = row.streams;
    const double moved =
        static_cast<double>(bytes) * (s.reads + s.writes + 2 * s.updates + (s.halves ? 0.5 : 0.0));
    const auto elements = static_cast<std::size_t>(bytes / 2);
    return row.bytes / moved * seconds_of([&] { run_streams(s, tensors, elements); });
  }
  std::int64_t bytes;
  device::MemoryLedger ledger;
  std::unique_ptr<ops::Ops> ops;
  device::Buffer buffer;
};

/// Tensors of one type over that memory: a, b and c of one activation each; `pair` is b and c;
/// `dpair` and the moments follow.
struct Tensors {
  Tensors(Memory& memory, DType type) : ops(memory.ops.get()), memory_(&memory) {
    const std::int64_t rows = memory.bytes / columns / static_cast<std::int64_t>(size_of(type));
    const std::int64_t tokens = rows * columns / vocabulary;
    const Shape shape{rows, columns}, wide{rows, 2 * columns};
    a = memory.at(0, type, shape);
    b = memory.at(1, type, shape);
    c = memory.at(2, type, shape);
    first = memory.at(3, type, shape);
    second = memory.at(4, type, shape);
    rounded = memory.at(5, DType::bf16, shape);
    pair = memory.at(1, type, wide);
    dpair = memory.at(3, type, wide);
    logits = memory.at(0, type, {tokens, vocabulary});
    gain = make(type, {columns}, 1.0F);
    bias = make(type, {columns}, 0.1F);
    dgain = make(DType::f32, {columns}, 0.0F);
    dbias = make(DType::f32, {columns}, 0.0F);
    mean = make(DType::f32, {rows}, 0.1F);
    rstd = make(DType::f32, {rows}, 0.5F);
    maximum = make(DType::f32, {tokens}, 4.0F);
    sum = make(DType::f32, {tokens}, static_cast<float>(vocabulary));
    target_logit = make(DType::f32, {tokens}, 0.0F);
    factor = make(DType::f32, {tokens}, 1.0F);
    ids.resize(static_cast<std::size_t>(tokens));
    std::iota(ids.begin(), ids.end(), 0);
    targets = Tensor(ids.data(), {tokens});
  }
  /// The operations' inputs, some of them results of others: values between −4 and 4.
  void prepare() const {
    std::vector<float> values(static_cast<std::size_t>(257 * columns));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 2654435761U % 8191U) / 1024.0F - 4.0F;
    }
    const Tensor block(values.data(), {257, columns});
    for (const Tensor* x : {&a, &b, &c}) {
      for (std::int64_t row = 0; row < x->extent(0); row += 257) {
        const std::int64_t end = std::min(x->extent(0), row + 257);
        ops->copy(x->slice(0, row, end), block.slice(0, 0, end - row));
      }
    }
    ops->fill(first, 0.1F);
    ops->fill(second, 0.01F);
  }
  ops::Ops* ops;
  Tensor a, b, c, first, second, rounded, pair, dpair, gain, bias, dgain, dbias, mean, rstd;
  Tensor logits, maximum, sum, target_logit, factor, targets;
  std::vector<std::int32_t> ids;

 private:
  Tensor make(DType type, const Shape& shape, float value) {
    buffers_.emplace_back(memory_->ledger, device::Use::workspace,
                          static_cast<std::size_t>(shape.elements()) * size_of(type));
    const Tensor x = buffers_.back().view(type, shape);
    ops->fill(x, value);
    return x;
  }
  Memory* memory_;
  std::vector<device::Buffer> buffers_;
};

void add_norms(std::vector<Row>& rows, const Tensors& t) {
  ops::Ops& ops = *t.ops;
  const auto unit = static_cast<double>(t.a.bytes());
  rows.push_back({"layer_norm", {1, 1}, 2 * unit, [&ops, &t] {
                    ops.norm(t.b, t.mean, t.rstd, t.a, t.gain, t.bias, 1e-5F);
                  }});
  rows.push_back({"rms_norm", {1, 1}, 2 * unit, [&ops, &t] {
                    ops.norm(t.b, {}, t.rstd, t.a, t.gain, {}, 1e-5F);
                  }});
  for (const bool add : {false, true}) {
    const std::string what =
        add ? "backward for inputs, added to the residual" : "backward for inputs";
    const Streams streams = add ? Streams{2, 0, 1} : Streams{2, 1};
    const double bytes = (add ? 4 : 3) * unit;
    rows.push_back({"layer_norm, " + what, streams, bytes, [&ops, &t, add] {
                      ops.norm_backward_input(t.c, t.b, t.a, t.gain, t.mean, t.rstd,
                                              add ? t.c : Tensor());
                    }});
    rows.push_back({"rms_norm, " + what, streams, bytes, [&ops, &t, add] {
                      ops.norm_backward_input(t.c, t.b, t.a, t.gain, {}, t.rstd,
                                              add ? t.c : Tensor());
                    }});
  }
  rows.push_back({"layer_norm, backward for weights", {2}, 2 * unit, [&ops, &t] {
                    ops.norm_backward_weight(t.dgain, t.dbias, t.b, t.a, t.mean, t.rstd);
                  }});
  rows.push_back({"rms_norm, backward for weights", {2}, 2 * unit, [&ops, &t] {
                    ops.norm_backward_weight(t.dgain, {}, t.b, t.a, {}, t.rstd);
                  }});
}

void add_others(std::vector<Row>& rows, const Tensors& t) {
  ops::Ops& ops = *t.ops;
  const auto unit = static_cast<double>(t.a.bytes());
  const auto logits = static_cast<double>(t.logits.bytes());
  rows.push_back({"gelu", {1, 1}, 2 * unit, [&ops, &t] { ops.gelu(t.b, t.a); }});
  rows.push_back(
      {"gelu_backward", {2, 1}, 3 * unit, [&ops, &t] { ops.gelu_backward(t.c, t.b, t.a); }});
  rows.push_back({"swiglu", {2, 1}, 3 * unit, [&ops, &t] { ops.swiglu(t.a, t.pair); }});
  rows.push_back({"swiglu_backward", {3, 2}, 5 * unit, [&ops, &t] {
                    ops.swiglu_backward(t.dpair, t.a, t.pair);
                  }});
  rows.push_back({"add", {2, 1}, 3 * unit, [&ops, &t] { ops.add(t.c, t.b, t.a); }});
  rows.push_back({"column_sum", {1}, unit, [&ops, &t] { ops.column_sum(t.dgain, t.a); }});
  rows.push_back(
      {"row_maximum", {1}, logits, [&ops, &t] { ops.row_maximum(t.maximum, t.logits, false); }});
  rows.push_back({"exp_sum_and_target", {1}, logits, [&ops, &t] {
                    ops.exp_sum_and_target(t.sum, t.target_logit, t.logits, t.maximum, t.targets,
                                           0);
                  }});
  rows.push_back({"softmax_statistics", {1}, logits, [&ops, &t] {
                    ops.softmax_statistics(t.maximum, t.sum, t.target_logit, t.logits, t.targets);
                  }});
  rows.push_back({"cross_entropy_gradient", {0, 0, 1}, 2 * logits, [&ops, &t] {
                    ops.cross_entropy_gradient(t.logits, t.maximum, t.sum, t.targets, t.factor, 0);
                  }});
}

/// Updates of fp32 parameters: units read a copy in bf16, or the parameters themselves.
void add_updates(std::vector<Row>& rows, const Tensors& t) {
  ops::Ops& ops = *t.ops;
  const auto unit = static_cast<double>(t.a.bytes());
  for (const bool rounds : {false, true}) {
    ops::AdamWStep step;
    step.learning_rate = 1e-3F;
    step.weight_decay = 0.1F;
    ops::RoundedCopy copy;
    if (rounds) copy.values = t.rounded;
    rows.push_back(
        {rounds ? "adamw and a copy in bf16" : "adamw",
         {1, 0, 3, rounds},
         (rounds ? 7.5 : 7) * unit,
         [&ops, &t, step, copy] { ops.adamw(t.b, t.first, t.second, t.a, step, copy); }});
  }
  rows.push_back({"add_squares", {1}, unit, [&ops, &t] {
                    double sum = 0;
                    ops.add_squares(Tensor(&sum, {1}), t.a);
                  }});
}

/// Times the rows in `rounds` turns; every copy's seconds go to `copies`.
void measure(std::vector<Row>& rows, const Memory& memory, const Tensors& tensors, int rounds,
             std::vector<double>& copies) {
  for (int round = 0; round < rounds; ++round) {
    tensors.prepare();
    for (Row& row : rows) {
      const double copy_before = memory.copy(), loop_before = memory.stream(row);
      const double seconds = seconds_of(row.work);
      const double loop_after = memory.stream(row), copy_after = memory.copy();
      copies.push_back(copy_before);
      copies.push_back(copy_after);
      const double copied = 2 * static_cast<double>(memory.bytes);  // read and written
      const double copy = copied / ((copy_before + copy_after) / 2);
      row.seconds.push_back(seconds);
      row.of_copy.push_back(row.bytes / seconds / copy);
      row.of_streams.push_back((loop_before + loop_after) / 2 / seconds);
    }
  }
}

nlohmann::json print(const std::vector<Row>& rows, DType type) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) {
    const double seconds = median(row.seconds);
    const double copy = median(row.of_copy), streams = median(row.of_streams);
    fmt::print("{:<52}{:>5}{:>9.2f}{:>8.1f}{:>9.2f}{:>9.2f}  {}\n", row.name, name_of(type),
               1e3 * seconds, row.bytes / seconds / 1e9, copy, streams, name_of(row.streams));
    all.push_back({{"name", row.name},
                   {"type", name_of(type)},
                   {"bytes", row.bytes},
                   {"seconds", seconds},
                   {"streams", name_of(row.streams)},
                   {"of_a_copy", copy},
                   {"of_its_streams", streams}});
  }
  std::fflush(stdout);
  return all;
}

struct Options {
  std::string results, only;
  int rounds = 9;
  std::int64_t mebibytes = default_size();
};

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool more = i + 1 < words.size();
    if (words[i] == "--results" && more) {
      options.results = words[++i];
    } else if (words[i] == "--only" && more) {
      options.only = words[++i];
    } else if (words[i] == "--rounds" && more) {
      options.rounds = std::atoi(words[++i].c_str());
    } else {
      options.mebibytes = std::atoll(words[i].c_str());
    }
  }
  if (options.mebibytes < 1 || options.mebibytes > 65536) {
    throw Error("MiB: a number from 1 to 65536");
  }
  if (options.rounds < 1) throw Error("--rounds: a number from 1");
  return options;
}

int run(const std::vector<std::string>& words) {
  const Options options = parse(words);
  Memory memory(options.mebibytes);
  nlohmann::json operations = nlohmann::json::array();
  std::vector<double> copies;
  fmt::print("{} MiB, last-level cache {} MiB, {} threads\n", options.mebibytes,
             last_level_cache() >> 20, omp_get_max_threads());
  if (options.mebibytes << 20 < 2 * last_level_cache()) {
    fmt::print("less than twice the last-level cache: part of a tensor may stay there\n");
  }
  fmt::print("{:<52}{:>5}{:>9}{:>8}{:>9}{:>9}  {}\n", "operation", "type", "ms", "GB/s", "of copy",
             "of loop", "loop");
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensors tensors(memory, type);
    std::vector<Row> rows;
    add_norms(rows, tensors);
    add_others(rows, tensors);
    if (type == DType::f32) add_updates(rows, tensors);
    std::erase_if(rows,
                  [&](const Row& row) { return row.name.find(options.only) == std::string::npos; });
    measure(rows, memory, tensors, options.rounds, copies);
    for (const auto& row : print(rows, type)) operations.push_back(row);
  }
  if (copies.empty()) throw Error("--only: no operation's name contains \"{}\"", options.only);
  const double copied = 2 * static_cast<double>(memory.bytes);
  const double least = *std::min_element(copies.begin(), copies.end());
  fmt::print("copies, GB/s read and written: median {:.1f}, best {:.1f}\n",
             copied / median(copies) / 1e9, copied / least / 1e9);
  if (!options.results.empty()) {
    const nlohmann::json all{{"mebibytes", options.mebibytes},
                             {"copies", copied / median(copies)},
                             {"operations", operations}};
    replace_file(options.results, json_text(all, 2) + "\n");
  }
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
