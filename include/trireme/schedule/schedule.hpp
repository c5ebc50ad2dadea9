// Pipeline schedules as data: which stage computes what, in which order. No communication.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::schedule {

/// F forward; B backward, both parts together; I its part for inputs; W its part for weights.
enum class Kind { forward, backward, backward_input, backward_weight };
constexpr Kind kinds[] = {Kind::forward, Kind::backward, Kind::backward_input,
                          Kind::backward_weight};

char letter(Kind kind);  // 'F', 'B', 'I', 'W'

/// A unit of a stage's work: `kind` of `micro_batch` through the stage's `chunk`-th virtual stage.
struct Action {
  Kind kind = Kind::forward;
  int micro_batch = 0;
  int chunk = 0;
  bool operator==(const Action&) const = default;

  /// Whether it makes gradients for the virtual stage before.
  bool makes_gradient() const { return kind == Kind::backward || kind == Kind::backward_input; }
  /// Whether it is the last to read what forward kept.
  bool frees_stash() const { return kind == Kind::backward || kind == Kind::backward_weight; }
};

/// What every stage does in one step, in order. Virtual stages 0 … stages·chunks−1 are the model
/// from first unit to last; stage s holds s, s + stages, s + 2·stages, … (its chunks 0, 1, 2, …).
struct Schedule {
  std::string name;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;                            // virtual stages of each stage
  std::vector<std::vector<Action>> actions;  // [stages][…]

  int virtual_stages() const { return stages * chunks; }
  int virtual_stage(int stage, int chunk) const { return chunk * stages + stage; }
  /// Whether any backward is split into I and W.
  bool splits_backward() const;
};

/// The names that `make_schedule` knows.
const std::vector<std::string>& schedule_names();

/// One of
/// - gpipe: all forwards, then all backwards (Huang et al. 2019); chunk by chunk where chunks > 1;
/// - 1f1b: as many forwards as there are stages ahead, then forward and backward in turn
///   (PipeDream-Flush, Narayanan et al. 2021, section 2.2.1);
/// - interleaved: 1F1B over several chunks per stage, micro-batches in rounds of `stages`
///   (Narayanan et al. 2021, section 2.2.2); where `stages` does not divide `micro_batches`, in
///   micro_batches / stages rounds of nearly equal size; with one chunk it is 1f1b;
/// - zero-bubble: ZB-H1 (Qi et al. 2023, section 2.1): backward split, weight parts late enough to
///   fill the bubble, never more in flight on a stage than 1F1B has on its first.
/// In each, a chunk's weight parts come in ascending order of micro-batches. Throws ConfigError
/// that names parallel.schedule, .virtual_stages, .pipeline or the number of micro-batches.
Schedule make_schedule(std::string_view name, int stages, int micro_batches, int chunks = 1);

/// Sizes that a file is expected to have; 0: whatever it has.
struct Sizes {
  int stages = 0;
  int micro_batches = 0;
  int chunks = 0;
};

/// A schedule from text: one line per stage, cells separated by commas; a cell is the virtual
/// stage, the kind and the micro-batch ("0F0", "2I0", "2W0", "1B3"), or empty (idle; no meaning).
/// Messages call the text `source`. The result is valid (see validate) and its name is
/// "file:<source>". Throws AgreedError
/// "<source>:<line>:<column>: …" on the first fault.
Schedule parse_schedule(std::string_view text, const std::string& source, Sizes expected = {});

/// The same from a file.
Schedule read_schedule(const std::filesystem::path& path, Sizes expected = {});

/// The file that a schedule's name "file:PATH" means; nothing where it is a built-in one's.
std::optional<std::string> path_of(std::string_view name);
/// The text of a CSV file of at most 64 MiB. In a run one rank reads it and sends it to the others.
/// Throws AgreedError with the path and the reason.
std::string read_schedule_text(const std::filesystem::path& path);

/// The text that parse_schedule reads.
std::string to_csv(const Schedule& schedule);

/// What `validate` requires beyond a schedule that can run.
enum class WeightOrder {
  any,
  ascending,  // each chunk's weight parts by ascending micro-batch: reproducible sums need it
};

/// Checks that each (virtual stage, micro-batch) has exactly one F and either one B, or one I
/// followed by one W, after its F and on the stage that holds it, and that the order can run to its
/// end when every action waits for those it needs. Throws AgreedError that names the first fault.
void validate(const Schedule& schedule, WeightOrder order = WeightOrder::any);

/// "2F3": virtual stage, kind, micro-batch; as in CSV.
std::string to_string(const Schedule& schedule, int stage, const Action& action);

/// Splits units (embedding, blocks, head; `costs` in any unit, ≥ 0) into `virtual_stages`
/// contiguous runs of at least one unit, so that the largest run costs least; among such splits the
/// one with the least sum of squares, then the one whose first runs have fewest units. Costs count
/// to within 2⁻³⁰ of their sum. Returns virtual_stages + 1 numbers: the first unit of each, and the
/// number of units. Throws ConfigError when there are fewer units than virtual stages.
std::vector<int> split_units(std::span<const double> costs, int virtual_stages);

}  // namespace trireme::schedule
