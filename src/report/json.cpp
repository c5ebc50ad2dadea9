#include "trireme/report/json.hpp"

#include <cmath>
#include <utility>

namespace trireme::report {

nlohmann::json finite_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

nlohmann::json finite(nlohmann::json value) {
  if (value.is_number_float()) return finite_number(value.get<double>());
  if (value.is_structured()) {
    for (auto& item : value) item = finite(std::move(item));
  }
  return value;
}

std::string to_text(const nlohmann::json& value, int indent) {
  return finite(value).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trireme::report
