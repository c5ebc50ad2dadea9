#include "trireme/params/table.hpp"

#include <algorithm>

#include "trireme/core/random.hpp"

namespace trireme::params {

namespace {

constexpr std::int64_t row_alignment = 16;  // fp32 elements in 64 bytes

std::int64_t round_up(std::int64_t value, std::int64_t grain) {
  return (value + grain - 1) / grain * grain;
}

/// FNV-1a: a parameter's stream of random numbers hangs on its name, not on its place in the table.
std::uint32_t stream_of(std::string_view name) {
  std::uint32_t hash = 2166136261U;
  for (unsigned char c : name) hash = (hash ^ c) * 16777619U;
  return hash;
}

}  // namespace

int ParameterTable::add(Parameter parameter) {
  TRIREME_ASSERT(!find(parameter.name), "{} is in the table twice", parameter.name);
  TRIREME_ASSERT(!parameter.units.empty(), "{} belongs to no unit", parameter.name);
  TRIREME_ASSERT(rows_.empty() || rows_.back().units.front() <= parameter.units.front(),
                 "{}: rows are added unit by unit", parameter.name);
  if (!parameter.parts.empty()) {
    std::int64_t sum = 0;
    for (const Part& part : parameter.parts) {
      TRIREME_ASSERT(part.extent % part.grain == 0, "{}.{}: grain", parameter.name, part.name);
      sum += part.extent;
    }
    TRIREME_ASSERT(
        parameter.split.dimension >= 0 && sum == parameter.shape[parameter.split.dimension],
        "{}: parts do not add up", parameter.name);
  }
  parameter.offset = flat_elements_;
  elements_ += parameter.shape.elements();
  flat_elements_ += round_up(parameter.shape.elements(), row_alignment);
  rows_.push_back(std::move(parameter));
  return static_cast<int>(rows_.size()) - 1;
}

void ParameterTable::share(int index, int unit) {
  auto& units = rows_[static_cast<std::size_t>(index)].units;
  TRIREME_ASSERT(units.back() < unit, "units ascend");
  units.push_back(unit);
}

std::optional<int> ParameterTable::find(std::string_view name) const {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].name == name) return static_cast<int>(i);
  }
  return std::nullopt;
}

std::int64_t ParameterTable::product_elements() const {
  std::int64_t sum = 0;
  for (const Parameter& row : rows_) {
    if (row.in_products) sum += row.shape.elements();
  }
  return sum;
}

Tensor ParameterTable::view(const Tensor& flat, int index) const {
  const Parameter& parameter = row(index);
  return flat.slice(0, parameter.offset, parameter.offset + parameter.shape.elements())
      .reshape(parameter.shape);
}

ParameterTable::Range ParameterTable::unit_range(int unit) const {
  const auto first = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const Parameter& p) { return p.units.front() >= unit; });
  const auto last =
      std::find_if(first, rows_.end(), [&](const Parameter& p) { return p.units.front() > unit; });
  const auto offset = [&](auto it) { return it == rows_.end() ? flat_elements_ : it->offset; };
  return {offset(first), offset(last)};
}

void initialise(const ParameterTable& table, std::uint64_t seed, const Tensor& flat) {
  std::fill_n(flat.as<float>(), flat.elements(), 0.0F);
  for (std::size_t index = 0; index < table.rows().size(); ++index) {
    const Parameter& row = table.rows()[index];
    float* values = flat.as<float>() + row.offset;
    const std::int64_t n = row.shape.elements();
    switch (row.initialisation.kind) {
      case Initialisation::Kind::zeros:
        break;
      case Initialisation::Kind::ones:
        std::fill_n(values, n, 1.0F);
        break;
      case Initialisation::Kind::normal: {
        const RandomKey key{seed, Purpose::initialisation, stream_of(row.name)};
        const double deviation = row.initialisation.deviation;
#pragma omp parallel for schedule(static)
        for (std::int64_t i = 0; i < n; ++i) {
          values[i] = static_cast<float>(deviation * normal(key, static_cast<std::uint64_t>(i)));
        }
      }
    }
  }
}

}  // namespace trireme::params
