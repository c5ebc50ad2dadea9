// The operations of a machine file: what is accepted prints as what reads back, and gives times.
#include <cmath>

#include "trireme/plan/operation_table.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  using plan::OperationTable;
  const std::string text = fuzz::text_of(data, size);
  OperationTable table;
  if (!fuzz::accepted("m", [&] { table = OperationTable::parse(text, "m"); })) return 0;
  const std::string printed = table.text();
  OperationTable again;
  fuzz::require(
      fuzz::accepted("printed", [&] { again = OperationTable::parse(printed, "printed"); }),
      "what was printed is read: " + printed);
  fuzz::require(again.text() == printed, "it is the same: " + printed);
  for (const plan::OperationTime& each : table.times()) {
    const auto formula = [](const plan::Work&) { return 1.0; };
    fuzz::require(table.seconds(each.work, formula) == each.seconds, "measured times are exact");
    const double others = table.seconds(each.work, formula, &each.work);
    fuzz::require(std::isfinite(others) && others > 0, "others give a time");
  }
  return 0;
}
