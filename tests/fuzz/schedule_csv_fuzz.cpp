// A schedule file: an accepted one is complete and valid, can be walked, and round-trips.
#include "trireme/schedule/schedule.hpp"
#include "trireme/schedule/simulate.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  using namespace trireme::schedule;
  const std::string text = fuzz::text_of(data, size);
  Schedule plan;
  const auto refused = [&](Sizes sizes) {
    return !fuzz::accepted("s", [&] { plan = parse_schedule(text, "s", sizes); });
  };
  if (refused({})) return 0;
  // Each (stage, chunk, micro-batch) once forward and once, in one part or two, backward.
  const auto all =
      static_cast<std::size_t>(plan.chunks) * static_cast<std::size_t>(plan.micro_batches);
  std::size_t actions = 0;
  for (const auto& list : plan.actions) {
    fuzz::require(list.size() >= 2 * all && list.size() <= 3 * all, "a stage has all its actions");
    actions += list.size();
  }
  fuzz::require(static_cast<int>(plan.actions.size()) == plan.stages && actions <= size,
                "actions come from the text");
  validate(plan);
  simulate(plan, Costs::uniform(plan.virtual_stages(), 1, 1, 1));
  fuzz::require(parse_schedule(to_csv(plan), "s").actions == plan.actions, "written and read");
  fuzz::require(!refused({plan.stages, plan.micro_batches, plan.chunks}), "it has its own sizes");
  fuzz::require(refused({plan.stages + 1, 0, 0}) && refused({0, plan.micro_batches + 1, 0}),
                "and no others");
  return 0;
}
