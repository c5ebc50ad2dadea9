#include <fmt/core.h>

#include "trireme/comm/agree.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

double evaluate(comm::Session& session, const RunConfig& config, const EvaluateOptions& options) {
  device::MemoryLedger ledger;
  Recorder recorder;
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  double mean = 0;
  std::unique_ptr<checkpoint::Reader> reader;
  std::unique_ptr<data::TokenReader> tokens;
  std::unique_ptr<model::Transformer> model;
  std::unique_ptr<state::ModelState> state;
  comm::agree(grid.world(), [&] {
    reader = std::make_unique<checkpoint::Reader>(find_checkpoint(options.checkpoint));
    model = std::make_unique<model::Transformer>(model_of(reader->state()));
    const std::string path = config.data.path.empty()
                                 ? reader->state().config.at("data").at("path").get<std::string>()
                                 : config.data.path;
    const data::Dataset dataset = data::Dataset::open(path);
    if (dataset.manifest().vocabulary > model->config().vocabulary) {
      throw Error(
          "data.path = {}: its {} token ids do not fit the model's vocabulary of {}; use the "
          "dataset of the run",
          path, dataset.manifest().vocabulary, model->config().vocabulary);
    }
    tokens =
        dataset.reader(options.split == "train" ? data::SplitName::train : data::SplitName::valid);
    if (tokens->tokens() <= model->config().sequence) {
      throw Error("dataset {}: the {} split has {} tokens, a window needs {}; use a larger dataset",
                  path, options.split, tokens->tokens(), model->config().sequence + 1);
    }
    state = std::make_unique<state::ModelState>(*model, false, ledger);
    load_parameters(*reader, model->table(), state->parameters());
  });
  const std::int64_t length = model->config().sequence;
  const std::int64_t micro_batch = config.train.micro_batch > 0
                                       ? config.train.micro_batch
                                       : std::max<std::int64_t>(1, 4096 / length);
  const auto ops = ops::make_cpu_ops(threads_of_rank(config.parallel, session), &ledger);
  parallel::Engine engine(*model, *state, *ops, grid.group(comm::Axis::data), recorder, ledger,
                          {.max_rows = micro_batch * length, .train = false});
  const parallel::LossSum sum =
      evaluate_split(engine, *tokens, length, config.train.evaluate_samples, micro_batch,
                     config.data.document_mask, grid.group(comm::Axis::data));
  mean = sum.mean();
  if (session.rank() == 0) {
    fmt::print("checkpoint {}  step {}\n{} loss {:.6f}  perplexity {:.4f}  over {} tokens\n",
               reader->folder().string(), reader->state().step, options.split, mean, std::exp(mean),
               static_cast<std::int64_t>(sum.weight));
  }
  return mean;
}

}  // namespace trireme::train
