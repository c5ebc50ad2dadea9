// The MPI session: its start and end, what the launcher's environment shows about the start, the
// cores of its ranks, and who reports a node's error.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <mpi.h>

namespace trireme::comm {

/// Throws Error with MPI's own text when `code`, what `call` returned, is not MPI_SUCCESS:
/// mpi_check(MPI_Barrier(comm), "MPI_Barrier").
void mpi_check(int code, const char* call);

/// Physical cores that a rank may run on, and how many ranks of its node, itself counted, may run
/// on some of them. At least one each.
struct Cores {
  int usable = 1, ranks = 1;
};

/// This process's; collective over the ranks of its node.
Cores find_cores(MPI_Comm node);

/// Initializes MPI (MPI_THREAD_MULTIPLE, MPI_ERRORS_RETURN) and finalizes it at the end of its
/// life. First sets, unless they are set, OMPI_MCA_mpi_yield_when_idle=1, since a thread waiting
/// inside MPI must not take a core from one that computes; and OMPI_MCA_btl_tcp_eager_limit and
/// …_rndv_eager_limit, by which TCP sends pieces of messages (Requests) at once. A program without
/// a launcher is also spared Open MPI's daemon and session folder
/// (OMPI_MCA_ess_singleton_isolated=1, OMPI_MCA_orte_create_session_dirs=0). Throws AgreedError
/// with the complaints below, and without MPI_THREAD_MULTIPLE. Its end calls MPI_Finalize, which
/// waits for all ranks: an exception that ends the job must be caught, and abort, before.
class Session {
 public:
  Session(int* argc, char*** argv);
  /// Over the ranks of `world` alone, where MPI runs already; collective over them. `world` must
  /// outlive it.
  explicit Session(MPI_Comm world);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm world() const { return world_; }
  MPI_Comm node() const { return node_; }  // ranks that share memory with this one
  int node_rank() const { return node_rank_; }
  int node_size() const { return node_size_; }
  /// Of this rank, when the session began.
  const Cores& cores() const { return cores_; }
  /// By world rank, the world rank of the first rank that shares its memory.
  const std::vector<int>& nodes() const { return nodes_; }

  /// True for the first of a node that asks, false ever after: who may print the error line.
  bool claim_reporting();
  /// From now on only this rank may report for its node, unless another has claimed that before:
  /// where other ranks may fail because of its error before its line is printed.
  void reserve_reporting();
  /// A rank of the world has died: the end of this session then calls nothing of MPI,
  /// MPI_Finalize included, which would wait for the dead.
  void abandon() { abandoned_ = true; }
  /// Ends all ranks at once with `code`, and this one in so many seconds, whatever the library is
  /// at; does not return. Where the launcher lets others live (mpirun --enable-recovery) only this
  /// one ends.
  [[noreturn]] void abort(int code, unsigned seconds = 10);

 private:
  void open();         // node group, map of nodes, flag of who reports
  bool owner_ = true;  // of MPI's start and end
  bool abandoned_ = false;
  MPI_Comm world_ = MPI_COMM_WORLD;
  int rank_ = 0, size_ = 1, node_rank_ = 0, node_size_ = 1;
  MPI_Comm node_ = MPI_COMM_NULL;
  Cores cores_;
  std::vector<int> nodes_;
  MPI_Win reporting_window_ = MPI_WIN_NULL;
  int* reporting_flag_ = nullptr;
};

/// One line, with the remedy, if a rank and the ranks that share its cores have more threads than
/// cores, at `threads` each; else empty. The same on every rank; collective
/// over the session.
std::string core_warning(const Session& session, int threads);

/// "Open MPI 4.1.4, MPI 3.1", from the library itself.
std::string library_version();

/// An environment variable's value, null when it is unset.
using Variables = std::function<const char*(const char*)>;

/// Whether a launcher started this process.
bool has_launcher(const Variables& variable);

/// What is wrong when a world of `world` ranks was started by a launcher whose environment has
/// more; empty when nothing is. A batch script outside any job step is fine.
std::string launcher_complaint(int world, const Variables& variable);

/// The same before MPI_Init, where that would end the process with an error of its own: Open MPI in
/// a job step of several tasks to which Slurm gave no PMI (srun --mpi=none). `library` as from
/// library_version(). MPICH may connect through Slurm's own libpmi, which needs no variable.
std::string start_complaint(std::string_view library, const Variables& variable);

/// The rank that the launcher's environment gives this process, 0 where it gives none: which of
/// several unconnected processes is to print the complaint.
int launcher_rank();

/// Why the launcher would end the whole job when a rank dies, and what keeps it from that, to
/// follow "server.tolerate_failures = true: "; empty where survivors are left alone: mpirun of Open
/// MPI with --enable-recovery, or srun to which SLURM_KILL_BAD_EXIT=0 was given. `library` as from
/// library_version().
std::string survival_complaint(std::string_view library, const Variables& variable);

}  // namespace trireme::comm
