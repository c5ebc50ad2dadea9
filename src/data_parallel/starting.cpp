#include "starting.hpp"

#include <cstdio>
#include <vector>

#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::data_parallel {

Starting::Starting(comm::Session& session, double heartbeat)
    : session_(session), beats_(session.world(), [&] {
        comm::rpc::Options options;
        options.silence = heartbeat;
        options.beat = heartbeat / 5;
        const int peers = session.rank() == 0 ? session.size() : 1;
        for (int rank = 0; rank < peers; ++rank) options.peers.push_back(rank);
        options.watched = options.peers;
        options.on_lost = [this](int rank, const std::string& why) { lose(rank, why); };
        return options;
      }()) {
  beats_.start();
}

Starting::~Starting() {
  if (over_.exchange(true)) return;
  for (int rank = 0; rank < beats_.size(); ++rank) beats_.lose(rank, "not waited for");
}

void Starting::end() {
  over_ = true;
  beats_.close(1);
}

void Starting::lose(int rank, const std::string& why) {
  if (over_) return;
  if (session_.claim_reporting()) {
    fmt::print(stderr,
               "trireme: error: rank {} is lost while the job starts: {}; look there for its last "
               "words\n",
               rank, why);
  } else {
    ::sleep(1);  // another rank of this node is about to print
  }
  session_.abort(1);
}

}  // namespace trireme::data_parallel
