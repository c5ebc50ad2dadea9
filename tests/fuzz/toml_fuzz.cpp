// A configuration file: an accepted one prints as an equivalent file.
#include "trireme/train/config.hpp"

#include "fuzz.hpp"

namespace trireme {
namespace {

/// All fields of a run with their defaults. Declaring them takes longer than reading a file.
class Settings {
 public:
  Settings() {
    config_.declare(fields_);
    built_in_ = fields_;
  }
  config::Fields& fresh() {
    config_ = {};
    fields_ = built_in_;
    return fields_;
  }

 private:
  train::RunConfig config_;
  config::Fields fields_, built_in_;
};

}  // namespace
}  // namespace trireme

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  static Settings first, second;
  config::Fields& fields = first.fresh();
  if (!fuzz::accepted("run.toml:",
                      [&] { fields.parse_toml(fuzz::text_of(data, size), "run.toml"); })) {
    return 0;
  }
  const std::string printed = fields.to_toml();
  config::Fields& again = second.fresh();
  fuzz::require(fuzz::accepted("printed", [&] { again.parse_toml(printed, "printed"); }),
                "what was printed is read: " + printed);
  fuzz::require(again.to_json() == fields.to_json(), "it is equivalent: " + printed);
  config::Fields& recorded = second.fresh();
  recorded.from_json(nlohmann::json::parse(fields.to_json().dump()), config::Source::file, "json");
  fuzz::require(recorded.to_json() == fields.to_json(), "so is the record: " + printed);
  return 0;
}
