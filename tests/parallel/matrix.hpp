// The layout matrix: models and layouts compared with one rank. Pure.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "covering.hpp"
#include "layouts.hpp"

namespace trireme::parallel::test {

/// A model and how its sums are split in reproducible mode.
struct MatrixModel {
  std::string name;
  model::ModelConfig config;
  int virtual_tensor = 8, virtual_data = 8;
};

/// Small, with sizes that nothing divides.
inline const std::vector<MatrixModel>& matrix_models() {
  static const std::vector<MatrixModel> models = [] {
    const auto make = [](bool llama, int layers, int heads, int kv_heads, int vocabulary, bool tied,
                         double dropout) {
      model::ModelConfig config;
      config.layers = layers;
      config.width = 24;
      config.heads = heads;
      config.kv_heads = kv_heads;
      config.vocabulary = vocabulary;
      config.sequence = 11;
      config.tied = tied;
      config.dropout = config.attention_dropout = dropout;
      if (llama) {
        config.hidden = 34;
        config.norm = "rmsnorm";
        config.position = "rotary";
        config.activation = "swiglu";
        config.bias = false;
      } else {
        config.hidden = 49;
      }
      config.resolve();
      return config;
    };
    return std::vector<MatrixModel>{
        {"gpt2", make(false, 3, 4, 4, 53, true, 0.1), 8, 4},
        // Fewer heads than tensor ranks: one has none.
        {"gpt2-deep", make(false, 7, 3, 3, 61, false, 0), 4, 8},
        // Six query heads do not divide by four, and there are fewer key/value heads than that.
        {"llama", make(true, 7, 6, 2, 47, false, 0), 4, 4},
        {"llama-tied", make(true, 3, 4, 1, 59, true, 0), 8, 16},
    };
  }();
  return models;
}

struct MatrixCase {
  int model = 0;
  LayoutCase layout;
  std::string to_string() const {
    return matrix_models()[static_cast<std::size_t>(model)].name + " " + layout.to_string();
  }
};

/// Sequences of a global batch: the largest data degree times the largest micro-batch.
inline constexpr int matrix_batch = 16;

/// The meaning of a row's values.
inline MatrixCase matrix_case(const Row& row) {
  struct Zero {
    int stage;
    bool reshard;
    bool hybrid;
  };
  static constexpr Zero zeros[] = {{0, true, false}, {1, true, false},  {2, true, false},
                                   {3, true, false}, {3, false, false}, {1, true, true},
                                   {2, true, true},  {3, true, true}};
  static constexpr const char* schedules[] = {"gpipe", "1f1b", "interleaved", "zero-bubble"};
  const auto at = [&](int factor) { return row[static_cast<std::size_t>(factor)]; };
  const Zero& zero = zeros[at(4)];
  LayoutCase layout;
  layout.tensor = 1 << at(0);
  layout.pipeline = 1 << at(1);
  layout.data = 1 << at(2);
  layout.schedule = schedules[at(3)];
  layout.virtual_stages = at(3) == 2 ? 2 : 1;
  layout.zero = zero.stage;
  layout.reshard = zero.reshard;
  layout.shard = zero.hybrid ? 2 : 0;
  layout.sequence_parallel = at(5) == 1;
  layout.recompute = static_cast<model::Recompute>(at(6));
  layout.micro_batch = 1 << at(7);
  layout.threads = 1 + at(8);
  return {at(9), layout};
}

/// All meaningful layouts of eight ranks.
inline Space matrix_space() {
  Space space;
  space.values = {3, 3, 3, 4, 8, 2, 4, 3, 2, static_cast<int>(matrix_models().size())};
  space.feasible = [](const Row& row) {
    const MatrixCase each = matrix_case(row);
    const LayoutCase& layout = each.layout;
    const auto units = matrix_models()[static_cast<std::size_t>(each.model)].config.layers + 2;
    if (layout.ranks() > 8) return false;
    if (layout.virtual_stages > 1 && layout.pipeline == 1) return false;
    if (layout.pipeline * layout.virtual_stages > units) return false;
    // Groups of two that hold replicas of each other.
    return layout.shard == 0 || layout.data == 4;
  };
  return space;
}

inline std::vector<MatrixCase> cases_of(const std::vector<Row>& rows) {
  std::vector<MatrixCase> cases;
  for (const Row& row : rows) cases.push_back(matrix_case(row));
  return cases;
}

inline std::vector<Row> matrix_rows() { return cover(matrix_space(), 64); }

/// `count` random rows of all feasible ones.
inline std::vector<Row> random_rows(std::uint64_t seed, int count) {
  const std::vector<Row> all = feasible_rows(matrix_space());
  std::mt19937_64 generator(seed);
  std::vector<Row> rows;
  for (int i = 0; i < count; ++i) rows.push_back(all[generator() % all.size()]);
  return rows;
}

}  // namespace trireme::parallel::test
