// The one place where exceptions become exit codes: 0 done, 1 an error, 2 a mistake on the command
// line, 75 saved ahead of the end and to be started again. A user sees one line on standard error,
// "trireme: error: …", from one rank.
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "trireme/cli/command.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/machine.hpp"
#include "trireme/train/policies.hpp"

namespace {

using trireme::comm::Session;

void report(const std::string& message) {
  // One write, so that lines of several ranks do not mix.
  const std::string line = "trireme: error: " + trireme::config::one_line(message) + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

/// All ranks are here with the same error: rank 0 reports it, and the session ends in order.
int agreed(const Session& session, const std::string& message, int code) {
  if (session.rank() == 0) report(message);
  return code;
}

/// Perhaps only this rank is here, and others wait for it: the world must be ended.
int alone(Session& session, const std::string& message) {
  if (session.size() == 1) {
    report(message);
    return 1;
  }
  if (session.claim_reporting()) {
    report(fmt::format("rank {}: {}", session.rank(), message));
  } else {
    // Another rank of this node is about to print and abort; ending first would cut it off.
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  session.abort(1);
}

int conduct(Session& session, std::vector<std::string> arguments) {
  try {
    const trireme::cli::Command command = trireme::cli::parse(std::move(arguments));
    const int code = command.run(session, command.settings);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw trireme::Error("standard output: cannot be written; is its disk full?");
    }
    return code;
  } catch (const trireme::cli::UsageError& error) {
    return agreed(session, error.what(), 2);
  } catch (const trireme::AgreedError& error) {
    return agreed(session, error.what(), 1);
  } catch (const std::bad_alloc&) {
    return alone(session, "out of memory; use a smaller train.micro_batch or model");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return alone(session, error.what());
    }
    return alone(session,
                 "a thread cannot be started: no memory or no process is left for it; raise "
                 "ulimit -v or ulimit -u, or start fewer ranks or threads");
  } catch (const std::exception& error) {
    return alone(session, error.what());
  } catch (...) {
    return alone(session, "an exception of unknown type");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "train") trireme::train::hold_signals();
  using trireme::comm::launcher_rank;
  try {
    constexpr std::size_t of_libraries = std::size_t{96} << 20;
    trireme::require_address_space(of_libraries, "MPI and HDF5");
  } catch (const std::exception& error) {
    // Others' limits are mostly the same: they print where rank 0 has not ended the job by then.
    if (launcher_rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
    report(error.what());
    return 1;
  }
  std::optional<Session> session;
  try {
    session.emplace(&argc, &argv);
  } catch (const std::exception& error) {
    // There is no world to agree in; the launcher's environment has the rank.
    if (launcher_rank() == 0) report(error.what());
    return 1;
  }
  return conduct(*session, std::vector<std::string>(argv + 1, argv + argc));
}
