// trireme train --dry-run --samples: the sequences of a step, as its ranks will read them.

#include <algorithm>

#include "trireme/data/corpus.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/train/checkpointer.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

/// Where the run would begin: after the checkpoint that it would load, or at 0.
train::Position resume(data::Corpus& corpus, const train::RunConfig& config) {
  std::vector<std::string> passed_over;
  const std::string folder = train::resume_folder(config, passed_over);
  if (folder.empty()) return {};
  const checkpoint::Reader reader(folder);
  train::check_checkpoint(config, reader);
  const train::ResumePoint point = train::resume_point(config, reader);
  corpus.resume(point.position.samples, point.blend, point.data, folder);
  corpus.resume_packed(point.packed);
  return point.position;
}

std::string source_table(const data::Corpus& corpus, const train::RunConfig& config,
                         std::int64_t first, std::int64_t end) {
  const data::Shares& shares = corpus.order().begun(first).phase.shares;
  const auto before = corpus.order().given(first), at_end = corpus.order().given(end);
  std::string text = fmt::format("{:<24}{:>9}{:>16}{:>16}{:>16}{:>12}\n", "source", "share",
                                 "samples", "before step", "at the end", "epochs");
  for (std::size_t i = 0; i < corpus.sources().size(); ++i) {
    const auto& source = corpus.sources()[i];
    const std::int64_t samples = corpus.samples_of_source(i, config.data);
    text +=
        fmt::format("{:<24}{:>7.3g} %{:>16}{:>16}{:>16}{:>12.3f}\n", config::one_line(source.name),
                    100 * static_cast<double>(shares.parts[i]) / static_cast<double>(shares.all),
                    grouped(samples), grouped(before[i]), grouped(at_end[i]),
                    static_cast<double>(at_end[i]) / static_cast<double>(samples));
  }
  return text;
}

}  // namespace

void check_data(const train::RunConfig& config) {
  data::Corpus corpus = data::Corpus::open(config.data.path, config.model.sequence);
  const train::Position position = resume(corpus, config);
  const std::int64_t left = std::max<std::int64_t>(0, config.train.steps - position.step);
  corpus.check_end(config.data, position.samples + left * config.train.batch);
}

std::string show_samples(const train::RunConfig& config, const train::LayoutFacts& facts,
                         std::int64_t step) {
  const train::TrainConfig& train = config.train;
  const std::int64_t length = config.model.sequence;
  data::Corpus corpus = data::Corpus::open(config.data.path, length);
  const train::Position position = resume(corpus, config);
  if (position.step >= train.steps) {
    throw Error("--samples {}: the run is at step {} of {}; raise train.steps", step, position.step,
                train.steps);
  }
  if (step <= position.step || step > train.steps) {
    throw Error("--samples {}: the run takes steps {} to {}; name one of them", step,
                position.step + 1, train.steps);
  }
  const auto at_step = [&](std::int64_t done) {
    return position.samples + (done - position.step) * train.batch;
  };
  const std::int64_t first = at_step(step - 1), end = at_step(train.steps);
  const data::Windows windows = corpus.windows(config.data, static_cast<std::uint64_t>(train.seed));
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (corpus.manifest().tokenizer != "none") tokenizer = data::load_tokenizer(corpus.dataset());
  const std::int64_t ranks = train::grid_shape(config, facts).of(comm::Axis::data);
  std::string text = source_table(corpus, config, first, end);
  // Of whole documents a sample has several pieces and padding.
  const auto row = [&](const auto&... columns) {
    text += fmt::format("{:<6}{:>12}  {:<24}{:>14}{:>16}{:>10}{:>10}  {}\n", columns...);
  };
  text += "\n";
  row("rank", "sample", "source", "its sample", "first token", "pieces", "padding", "begins");
  for (std::int64_t i = 0; i < train.batch; ++i) {
    const data::Blend::Place place = corpus.order().at(first + i);
    const data::Batch batch =
        data::make_batch(windows, {.micro_batch = 1, .length = length}, {first + i});
    const data::Window window = windows(first + i);
    row(i / (train.batch / ranks), first + i, config::one_line(corpus.sources()[place.source].name),
        place.sample, window.begin(), window.pieces.size(), batch.padding,
        first_text(batch.inputs, tokenizer.get()));
  }
  return text;
}

}  // namespace trireme::cli
