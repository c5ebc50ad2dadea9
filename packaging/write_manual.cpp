// Writes the manual page (`manual`), the configuration reference (`configuration`) or the
// completion of bash (`completion`) to standard output, at build time.
#include <cstdio>
#include <exception>
#include <string>

#include "trireme/cli/command.hpp"

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  std::string (*const write)() = what == "manual"          ? trireme::cli::manual_page
                                 : what == "configuration" ? trireme::cli::configuration_reference
                                 : what == "completion"    ? trireme::cli::bash_completion
                                                           : nullptr;
  if (write == nullptr) {
    std::fputs("usage: write_manual manual|configuration|completion\n", stderr);
    return 2;
  }
  try {
    const std::string text = write();
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_manual: %s\n", error.what());
    return 1;
  }
  return 0;
}
