#include "trireme/core/error.hpp"

namespace trireme {

void assertion_failed(const char* condition, const char* file, int line,
                      const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: assertion failed: {}{}{}", file, line, condition,
                                     message.empty() ? "" : ": ", message));
}

}  // namespace trireme
