#include <fmt/core.h>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/config.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

double evaluate(comm::Session& session, const RunConfig& config, const EvaluateOptions& options) {
  const ComputeDevice computes(config.device, session);
  device::MemoryLedger ledger(computes.device());
  Recorder recorder;
  const GridPlan plan = plan_grid(without_servers(config), session, computes.device().is_host());
  comm::Grid grid(session, plan.shape, ledger, plan.shard, grid_options(config));
  comm::Watchdog watchdog(session, config.train.watchdog);
  std::unique_ptr<checkpoint::Reader> reader;
  std::unique_ptr<data::TokenReader> tokens;
  std::unique_ptr<model::Transformer> model;
  std::unique_ptr<parallel::Replica> replica;
  const std::string folder = comm::of_rank_zero(
      grid.world(), [&] { return find_checkpoint(options.checkpoint).string(); });
  auto loading = std::make_optional<comm::Watchdog::Pause>(watchdog);
  comm::agree(grid.world(), [&] {
    reader = std::make_unique<checkpoint::Reader>(folder);
    model = std::make_unique<model::Transformer>(model_of(*reader));
    const std::string path = dataset_of(config, reader->state());
    const data::Dataset dataset = data::Dataset::open(path);
    if (dataset.manifest().vocabulary > model->config().vocabulary) {
      throw Error(
          "data.path = {}: its {} token ids do not fit the model's vocabulary of {}; use the "
          "dataset of the run",
          path, dataset.manifest().vocabulary, model->config().vocabulary);
    }
    tokens = dataset.reader(select<data::SplitName>(
        "--split", options.split,
        {{"train", data::SplitName::train}, {"valid", data::SplitName::valid}}));
    const std::int64_t length = model->config().sequence;
    if (tokens->tokens() <= length) {
      throw Error("dataset {}: the {} split has {} tokens, a window needs {}; use a larger dataset",
                  path, options.split, tokens->tokens(), length + 1);
    }
    const std::int64_t micro_batch = config.train.micro_batch > 0
                                         ? config.train.micro_batch
                                         : std::max<std::int64_t>(1, 4096 / length);
    parallel::ReplicaOptions options_of_replica;
    options_of_replica.stage = forward_options(config, micro_batch);
    options_of_replica.stage.compute = compute_type_of((*reader).state(), computes);
    options_of_replica.threads = threads_of_rank(config.parallel, session);
    options_of_replica.make_ops = computes.make_ops();
    replica =
        std::make_unique<parallel::Replica>(*model, options_of_replica, grid, recorder, ledger);
    const state::ModelState& state = replica->state();
    checkpoint::load_pieces(*reader, "parameters", state, state.parameters(),
                            state.parameters_sharded());
  });
  loading.reset();
  const parallel::LossSum sum = comm::or_abandon(grid, [&] {
    return evaluate_split(*replica, *tokens, config.train.evaluate_samples,
                          config.data.document_mask, grid.group(comm::Axis::data), &watchdog);
  });
  const double mean = sum.mean();
  if (session.rank() == 0) {
    fmt::print("checkpoint {}  step {}\n{} loss {:.6f}  perplexity {:.4f}  over {} tokens\n",
               reader->folder().string(), reader->state().step, options.split, mean, std::exp(mean),
               static_cast<std::int64_t>(sum.weight));
  }
  return mean;
}

}  // namespace trireme::train
