// One unit on one rank with memory of its own: forward, then backward whole or in its two parts.
// The rank may be the first one of a group that the test supplies.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "trireme/comm/progress.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/transformer.hpp"

#include "oracle.hpp"

namespace trireme::model::test {

struct Options {
  Recompute recompute = Recompute::none;
  bool split = false;  // backward in two calls
  int tiles = 1;       // of this rank; more than one: reproducible mode
  // Of rank 0 of several tensor ranks:
  comm::Communicator* group = nullptr;
  ops::Ops* ops = nullptr;
  bool sequence_parallel = false;
  bool progress = false;  // a thread advances communication
};

/// What one forward and one backward gave.
struct Outcome {
  std::vector<float> y, dx;
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;  // logical
};

class UnitRun {
 public:
  static constexpr std::uint64_t seed = 5;
  static constexpr float gradient_factor = 0.25F;

  UnitRun(Transformer& model, int unit, const Parameters& parameters, const Tokens& tokens,
          const Options& options)
      : model_(model),
        unit_(*model.units()[static_cast<std::size_t>(unit)]),
        index_(unit),
        tokens_(tokens),
        options_(options) {
    tiles_ = options.tiles * (options.group != nullptr ? options.group->size() : 1);
    shares_.tiles = {tiles_, 0, options.tiles};
    shares_.sequence_parallel = options.sequence_parallel;
    shares_.reproducible = options.tiles > 1;
    shares_.recompute = options.recompute;
    make_memory();
    make_views(parameters);
    for (std::int64_t r = 0; r < tokens.rows(); ++r) {
      rows_.push_back(tokens.samples[static_cast<std::size_t>(r / tokens.length)] * tokens.length +
                      r % tokens.length);
    }
    const Shape flat{tokens.rows()}, table{tokens.sequences, tokens.length};
    batch_ = {.sequences = tokens.sequences,
              .length = tokens.length,
              .inputs = Tensor(tokens_.inputs.data(), flat),
              .targets = Tensor(tokens_.targets.data(), flat),
              .weights = Tensor(tokens_.weights.data(), flat),
              .positions = Tensor(tokens_.positions.data(), table),
              .samples = Tensor(tokens_.samples.data(), {tokens.sequences}),
              .rows = Tensor(rows_.data(), flat),
              .plain = tokens.documents.empty()};
    if (!tokens.documents.empty()) batch_.documents = Tensor(tokens_.documents.data(), table);
  }

  /// x and dy [r, C]; absent ones may be empty.
  Outcome run(std::vector<float> x, std::vector<float> dy) {
    const std::int64_t rows = shares_.rows(tokens_.rows()).size();
    const std::size_t size = static_cast<std::size_t>(rows * model_.config().width);
    Outcome out;
    out.y.resize(size);
    out.dx.resize(size);
    const auto view = [&](std::vector<float>& values) {
      return values.empty() ? Tensor() : Tensor(values.data(), {rows, model_.config().width});
    };
    float factor = gradient_factor;
    comm::Communicator& group = options_.group != nullptr ? *options_.group : *group_;
    std::optional<comm::Progress> progress;
    if (options_.progress) progress.emplace(std::vector<device::Stream*>{&stream_});
    const TensorGroup tensor{group, group, stream_, progress ? &*progress : nullptr};
    const UnitContext context{
        .ops = options_.ops != nullptr ? *options_.ops : *ops_,
        .batch = batch_,
        .shares = shares_,
        .tensor = tensor,
        .values = values_,
        .leaves = {{.gradients = &gradients_, .loss = Tensor(&out.loss, {1})}},
        .memory = memory(),
        .seed = seed,
        .gradient_factor = Tensor(&factor, {1}),
        .frequencies = model_.frequencies()};
    spoil(Area::scratch);
    unit_.forward(context, view(out.y), view(x));
    spoil(Area::scratch);
    spoil(Area::rebuilt);
    unit_.recompute(context, view(x));
    if (options_.split) {
      unit_.backward(context, BackwardPart::input, view(out.dx), view(dy), view(x));
      spoil(Area::scratch);
      unit_.backward(context, BackwardPart::weight, {}, view(dy), view(x));
    } else {
      unit_.backward(context, BackwardPart::all, view(out.dx), view(dy), view(x));
    }
    collect_gradients(out);
    return out;
  }

 private:
  struct Storage {
    int row = 0, tile = 0;  // tile −1: not split
    std::vector<float> value;
    std::vector<std::vector<float>> gradients;  // one, or one for each tile of rows
  };

