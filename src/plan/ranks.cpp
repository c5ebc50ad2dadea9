#include "trireme/plan/ranks.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/params/layout.hpp"
#include "trireme/state/update.hpp"

namespace trireme::plan {

namespace {

/// The table's rows that differ in what tensor parallelism makes of them, as one unit's.
params::ParameterTable distinct_rows(const params::ParameterTable& table) {
  params::ParameterTable distinct;
  for (const params::Parameter& row : table.rows()) {
    const bool known = std::ranges::any_of(distinct.rows(), [&](const params::Parameter& other) {
      return other.shape == row.shape && other.split == row.split && other.parts == row.parts;
    });
    if (known) continue;
    params::Parameter copy = row;
    copy.units = {0};
    distinct.add(std::move(copy));
  }
  return distinct;
}

/// Each at least the other's.
bool covers(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  return std::ranges::equal(a, b, std::greater_equal<>());
}

}  // namespace

std::vector<int> equal_tensor_ranks(const model::Transformer& model,
                                    parallel::StageOptions options) {
  const params::ParameterTable table = distinct_rows(model.table());
  const std::int64_t length = model.config().sequence / parallel::shares_of(options).context.pairs;
  const std::int64_t rows = length * options.sequences;
  std::map<std::vector<std::int64_t>, int> known;
  std::vector<int> ranks;
  for (int rank = 0; rank < options.place.tensor; ++rank) {
    options.place.tensor_rank = rank;
    const params::Tiles tiles = parallel::shares_of(options).tiles;
    // The first tensor rank alone writes rows that are not split.
    std::vector<std::int64_t> sizes{rank == 0 ? 1 : 0};
    for (int v = tiles.first; v < tiles.first + tiles.count; ++v) {
      for (const std::int64_t whole : {rows, length, model.config().vocabulary}) {
        sizes.push_back(params::tile_of(whole, v, tiles.all).size());
      }
    }
    const params::Layout layout(table, {{0, 1}}, tiles);
    for (const params::Block& block : layout.blocks()) {
      for (const params::Range& slice : block.slices) sizes.push_back(slice.size());
      for (const params::Range& own : layout.owned(block)) sizes.push_back(own.size());
    }
    const auto messages = state::TensorSums::largest_messages(layout, parallel::shares_of(options));
    sizes.push_back(messages.heads);
    ranks.push_back(known.try_emplace(std::move(sizes), rank).first->second);
  }
  return ranks;
}

std::vector<int> distinct_tensor_ranks(const model::Transformer& model,
                                       parallel::StageOptions options) {
  const std::vector<int> equal = equal_tensor_ranks(model, std::move(options));
  const std::set<int> lowest(equal.begin(), equal.end());
  return {lowest.begin(), lowest.end()};
}

std::vector<int> fullest_data_ranks(const parallel::Stage& stage, int data, bool snapshots) {
  const parallel::Place& place = stage.options().place;
  const bool sharded = stage.options().zero > 0;
  const state::ShardMap& shards = stage.shards();
  std::vector<std::int64_t> written, written_shards;
  if (snapshots) {
    written = checkpoint::piece_elements(stage.layout(), {stage.layout(), data, 0});
    written_shards = checkpoint::piece_elements(stage.layout(), shards);
  }
  const int differ =
      snapshots ? data : std::min(data, place.context * (sharded ? shards.parts() : 1));
  std::vector<std::pair<int, std::vector<std::int64_t>>> fullest;
  for (int rank = place.context_rank; rank < differ; rank += place.context) {
    std::vector<std::int64_t> sizes;
    const auto shard = static_cast<std::size_t>(rank % shards.parts());
    for (const state::ShardMap::Kind& kind : shards.kinds()) {
      sizes.push_back(shards.counts(kind.group)[shard]);
    }
    if (snapshots) {
      const bool first = rank < shards.parts();  // the first shard group writes
      sizes.push_back(written[static_cast<std::size_t>(rank)]);
      sizes.push_back(first ? written_shards[shard] : 0);
    }
    const auto covered = [&](const auto& other) { return covers(other.second, sizes); };
    if (std::ranges::any_of(fullest, covered)) continue;
    std::erase_if(fullest, [&](const auto& other) { return covers(sizes, other.second); });
    fullest.emplace_back(rank, std::move(sizes));
  }
  std::vector<int> ranks;
  for (const auto& [rank, sizes] : fullest) ranks.push_back(rank);
  return ranks;
}

}  // namespace trireme::plan
