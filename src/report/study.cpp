// Names that a scaling study gave to layouts (jobs/study/index.py).
#include <map>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The layouts of a study's points, by the name of the point; none where there is no index.
std::map<std::string, std::string> layouts_of(const fs::path& index) {
  std::map<std::string, std::string> layouts;
  std::error_code error;
  if (!fs::exists(index, error)) return layouts;
  try {
    const json study = parse_json(read_small_file(index, largest_record_file), index.string());
    if (!study.is_object() || !study.contains("points") || !study.at("points").is_array())
      return {};
    for (const json& point : study.at("points")) {
      if (!point.is_object()) return {};
      layouts[text_at(point, "name", "")] = plain_text(text_at(point, "layout", ""));
    }
  } catch (const Error&) {
    return {};  // a name only: the record itself decides
  }
  return layouts;
}

}  // namespace

void set_labels(std::vector<Run>& runs) {
  std::map<fs::path, std::map<std::string, std::string>> studies;
  for (Run& run : runs) {
    std::error_code error;
    const fs::path folder = fs::weakly_canonical(run.folder, error);
    if (error || folder.parent_path().filename() != "runs") continue;
    const fs::path index = folder.parent_path().parent_path() / "index.json";
    if (!studies.contains(index)) studies[index] = layouts_of(index);
    const auto found = studies[index].find(folder.filename().string());
    if (found != studies[index].end()) run.label = found->second;
  }
}

}  // namespace trireme::report
