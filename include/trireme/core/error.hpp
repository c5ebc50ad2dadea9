// Errors and invariants. A user's mistake is an Error: one line that names what, where, the rule
// and the remedy. A programmer's mistake is a failed TRIREME_ASSERT.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace trireme {

/// Something the user can correct. `what()` is one line without a trailing newline; `main` prints
/// it after "trireme: error: ".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <class... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// An Error that every rank throws at the same place, because it depends only on what all ranks
/// share (arguments, agreed values). In `main` rank 0 reports it, and no rank calls MPI_Abort.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// A configuration value that breaks a rule: "<key> = <value>: <rule>; <remedy>".
class ConfigError : public AgreedError {
 public:
  ConfigError(const std::string& key, const std::string& value, const std::string& rule,
              const std::string& remedy)
      : AgreedError("{} = {}: {}; {}", key, value, rule, remedy) {}
};

[[noreturn]] inline void assertion_failed(const char* condition, const char* file, int line,
                                          const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: assertion failed: {}{}{}", file, line, condition,
                                     message.empty() ? "" : ": ", message));
}

/// Ends a switch that names every value of an enumeration: fails as TRIREME_ASSERT does.
template <class Enum>
[[noreturn]] void no_case_for(Enum value, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  assertion_failed("a case names the value", file, line,
                   std::to_string(static_cast<long long>(value)));
}

/// Invariants stay checked in release builds: TRIREME_ASSERT(a == b, "rows {} and {}", a, b).
#define TRIREME_ASSERT(condition, ...) \
  (static_cast<bool>(condition)        \
       ? static_cast<void>(0)          \
       : ::trireme::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)))

}  // namespace trireme
