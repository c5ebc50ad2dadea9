#include "trireme/comm/session.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <unistd.h>

#include "trireme/core/error.hpp"

#include "requests.hpp"

namespace trireme::comm {
namespace {

/// The flag of who reports a node's error: 0 is nobody yet, 1 + a rank of the node that has it
/// reserved.
constexpr int reporting_taken = -1;

int number(const char* text) { return text == nullptr ? 0 : std::atoi(text); }

/// The world's size by the launcher nearest to the process: inside a job step of Slurm, mpirun may
/// have started a single rank, and then its size counts.
struct Launched {
  const char* variable = nullptr;
  int ranks = 0;
};
Launched launched(const Variables& variable) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PMI_SIZE"}) {
    if (variable(name) != nullptr) return {name, number(variable(name))};
  }
  // SLURM_NTASKS is there in a batch script too, where one process alone is legitimate.
  if (variable("SLURM_STEP_ID") != nullptr && variable("SLURM_PROCID") != nullptr) {
    return {"SLURM_STEP_NUM_TASKS", number(variable("SLURM_STEP_NUM_TASKS"))};
  }
  return {};
}

int initialized_rank() {
  int initialized = 0;
  int finalized = 0;
  int rank = -1;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

}  // namespace

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  // Before MPI_Init and after MPI_Finalize MPI has no text for an error.
  const int rank = initialized_rank();
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  if (rank < 0 || MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  std::string line(text, static_cast<std::size_t>(length));
  std::replace(line.begin(), line.end(), '\n', ' ');
  const std::string where = rank < 0 ? "" : fmt::format(" on rank {}", rank);
  throw Error("{}{}: {}", call, where, line.empty() ? fmt::format("error code {}", code) : line);
}