  void make_memory() {
    UnitPlan plan(tokens_.rows(), shares_, options_.split);
    unit_.plan(plan);
    for (std::size_t area = 0; area < area_count; ++area) {
      arenas_[area] =
          device::Arena(ledger_, device::Use::workspace, plan.bytes(static_cast<Area>(area)));
    }
  }
  UnitMemory memory() {
    std::array<UnitMemory::Place, area_count> places;
    for (std::size_t area = 0; area < area_count; ++area) places[area] = {&arenas_[area], 0};
    return UnitMemory(places);
  }
  /// Fills an area with NaN.
  void spoil(Area area) {
    device::Arena& arena = arenas_[static_cast<std::size_t>(area)];
    if (arena.bytes() == 0) return;
    const Tensor all = arena.view(DType::u8, {static_cast<std::int64_t>(arena.bytes())}, 0);
    std::fill_n(all.as<std::uint8_t>(), arena.bytes(), std::uint8_t{0xff});
  }

  /// Calls visit(logical index, index in the tile) for each element of a tile of `row`.
  template <class Visit>
  void for_each_element(const params::Parameter& row, int tile, const Visit& visit) const {
    const std::int64_t columns = row.shape.dimensions() > 1 ? row.shape[1] : 1;
    const std::int64_t lines = row.shape[0];
    std::int64_t local = 0;
    const auto all = [&](std::int64_t begin, std::int64_t end, const auto& each) {
      for (std::int64_t i = begin; i < end; ++i) each(i);
    };
    if (tile < 0) return all(0, lines * columns, [&](std::int64_t i) { visit(i, i); });
    const auto slices = params::tile_slices(row, tile, tiles_);
    const bool by_lines = row.split == 0;
    const auto line = [&](std::int64_t l) {
      if (by_lines) return all(0, columns, [&](auto c) { visit(l * columns + c, local++); });
      for (const params::Range& slice : slices) {
        all(slice.begin, slice.end, [&](auto c) { visit(l * columns + c, local++); });
      }
    };
    if (!by_lines) return all(0, lines, line);
    for (const params::Range& slice : slices) all(slice.begin, slice.end, line);
  }

  void make_views(const Parameters& parameters) {
    const params::ParameterTable& table = model_.table();
    values_ = gradients_ = ParameterViews(table.rows().size());
    for (int r = 0; r < static_cast<int>(table.rows().size()); ++r) {
      const params::Parameter& row = table.row(r);
      const auto& units = row.units;
      if (std::find(units.begin(), units.end(), index_) == units.end()) continue;
      const bool split = row.split >= 0;
      for (int tile = split ? 0 : -1; tile < (split ? options_.tiles : 0); ++tile) {
        Storage storage{.row = r, .tile = tile, .value = {}, .gradients = {}};
        for_each_element(row, tile, [&](std::int64_t logical, std::int64_t) {
          storage.value.push_back(
              static_cast<float>(parameters.at(row.name)[static_cast<std::size_t>(logical)]));
        });
        const int copies = split ? 1 : gradient_copies(shares_);
        storage.gradients.assign(static_cast<std::size_t>(copies),
                                 std::vector<float>(storage.value.size()));
        storage_.push_back(std::move(storage));
      }
    }
    for (Storage& storage : storage_) {
      const params::Parameter& row = table.row(storage.row);
      Shape shape = row.shape;
      if (storage.tile >= 0) {
        shape[row.split] = 0;
        for (const params::Range& slice : params::tile_slices(row, storage.tile, tiles_)) {
          shape[row.split] += slice.size();
        }
      }
      values_.of(storage.row).emplace_back(storage.value.data(), shape);
      for (auto& gradient : storage.gradients) {
        gradients_.of(storage.row).emplace_back(gradient.data(), shape);
      }
    }
  }

  void collect_gradients(Outcome& out) const {
    for (const Storage& storage : storage_) {
      const params::Parameter& row = model_.table().row(storage.row);
      std::vector<float>& sum = out.gradients[row.name];
      sum.resize(static_cast<std::size_t>(row.shape.elements()));
      for (const auto& gradient : storage.gradients) {
        for_each_element(row, storage.tile, [&](std::int64_t logical, std::int64_t local) {
          sum[static_cast<std::size_t>(logical)] += gradient[static_cast<std::size_t>(local)];
        });
      }
    }
  }

  Transformer& model_;
  Unit& unit_;
  int index_;
  Tokens tokens_;
  Options options_;
  int tiles_ = 1;  // of all ranks
  Shares shares_;
  std::unique_ptr<ops::Ops> ops_ = ops::make_cpu_ops(1);
  std::unique_ptr<comm::Communicator> group_ = comm::make_self_communicator();
  device::Stream stream_;
  device::MemoryLedger ledger_;
  std::array<device::Arena, area_count> arenas_;
  std::vector<Storage> storage_;
  ParameterViews values_, gradients_;
  std::vector<std::int64_t> rows_;
  Microbatch batch_;
};

}  // namespace trireme::model::test
