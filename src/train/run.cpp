#include "trireme/train/run.hpp"

#include "trireme/comm/agree.hpp"

#include "trainer.hpp"

namespace trireme::train {

void run(comm::Session& session, RunConfig& config, const config::Fields& fields) {
  device::MemoryLedger ledger;
  const comm::GridShape shape =
      comm::make_grid_shape(session.size(), {.data = config.parallel.data});
  comm::Grid grid(session, shape, ledger);
  comm::agree(grid.world(), [&] { validate(config, session.size()); });
  Trainer(session, grid, ledger, config, fields).run();
}

}  // namespace trireme::train
