// Trireme as a library: one training step of a tiny GPT-2 on random tokens.
//
//   build/release/examples/one_step
//   mpirun -n 2 build/release/examples/one_step
//
// Prints the loss before and after the step. In reproducible mode it has the same bits for 1, 2 and
// 4 ranks.
#include <cstdio>
#include <random>
#include <vector>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/replica.hpp"

namespace {

using namespace trireme;

constexpr int batch = 4;  // sequences of a step, over all ranks

model::ModelConfig tiny_gpt2() {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 4;
  config.vocabulary = 64;
  config.sequence = 16;
  config.resolve();  // derives what is not set, for example the MLP's width
  return config;
}

/// `count` sequences of random tokens from number `first` of the batch on. Each position predicts
/// the token that follows it.
parallel::HostMicrobatch random_sequences(const model::ModelConfig& config, int first, int count) {
  data::Batch tokens{.sequences = count, .length = config.sequence};
  for (int sample = first; sample < first + count; ++sample) {
    std::mt19937 random(static_cast<unsigned>(sample));
    std::vector<std::int32_t> ids;
    for (int t = 0; t <= config.sequence; ++t) {
      ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(config.vocabulary)));
    }
    tokens.inputs.insert(tokens.inputs.end(), ids.begin(), ids.end() - 1);
    tokens.targets.insert(tokens.targets.end(), ids.begin() + 1, ids.end());
    for (int t = 0; t < config.sequence; ++t) tokens.positions.push_back(t);
    tokens.samples.push_back(sample);
  }
  tokens.weights.assign(tokens.inputs.size(), 1.0F);  // of each position's loss
  return parallel::HostMicrobatch(std::move(tokens));
}

}  // namespace

int main(int argc, char** argv) {
  comm::Session session(&argc, &argv);  // MPI_Init, and MPI_Finalize at its end
  device::MemoryLedger ledger;          // counts memory by use
  Recorder recorder;                    // times the sections of a step
  // All ranks on the data axis; their number divides the batch.
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  const model::Transformer model(tiny_gpt2());

  parallel::ReplicaOptions options;
  options.stage.sequences = batch / session.size();  // of this rank's micro-batch
  options.stage.zero = 1;                            // shard the optimizer's state
  options.stage.reproducible = true;
  options.stage.virtual_data = batch;
  options.stage.virtual_tensor = 1;
  parallel::Replica replica(model, options, grid, recorder, ledger);
  replica.initialize();

  std::vector<parallel::HostMicrobatch> batches;
  batches.push_back(random_sequences(model.config(), session.rank() * batch / session.size(),
                                     batch / session.size()));
  const parallel::StepSums before = replica.backward(batches);
  replica.update(/*learning_rate=*/1e-2, /*step=*/0, /*gradient_scale=*/1);
  const parallel::StepSums after = replica.backward(batches);
  if (session.rank() == 0) {
    std::printf("loss before %.17g\nloss after %.17g\ngradient norm %.6g\n", before.loss.mean(),
                after.loss.mean(), before.gradient_norm);
  }
}
