// What a scaling study has of its layouts: names and predictions (jobs/study/index.py).
#include <algorithm>
#include <map>
#include <optional>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What the index of a study has; empty where there is none, or where it is damaged.
struct Study {
  std::map<std::string, std::string> layouts;    // by the name of the point
  std::map<std::string, Predictions> predicted;  // by layout
};

/// None where it has no speed.
std::optional<Prediction> prediction_of(const json& point, const std::string& where) {
  constexpr std::int64_t most_ranks = 1 << 24;
  constexpr double most_tokens = 1e18;
  if (!point.contains("tokens_per_second")) return std::nullopt;
  const auto speed = [&](double value) {
    if (!(value >= 0 && value < most_tokens)) throw Error("{}: no speed", where);
    return value;
  };
  const std::int64_t ranks = integer_at(point, "ranks", where);
  if (ranks < 1 || ranks > most_ranks) throw Error("{}: no number of ranks", where);
  return Prediction{.ranks = static_cast<int>(ranks),
                    .tokens_per_second = speed(number_at(point, "tokens_per_second", where)),
                    .low = speed(optional_number_at(point, "low", where)),
                    .high = speed(optional_number_at(point, "high", where)),
                    .extrapolated = point.value("extrapolated", false)};
}

void read_predictions(const json& study, const std::string& where, Study& result) {
  constexpr std::size_t most = 64;  // of a layout
  if (!study.contains("predictions")) return;
  const json& predictions = object_at(study, "predictions", where);
  if (!predictions.contains("points") || !predictions.at("points").is_array()) return;
  for (const json& point : predictions.at("points")) {
    Predictions& own = result.predicted[plain_text(text_at(point, "layout", where))];
    own.machine = plain_text(text_at(predictions, "machine", where));
    const auto prediction = prediction_of(point, where);
    if (prediction && prediction->tokens_per_second > 0 && own.points.size() < most) {
      own.points.push_back(*prediction);
    }
  }
  for (auto& [layout, own] : result.predicted) {
    std::ranges::sort(own.points, {}, &Prediction::ranks);
  }
}

Study read_study(const fs::path& index) {
  std::error_code error;
  if (!fs::exists(index, error)) return {};
  try {
    Study result;
    const std::string where = index.string();
    const json study = parse_json(read_small_file(index, largest_record_file), where);
    if (!study.is_object() || !study.contains("points") || !study.at("points").is_array())
      return {};
    for (const json& point : study.at("points")) {
      if (!point.is_object()) return {};
      result.layouts[text_at(point, "name", where)] = plain_text(text_at(point, "layout", where));
    }
    read_predictions(study, where, result);
    return result;
  } catch (const std::exception&) {
    return {};  // names and predictions only: the record itself decides
  }
}

/// The study that a run may be a point of; an empty path where it is of none.
struct Place {
  fs::path index;
  std::string point;
};
Place place_of(const Run& run) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(run.folder, error);
  if (error || folder.parent_path().filename() != "runs") return {};
  return {folder.parent_path().parent_path() / "index.json", folder.filename().string()};
}

/// Each study is read once.
class Studies {
 public:
  const Study& of(const fs::path& index) {
    const auto known = studies_.find(index);
    return known != studies_.end() ? known->second
                                   : studies_.emplace(index, read_study(index)).first->second;
  }

 private:
  std::map<fs::path, Study> studies_;
};

}  // namespace

void set_labels(std::vector<Run>& runs) {
  Studies studies;
  for (Run& run : runs) {
    const Place place = place_of(run);
    if (place.index.empty()) continue;
    const auto& layouts = studies.of(place.index).layouts;
    const auto found = layouts.find(place.point);
    if (found != layouts.end()) run.label = found->second;
  }
}

void set_predictions(std::vector<ScalingLine>& lines) {
  Studies studies;
  for (ScalingLine& line : lines) {
    const Run& first = *line.points.front().runs.front();
    const fs::path index = place_of(first).index;
    const bool one_layout = std::ranges::all_of(line.points, [&](const ScalingPoint& point) {
      return std::ranges::all_of(point.runs, [&](const Run* run) {
        return run->label == first.label && place_of(*run).index == index;
      });
    });
    if (first.label.empty() || index.empty() || !one_layout) continue;
    const auto& predicted = studies.of(index).predicted;
    const auto found = predicted.find(first.label);
    if (found != predicted.end()) line.predicted = found->second;
  }
}

}  // namespace trireme::report
