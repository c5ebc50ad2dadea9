// All logits of one window: logits_program CHECKPOINT TOKENS OUTPUT. TOKENS holds the ids as text,
// one sequence; OUTPUT receives [tokens, vocabulary] as raw fp32.
#include <cstdio>
#include <fstream>
#include <numeric>
#include <vector>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/train/setup.hpp"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 4) return 2;
  comm::Session session(&argc, &argv);
  try {
    device::MemoryLedger ledger;
    Recorder recorder;
    comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
    const checkpoint::Reader reader(train::find_checkpoint(argv[1]));
    const model::Transformer model(train::model_of(reader));
    train::RunConfig config;
    parallel::Replica replica(model, {.stage = train::forward_options(config, 1), .threads = 1},
                              grid, recorder, ledger);
    const state::ModelState& state = replica.state();
    checkpoint::load_pieces(reader, "parameters", state, state.parameters(), false);

    data::Batch batch;
    std::ifstream file(argv[2]);
    for (std::int32_t id = 0; file >> id;) batch.inputs.push_back(id);
    const auto n = batch.inputs.size();
    batch.sequences = 1;
    batch.length = static_cast<std::int64_t>(n);
    batch.targets.assign(n, 0);
    batch.weights.assign(n, 1.0F);
    batch.positions.resize(n);
    std::iota(batch.positions.begin(), batch.positions.end(), 0);
    batch.samples = {0};
    std::vector<float> logits(n * static_cast<std::size_t>(model.config().vocabulary));
    replica.engine().logits(
        parallel::HostMicrobatch(std::move(batch)),
        Tensor(logits.data(), {static_cast<std::int64_t>(n), model.config().vocabulary}));
    std::ofstream(argv[3], std::ios::binary)
        .write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