Session::Session(int* argc, char*** argv) {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  // A piece and its header.
  const std::string eager = std::to_string(largest_piece + 4096);
  setenv("OMPI_MCA_btl_tcp_eager_limit", eager.c_str(), 0);
  setenv("OMPI_MCA_btl_tcp_rndv_eager_limit", eager.c_str(), 0);
  const Variables variable = [](const char* name) { return std::getenv(name); };
  if (!has_launcher(variable)) {
    // Several such programs may start at once: no daemon, and no folder that they share.
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
  }
  int running = 0;
  int provided = 0;
  MPI_Initialized(&running);
  owner_ = running == 0;
  if (owner_) {
    if (std::string start = start_complaint(library_version(), variable); !start.empty()) {
      throw AgreedError(start);
    }
    mpi_check(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  } else {
    mpi_check(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  std::string complaint = launcher_complaint(size_, variable);
  if (provided < MPI_THREAD_MULTIPLE) {
    complaint = fmt::format(
        "MPI: thread level {}: MPI_THREAD_MULTIPLE is needed; use an MPI library built with it",
        provided);
  }
  if (!complaint.empty()) {
    if (owner_) MPI_Finalize();  // there will be no destructor
    throw AgreedError(complaint);
  }
  open();
}

Session::Session(MPI_Comm world) : owner_(false), world_(world) {
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  mpi_check(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(world_, &size_), "MPI_Comm_size");
  open();
}

void Session::open() {
  mpi_check(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node_),
            "MPI_Comm_split_type");
  MPI_Comm_set_errhandler(node_, MPI_ERRORS_RETURN);
  mpi_check(MPI_Comm_rank(node_, &node_rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(node_, &node_size_), "MPI_Comm_size");
  cores_ = find_cores(node_);
  int first = rank_;
  mpi_check(MPI_Bcast(&first, 1, MPI_INT, 0, node_), "MPI_Bcast");
  nodes_.resize(static_cast<std::size_t>(size_));
  mpi_check(MPI_Allgather(&first, 1, MPI_INT, nodes_.data(), 1, MPI_INT, world_), "MPI_Allgather");

  void* base = nullptr;
  MPI_Aint bytes = node_rank_ == 0 ? MPI_Aint{sizeof(int)} : 0;
  mpi_check(
      MPI_Win_allocate_shared(bytes, sizeof(int), MPI_INFO_NULL, node_, &base, &reporting_window_),
      "MPI_Win_allocate_shared");
  int unit = 0;
  mpi_check(MPI_Win_shared_query(reporting_window_, 0, &bytes, &unit, &base),
            "MPI_Win_shared_query");
  reporting_flag_ = static_cast<int*>(base);
  if (node_rank_ == 0) std::atomic_ref(*reporting_flag_).store(0);
  mpi_check(MPI_Barrier(node_), "MPI_Barrier");
}

Session::~Session() {
  if (abandoned_) return;
  // Freeing is collective: a rank that fails alone must reach its abort, which belongs to the
  // session that owns MPI, not to one over some of its ranks.
  if (!owner_ && std::uncaught_exceptions() > 0) return;
  // Nobody is left to handle errors.
  MPI_Win_free(&reporting_window_);
  MPI_Comm_free(&node_);
  if (owner_) MPI_Finalize();
}

bool Session::claim_reporting() {
  for (int before : {0, 1 + node_rank_}) {
    if (std::atomic_ref(*reporting_flag_).compare_exchange_strong(before, reporting_taken))
      return true;
  }
  return false;
}

void Session::reserve_reporting() {
  int free = 0;
  std::atomic_ref(*reporting_flag_).compare_exchange_strong(free, 1 + node_rank_);
}

void Session::abort(int code, unsigned seconds) {
  // MPI_Abort may hang too: another thread may hold a lock of the library. Then the alarm kills the
  // process, and its launcher the others.
  std::signal(SIGALRM, SIG_DFL);
  ::alarm(seconds);
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);  // where MPI_Abort came back
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int length = 0;
  int major = 0;
  int minor = 0;
  MPI_Get_library_version(text, &length);
  MPI_Get_version(&major, &minor);
  // "Open MPI v4.1.4, package: …", or "MPICH Version:\t4.0.2\nMPICH Release date: …".
  std::string name(text, static_cast<std::size_t>(length));
  name.erase(std::min(name.find_first_of(",\n"), name.size()));
  std::replace(name.begin(), name.end(), '\t', ' ');
  if (const auto at = name.find(" Version:"); at != std::string::npos) name.erase(at, 9);
  if (const auto at = name.find(" v"); at + 2 < name.size() && at != std::string::npos &&
                                       name[at + 2] >= '0' && name[at + 2] <= '9') {
    name.erase(at + 1, 1);
  }
  name.erase(name.begin() + static_cast<std::ptrdiff_t>(
                                std::min(name.find_last_not_of(" \r\0") + 1, name.size())),
             name.end());
  return fmt::format("{}, MPI {}.{}", name, major, minor);
}

bool has_launcher(const Variables& variable) { return launched(variable).variable != nullptr; }

std::string launcher_complaint(int world, const Variables& variable) {
  const Launched launcher = launched(variable);
  if (world != 1 || launcher.ranks <= 1) return {};
  const bool slurm = std::string_view(launcher.variable).starts_with("SLURM");
  return fmt::format(
      "launcher: {} = {}: the launcher started {} processes but did not connect them (each is a "
      "world "
      "of one rank); {}",
      launcher.variable, launcher.ranks, launcher.ranks,
      slurm
          ? "try srun --mpi=pmix, or the mpirun of the MPI library that this program is built with"
          : fmt::format(
                "use the mpirun of the MPI library that this program is built with ({}), or "
                "under Slurm try srun --mpi=pmix",
                library_version()));
}

std::string start_complaint(std::string_view library, const Variables& variable) {
  const Launched launcher = launched(variable);
  if (launcher.ranks <= 1 || !std::string_view(launcher.variable).starts_with("SLURM")) return {};
  if (!library.starts_with("Open MPI")) return {};
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"}) {
    if (variable(name) != nullptr) return {};
  }
  return fmt::format(
      "launcher: {} = {}, but no PMIX_RANK: srun started {} processes without what {} connects "
      "them "
      "by; use srun --mpi=pmix (srun --mpi=list names what this Slurm has), or mpirun",
      launcher.variable, launcher.ranks, launcher.ranks, library);
}

int launcher_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return number(value);
  }
  return 0;
}

std::string survival_complaint(std::string_view library, const Variables& variable) {
  const auto is = [&](const char* name, std::string_view value) {
    const char* found = variable(name);
    return found != nullptr && found == value;
  };
  if (!library.starts_with("Open MPI")) {
    return fmt::format("{} ends the job when a rank dies; use Open MPI's mpirun --enable-recovery",
                       library);
  }
  // mpirun sets it for its processes, also inside a Slurm job.
  if (is("OMPI_MCA_orte_enable_recovery", "1")) return {};
  if (variable("OMPI_MCA_orte_hnp_uri") != nullptr || variable("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return "mpirun ends the job when a rank dies; start it with mpirun --enable-recovery";
  }
  if (variable("SLURM_STEP_ID") != nullptr) {
    if (is("SLURM_KILL_BAD_EXIT", "0")) return {};
    return "srun may end the job when a rank dies; start it with SLURM_KILL_BAD_EXIT=0 srun "
           "--kill-on-bad-exit=0";
  }
  return "the launcher may end the job when a rank dies; use mpirun --enable-recovery";
}

}  // namespace trireme::comm
