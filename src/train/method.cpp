#include "trireme/train/method.hpp"

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/train/account.hpp"

namespace trireme::train {

void Method::load(const checkpoint::Reader& reader, Health& health,
                  std::vector<std::string>& notes) {
  load_shared(reader, health, notes);
  load_state(reader, {});
}

void Method::load_state(const checkpoint::Reader& reader, const std::string& own) {
  const state::ModelState& state = replica().state();
  checkpoint::load_pieces(reader, "parameters", state, state.parameters(),
                          state.parameters_sharded());
  for (const auto& kept : replica().optimizer().states()) {
    load_optimizer(reader, own + kept.name, state, kept.flat, job_.config.parallel.zero > 0);
  }
}

void Method::load_shared(const checkpoint::Reader& reader, Health& health,
                         std::vector<std::string>& notes) {
  health.from_json(reader.state().extra, reader.folder().string());
  const auto workers = kept_workers(reader);
  if (!workers || !workers->own_states) return;
  notes.push_back(fmt::format(
      "its {} workers had optimizer states of their own: all continue from the first one's",
      workers->each.size()));
}

std::vector<checkpoint::Piece> Method::pieces() const { return state_pieces({}, all_writers()); }

checkpoint::Writers Method::all_writers() const {
  const comm::Communicator& data = grid_.group(comm::Axis::data);
  return {data.rank(), data.size()};
}

std::vector<checkpoint::Piece> Method::state_pieces(const std::string& own,
                                                    const checkpoint::Writers& writers) const {
  std::vector<checkpoint::Piece> pieces;
  const state::ModelState& state = replica().state();
  checkpoint::append_pieces(pieces, "parameters", state, state.parameters(),
                            state.parameters_sharded(), all_writers());
  for (const auto& kept : replica().optimizer().states()) {
    checkpoint::append_pieces(pieces, own + kept.name, state, kept.flat,
                              job_.config.parallel.zero > 0, writers);
  }
  return pieces;
}

StartedSave Method::save(const checkpoint::State& state, bool background) {
  const RunConfig& config = job_.config;
  const checkpoint::FileLayout files = job_.files(job_.session);
  device::Device& device = replica().state().optimizer_device();
  if (!background && device.is_host()) {
    return {checkpoint::save(config.train.output, state, pieces(), grid_.world(), files), nullptr};
  }
  auto save = std::make_unique<checkpoint::Save>(config.train.output, state, pieces(), device,
                                                 grid_.world(), job_.ledger, files);
  if (!background) return {save->finish(), nullptr};
  return {{}, std::move(save)};
}

std::map<std::string, double> Method::least_traffic(std::int64_t /*steps*/) const {
  return train::least_traffic(replica().stage());
}

}  // namespace trireme::train
