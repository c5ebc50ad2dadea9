#include "trireme/train/evaluation.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/comm/agree.hpp"

namespace trireme::train {

parallel::LossSum evaluate_split(parallel::Replica& replica, data::TokenReader& reader,
                                 std::int64_t samples, bool document_mask, comm::Grid& grid,
                                 comm::Watchdog& watchdog, report::PhaseProgress& progress) {
  comm::Communicator& data_group = grid.group(comm::Axis::data);  // and context
  const int context = grid.shape().of(comm::Axis::context), ranks = data_group.size() / context;
  const std::int64_t length = replica.stage().model().config().sequence;
  const std::int64_t micro_batch = replica.stage().options().sequences;
  const data::Sampler sampler(reader.tokens(), length, reader.tokens(), 0, false);
  const std::int64_t windows = sampler.windows_per_epoch();
  const std::int64_t count = samples > 0 ? std::min(samples, windows) : windows;
  const data::LoaderOptions options{
      .micro_batch = micro_batch, .length = length, .document_mask = document_mask};
  // Every rank takes as many micro-batches, of full size: the last ones are filled up with windows
  // that weigh nothing.
  const std::int64_t share = micro_batch * ranks;
  const std::int64_t rounds = (count + share - 1) / share;
  std::size_t each = 1;                // sums of a round
  std::vector<parallel::LossSum> own;  // by round
  for (std::int64_t round = 0; round < rounds; ++round) {
    watchdog.beat("evaluate");
    const std::int64_t number = round * ranks + data_group.rank() / context;
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < micro_batch; ++i) {
      numbers.push_back(std::min(number * micro_batch + i, count - 1));
    }
    data::Batch batch;
    comm::agree(grid.world(), [&] { batch = data::make_batch(reader, sampler, options, numbers); });
    for (std::int64_t i = 0; i < micro_batch; ++i) {
      if (number * micro_batch + i < count) continue;
      std::fill_n(batch.weights.begin() + static_cast<std::ptrdiff_t>(i * length), length, 0.0F);
    }
    const auto parts = replica.engine().evaluate(parallel::HostMicrobatch(std::move(batch)));
    own.insert(own.end(), parts.begin(), parts.end());
    each = parts.size();
    progress.show(static_cast<double>(round + 1) / static_cast<double>(rounds),
                  fmt::format("{} of {} windows", std::min((round + 1) * share, count), count));
  }
  // Added up in the order of windows, so that the bits do not depend on who had which.
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(own.data());
  const auto all = data_group.all_gather_bytes({bytes, own.size() * sizeof(parallel::LossSum)});
  parallel::LossSum sum;
  for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
    for (std::size_t rank = 0; rank < all.size(); rank += static_cast<std::size_t>(context)) {
      for (std::size_t i = 0; i < each; ++i) {
        parallel::LossSum part;
        std::memcpy(&part, all[rank].data() + (round * each + i) * sizeof part, sizeof part);
        sum.loss += part.loss;
        sum.weight += part.weight;
      }
    }
  }
  return sum;
}

Evaluation evaluation_of(const data::Corpus& corpus, const std::vector<data::Corpus::Split>& splits,
                         const std::vector<parallel::LossSum>& sums, std::int64_t samples) {
  Evaluation found;
  if (sums.size() == 1) found.all = sums.front();
  const std::vector<std::int64_t>& parts = corpus.order().begun(samples).phase.shares.parts;
  double weighted = 0, mean = 0, weights = 0, tokens = 0;
  double counted = 0;  // sources that have targets
  for (std::size_t i = 0; i < splits.size(); ++i) {
    found.sources.emplace_back(splits[i].name, sums[i]);
    if (sums[i].weight == 0) continue;
    ++counted;
    const auto part = static_cast<double>(parts[splits[i].source]);
    weighted += part * sums[i].mean();
    weights += part;
    mean += sums[i].mean();
    tokens += sums[i].weight;
  }
  if (sums.size() > 1 && counted > 0) {
    found.all = {(weights > 0 ? weighted / weights : mean / counted) * tokens, tokens};
  }
  return found;
}

}  // namespace trireme::train
