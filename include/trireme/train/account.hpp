// What each rank did in its steps, and how the root rank learns of it at the end of a run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/grid.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/setup.hpp"

/// For run.json, which lists the algorithms that a backend chose.
namespace trireme::ops {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Choice, rows, columns, depth, factors, result, form, accumulates,
                                   epilogue, algorithm, source)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AttentionChoice, batch, tokens, heads, groups, size, type,
                                   backward, kernel, workspace, refusal)
}  // namespace trireme::ops

namespace trireme::train {

/// Counts a rank's communication, seconds and padding in its steps, and leaves out what happens
/// between them.
class StepAccount {
 public:
  StepAccount(comm::Grid& grid, Recorder& recorder) : grid_(grid), recorder_(recorder) {}
  void begin();
  /// Adds what the grid's groups have counted to the steps.
  void count_traffic();
  /// Adds tokens of padding that the rank has read.
  void count_padding(std::int64_t tokens) { padding_ += tokens; }

  /// Leaves out the communication of its lifetime, and with `sections` the seconds of all sections
  /// that end in it.
  class Pause {
   public:
    Pause(StepAccount& account, bool sections);
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause();

   private:
    StepAccount& account_;
    bool sections_;
    std::map<std::string, double> before_;
  };

  /// {"sections": seconds by name, "communication": by group, per step, "padding": tokens}.
  /// `least`: bytes that a step must send, by group.
  nlohmann::json to_json(std::int64_t steps, const std::map<std::string, double>& least) const;

 private:
  comm::Grid& grid_;
  Recorder& recorder_;
  std::vector<std::pair<std::string, comm::Traffic>> traffic_;  // of the steps, by group
  std::map<std::string, double> left_out_;                      // seconds of sections
  std::int64_t padding_ = 0;
};

/// Bytes that a rank will hold by use, and the uses of which the prediction knows a part.
struct MemoryPrediction {
  std::map<device::Use, std::int64_t> bytes;
  std::set<device::Use> in_part;
};
/// A rank's memory by use for its account: {"predicted", "measured"}, and "in_part" where the
/// prediction is.
nlohmann::json memory_account(const MemoryPrediction& predicted,
                              const device::MemoryLedger& ledger);

/// What rank 0 learns of all ranks of a job, its servers too, at its end; the others know
/// `resident` and `ending`.
struct Closing {
  std::vector<nlohmann::json> ranks;  // accounts
  std::int64_t resident = 0;          // the most of any
  std::vector<report::SectionTimes> sections;
  report::Trace trace;
  Ending ending = Ending::done;  // done only where it is for every rank
};
/// Collective over `everyone`.
Closing close_job(comm::Communicator& everyone, const Recorder& recorder,
                  const nlohmann::json& account, Ending ending);

/// For run.json and summary.json: bytes by use, memory by use, seconds by section.
nlohmann::json prediction_json(const std::map<device::Use, std::int64_t>& predicted);
nlohmann::json memory_json(const std::vector<report::MemoryRow>& rows);
nlohmann::json sections_json(const std::vector<report::SectionTimes>& sections);
/// By group: the most that a rank sent per step and the least that one had to, in bytes, the means
/// over ranks of both, and the most seconds of a rank; each where some rank sent anything.
nlohmann::json communication_of(const std::vector<nlohmann::json>& ranks);
/// Tokens of padding in the global batches that the ranks of a grid have read: those of its first
/// tensor, context and pipeline ranks.
std::int64_t padding_of(const std::vector<nlohmann::json>& ranks);
/// The order of memory rows: by distance from the prediction, then by bytes held.
inline std::pair<std::int64_t, std::int64_t> weight_of(const report::MemoryRow& row) {
  return {std::abs(row.measured - row.predicted), row.measured};
}
/// The accounts' memory by use; uses of servers have names of their own. A row is that of the rank
/// that differs most from its prediction, or of the fullest rank if none differs.
std::vector<report::MemoryRow> memory_of(const std::vector<nlohmann::json>& ranks);

/// The first kind of attention that a library refused, one line; empty: none.
std::string attention_warning(const std::vector<ops::AttentionChoice>& choices);
/// A rank's graphs, for its account in summary.json.
nlohmann::json graphs_account(const parallel::StepGraphs& graphs);
/// The first rank whose device refused a capture, by its account, one line; empty: none.
std::string refusals_warning(const std::vector<nlohmann::json>& accounts);

/// Lower bounds of the bytes that this rank sends in one step, by the names of Grid::traffic; zeros
/// are left out. An all-reduce of S bytes over n ranks sends 2(n−1)/n·S (Patarasuk and Yuan, 2009),
/// a reduce-scatter or an all-gather (n−1)/n·S, a message S. Gradients count as fp32, parameters
/// and activations in the type that units read. Tensor parallelism has two all-reduces of a
/// micro-batch's activations in the forward of each block and two in its backward, one for the
/// embedding's output, and one for the gradient of the head's input (Shoeybi et al., 2019).
/// Messages that recomputation repeats do not count, since activations could be kept. Agreements
/// on a few numbers (norms, losses) do not count.
std::map<std::string, double> least_traffic(const parallel::Stage& stage);

/// Bytes that this rank sends at least in one average of `buffers` flat buffers
/// (Averaging::summed_buffers) over so many workers: all-reduces, 2(n−1)/n of 4 bytes of each
/// element.
double average_traffic(const parallel::Stage& stage, int workers, std::int64_t buffers);

}  // namespace trireme::train
