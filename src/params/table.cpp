#include "trireme/params/table.hpp"

#include <utility>

#include "trireme/core/error.hpp"

namespace trireme::params {

int ParameterTable::add(Parameter parameter) {
  TRIREME_ASSERT(!find(parameter.name), "{} is in the table twice", parameter.name);
  TRIREME_ASSERT(!parameter.units.empty(), "{} belongs to no unit", parameter.name);
  TRIREME_ASSERT(rows_.empty() || rows_.back().units.front() <= parameter.units.front(),
                 "{}: rows are added unit by unit", parameter.name);
  if (!parameter.parts.empty()) {
    std::int64_t sum = 0;
    for (const Part& part : parameter.parts) {
      TRIREME_ASSERT(part.extent % part.grain == 0, "{}.{}: grain", parameter.name, part.name);
      const Part& lead = parameter.parts.front();
      TRIREME_ASSERT(part.extent / part.grain * part.serves == lead.extent / lead.grain,
                     "{}.{}: serves", parameter.name, part.name);
      sum += part.extent;
    }
    TRIREME_ASSERT(parameter.split >= 0 && sum == parameter.shape[parameter.split],
                   "{}: parts do not add up", parameter.name);
  }
  elements_ += parameter.shape.elements();
  by_name_.emplace(parameter.name, static_cast<int>(rows_.size()));
  rows_.push_back(std::move(parameter));
  return static_cast<int>(rows_.size()) - 1;
}

void ParameterTable::share(int index, int unit) {
  auto& units = rows_[static_cast<std::size_t>(index)].units;
  TRIREME_ASSERT(units.back() < unit, "units ascend");
  units.push_back(unit);
}

std::optional<int> ParameterTable::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

std::int64_t ParameterTable::product_elements() const {
  std::int64_t sum = 0;
  for (const Parameter& row : rows_) {
    if (row.in_products) sum += row.shape.elements();
  }
  return sum;
}

}  // namespace trireme::params
