#include "trireme/train/setup.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <dnnl.h>
#include <hdf5.h>

#include "trireme/data/hdf5.hpp"

namespace trireme::train {

int threads_of_rank(const parallel::ParallelConfig& config, const comm::Session& session) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) {
    if (const int n = std::atoi(threads); n > 0) return n;
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / session.node_size());
}

std::int64_t choose_micro_batch(std::int64_t per_rank, std::int64_t sequence) {
  std::int64_t best = 1;
  for (std::int64_t n = 1; n <= per_rank && n * sequence <= 4096; ++n) {
    if (per_rank % n == 0) best = n;
  }
  return best;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return path;
  std::vector<std::string> broken;
  if (const auto found = checkpoint::newest(path, &broken)) return *found;
  throw Error("checkpoint {}: {}; name a run folder or one of its step-… folders", path.string(),
              broken.empty() ? std::string("there is none here") : broken.front());
}

model::ModelConfig model_of(const checkpoint::State& state) {
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  fields.from_json({{"model", state.config.at("model")}}, config::Source::file, "checkpoint");
  config.resolve();
  return config;
}

void load_parameters(const checkpoint::Reader& reader, const params::ParameterTable& table,
                     const Tensor& parameters) {
  for (const params::Parameter& row : table.rows()) {
    reader.read("parameters/" + row.name, 0,
                parameters.slice(0, row.offset, row.offset + row.shape.elements()));
  }
}

void append_pieces(std::vector<checkpoint::Piece>& pieces, const std::string& prefix,
                   const params::ParameterTable& table, const Tensor& flat, int replica,
                   int replicas) {
  for (const params::Parameter& row : table.rows()) {
    const auto writer = static_cast<int>(row.offset * replicas / table.flat_elements());
    pieces.push_back({.name = prefix + "/" + row.name,
                      .shape = row.shape,
                      .offset = 0,
                      .data = flat.slice(0, row.offset, row.offset + row.shape.elements()),
                      .write = writer == replica});
  }
}

parallel::LossSum evaluate_split(parallel::Engine& engine, data::TokenReader& reader,
                                 std::int64_t length, std::int64_t samples,
                                 std::int64_t micro_batch, bool document_mask,
                                 comm::Communicator& group) {
  const data::Sampler sampler(reader.tokens(), length, reader.tokens(), 0, false);
  const std::int64_t windows = sampler.windows_per_epoch();
  const std::int64_t count = samples > 0 ? std::min(samples, windows) : windows;
  const data::LoaderOptions options{
      .micro_batch = micro_batch, .length = length, .document_mask = document_mask};
  parallel::LossSum sum;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = group.rank(); i < count; i += group.size()) {
    numbers.push_back(i);
    const bool full = static_cast<std::int64_t>(numbers.size()) == micro_batch;
    if (!full && i + group.size() < count) continue;
    const parallel::HostMicrobatch batch(data::make_batch(reader, sampler, options, numbers));
    const parallel::LossSum part = engine.evaluate(batch);
    sum.loss += part.loss;
    sum.weight += part.weight;
    numbers.clear();
  }
  sum.loss = group.all_reduce(sum.loss, comm::Reduction::sum);
  sum.weight = group.all_reduce(sum.weight, comm::Reduction::sum);
  return sum;
}

nlohmann::json versions() {
  const dnnl_version_t* dnnl = dnnl_version();
  unsigned major = 0, minor = 0, release = 0;
  {
    // The first call into the library must be made so: a file that could not be closed on a full
    // disk makes its own clean-up at exit crash, and the lock's set-up turns that off.
    const data::hdf5::Lock lock;
    H5get_libversion(&major, &minor, &release);
  }
  return {{"trireme", TRIREME_VERSION},
          {"compiler", __VERSION__},
          {"mpi", comm::library_version()},
          {"hdf5", fmt::format("{}.{}.{}", major, minor, release)},
          {"onednn", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch)}};
}

}  // namespace trireme::train
