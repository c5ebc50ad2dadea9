// Ranks of any grid, simulated in one process: their state, and the expected state.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/model/transformer.hpp"

namespace trireme::checkpoint::test {

struct Degrees {
  int tensor = 1, pipeline = 1, virtual_stages = 1, data = 1;
  int shard = 1;  // data ranks that share the state
  int zero = 0;
  bool reproducible = false;  // 8 tiles at every tensor degree

  int ranks() const { return tensor * pipeline * data; }
  std::string text() const {
    return fmt::format("tensor {} pipeline {}x{} data {} shard {} zero {}{}", tensor, pipeline,
                       virtual_stages, data, shard, zero, reproducible ? " reproducible" : "");
  }
};

/// Every kind of split and copy, separately and combined.
inline std::vector<Degrees> degrees_to_try() {
  return {{},
          {.tensor = 2},
          {.tensor = 3},
          {.tensor = 4},
          {.reproducible = true},
          {.tensor = 2, .reproducible = true},
          {.tensor = 4, .reproducible = true},
          {.pipeline = 2},
          {.pipeline = 3},
          {.pipeline = 2, .virtual_stages = 2},
          {.data = 3},
          {.data = 2, .shard = 2, .zero = 1},
          {.data = 4, .shard = 4, .zero = 3},
          {.tensor = 2, .data = 8, .shard = 8, .zero = 3},
          {.data = 4, .shard = 2, .zero = 1},  // hybrid
          {.data = 4, .shard = 2, .zero = 3},
          {.tensor = 2, .pipeline = 2, .data = 2, .shard = 2, .zero = 2},
          {.tensor = 3, .data = 4, .shard = 2, .zero = 3},
          {.tensor = 4, .pipeline = 3, .data = 2, .shard = 2, .zero = 3},
          {.tensor = 4,
           .pipeline = 2,
           .virtual_stages = 2,
           .data = 2,
           .shard = 2,
           .zero = 1,
           .reproducible = true},
          {.tensor = 2, .data = 4, .shard = 4, .zero = 3, .reproducible = true}};
}

/// The rows of `table` with random first values everywhere: ones and zeros would hide misplaced
/// data.
inline params::ParameterTable random_table(const params::ParameterTable& table) {
  params::ParameterTable result;
  for (params::Parameter row : table.rows()) {
    row.initialization = {params::Initialization::Kind::normal, 1.0};
    result.add(row);
  }
  return result;
}

/// The table of a model of 4 layers with heads, vocabulary (101) and hidden size that divide by
/// little. Its larger matrices exceed params::norm_block elements on each of 4 tensor ranks, so
/// that shards end inside a row.
inline params::ParameterTable make_table(const std::string& kind) {
  model::ModelConfig config;
  config.layers = 4;
  config.width = 48;
  config.heads = kind == "gpt" ? 3 : 6;
  config.kv_heads = kind == "gpt" ? 0 : 2;
  config.hidden = 350;
  config.vocabulary = 101;
  config.sequence = 90;
  config.tied = kind != "llama-untied";
  if (kind != "gpt") {
    config.norm = "rmsnorm";
    config.position = "rotary";
    config.activation = "swiglu";
    config.bias = false;
  }
  config.resolve();
  return random_table(model::Transformer(config).table());
}

constexpr int model_units = 6;  // embedding, blocks, head

/// One rank of a grid with its parameters and one optimizer buffer.
class Rank {
 public:
  Rank(const params::ParameterTable& table, const Degrees& degrees, int rank)
      : degrees_(degrees),
        data_rank_(rank / degrees.tensor % degrees.data),
        layout_(table, chunks(degrees, rank / degrees.tensor / degrees.data),
                tiles(degrees, rank % degrees.tensor)),
        state_(layout_,
               state::ShardMap(layout_, degrees.zero > 0 ? degrees.shard : 1,
                               degrees.zero > 0 ? data_rank_ % degrees.shard : 0),
               options(degrees, layout_.tiles()), ledger_) {
    moment_.resize(static_cast<std::size_t>(state_.shards().elements()));
  }

