// The loss over splits of datasets.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

/// Sums over the first `samples` windows (0: all) of a split; collective over the grid, whose data
/// ranks share out the windows. The same bits in every layout in reproducible mode. `watchdog`
/// gets a beat and `progress` is shown in every round. Throws AgreedError where a rank cannot read
/// its data.
parallel::LossSum evaluate_split(parallel::Replica& replica, data::TokenReader& reader,
                                 std::int64_t samples, bool document_mask, comm::Grid& grid,
                                 comm::Watchdog& watchdog, report::PhaseProgress& progress);

/// What an evaluation found.
struct Evaluation {
  std::vector<std::pair<std::string, parallel::LossSum>> sources;  // by name
  /// Over all target tokens; its mean is that of the sources' means, weighted by their parts of the
  /// blend, or evenly where none of them has any.
  parallel::LossSum all;
};
/// Of one sum for each of `splits`, at sample `samples` of the run.
Evaluation evaluation_of(const data::Corpus& corpus, const std::vector<data::Corpus::Split>& splits,
                         const std::vector<parallel::LossSum>& sums, std::int64_t samples);

}  // namespace trireme::train