  /// The first weights of `seed`, in this rank's shards if `sharded`.
  std::vector<float> expected(std::uint64_t seed, bool sharded) const {
    std::vector<float> whole(static_cast<std::size_t>(layout_.elements()));
    params::initialize(layout_, seed, {{{0, layout_.elements()}, 0}},
                       Tensor(whole.data(), {layout_.elements()}));
    if (!sharded) return whole;
    const state::ShardMap& shards = state_.shards();
    std::vector<float> own(static_cast<std::size_t>(shards.elements()));
    for (int g = 0; g < shards.groups(); ++g) {
      std::copy(whole.begin() + shards.own(g).begin, whole.begin() + shards.own(g).end,
                own.begin() + shards.offset(g));
    }
    return own;
  }

  /// Cached: otherwise most of the tests' time.
  void set_expected(std::uint64_t seed) {
    parameters_expected_ = expected(seed, state_.parameters_sharded());
    moment_expected_ = expected(seed + 1, moment_sharded());
  }

  void fill() {
    std::copy(parameters_expected_.begin(), parameters_expected_.end(),
              state_.parameters().as<float>());
    moment_ = moment_expected_;
  }

  void append(std::vector<Piece>& pieces) const {
    const Writers writers{data_rank_, degrees_.data};
    append_pieces(pieces, "parameters", state_, state_.parameters(), state_.parameters_sharded(),
                  writers);
    append_pieces(pieces, "adamw.moment1", state_, moment(), moment_sharded(), writers);
  }

  /// Loads over garbage and compares every bit; "" or what differs.
  std::string load_and_compare(const Reader& reader) {
    const auto check = [&](const std::string& name, const Tensor& flat, bool sharded,
                           const std::vector<float>& right) -> std::string {
      std::fill_n(flat.as<float>(), flat.elements(), std::numeric_limits<float>::quiet_NaN());
      load_pieces(reader, name, state_, flat, sharded);
      for (std::size_t i = 0; i < right.size(); ++i) {
        if (std::bit_cast<std::uint32_t>(right[i]) !=
            std::bit_cast<std::uint32_t>(flat.as<float>()[i])) {
          return fmt::format("{}: element {} of {}", name, i, right.size());
        }
      }
      return "";
    };
    std::string fault =
        check("parameters", state_.parameters(), state_.parameters_sharded(), parameters_expected_);
    if (!fault.empty()) return fault;
    return check("adamw.moment1", moment(), moment_sharded(), moment_expected_);
  }

 private:
  static std::vector<params::Range> chunks(const Degrees& degrees, int stage) {
    const std::int64_t all = std::int64_t{degrees.pipeline} * degrees.virtual_stages;
    std::vector<params::Range> result;
    for (std::int64_t k = stage; k < all; k += degrees.pipeline) {
      result.push_back(params::tile_of(model_units, k, all));
    }
    return result;
  }
  static params::Tiles tiles(const Degrees& degrees, int tensor_rank) {
    const int all = degrees.reproducible ? 8 : degrees.tensor;
    return {all, all / degrees.tensor * tensor_rank, all / degrees.tensor};
  }
  static state::StateOptions options(const Degrees& degrees, const params::Tiles& tiles) {
    state::StateOptions result;
    result.train = false;
    result.zero = degrees.zero;
    result.shares.tiles = tiles;
    result.shares.reproducible = degrees.reproducible;
    return result;
  }
  Tensor moment() const {
    return {const_cast<float*>(moment_.data()), {static_cast<std::int64_t>(moment_.size())}};
  }
  bool moment_sharded() const { return degrees_.zero > 0; }

  Degrees degrees_;
  int data_rank_;
  device::MemoryLedger ledger_;
  params::Layout layout_;
  state::ModelState state_;
  std::vector<float> moment_, parameters_expected_, moment_expected_;
};

/// All ranks of a grid, holding the first weights of `seed`.
inline std::vector<std::unique_ptr<Rank>> make_ranks(const params::ParameterTable& table,
                                                     const Degrees& degrees, std::uint64_t seed) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < degrees.ranks(); ++rank) {
    ranks.push_back(std::make_unique<Rank>(table, degrees, rank));
    ranks.back()->set_expected(seed);
    ranks.back()->fill();
  }
  return ranks;
}

}  // namespace trireme::checkpoint::test
