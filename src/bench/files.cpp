#include "trireme/core/files.hpp"

#include <fcntl.h>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/exact.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/data/loader.hpp"

namespace trireme::bench {
namespace {

class Writer {
 public:
  Writer(const Place& place, const FileOptions& options, const std::filesystem::path& folder)
      : path_(folder / fmt::format("rank-{:05d}", place.session.rank())),
        block_(1 << 22),
        bytes_(options.bytes) {
    const Numbers numbers{251};
    for (std::size_t i = 0; i < block_.size(); ++i) {
      block_[i] = static_cast<char>(numbers.at(place.session.rank(), static_cast<std::int64_t>(i)));
    }
  }
  /// As a checkpoint's file comes about: under another name, fsynced, then renamed.
  void write() const {
    const std::filesystem::path part = path_.string() + ".tmp";
    {
      OutputFile file(part);
      each_block([&](std::size_t bytes) { file.write(block_.data(), bytes); });
      file.finish();
    }
    sync_path(part);
    rename_for_good(part, path_);
  }
  /// Before the next write, which creates a new file: freeing the old one's blocks is no part of
  /// it.
  void remove() const { std::filesystem::remove(path_); }
  /// Asks the system to forget what it has of the file, so that reading goes to the file system. It
  /// may refuse: pages of memory file systems are the file itself.
  void forget() const {
    const Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0) throw_file_error(path_, "read", errno);
    static_cast<void>(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED));
  }
  /// Every byte through a buffer, as a checkpoint's reader does; its hash.
  std::string read() const { return data::hash_file(path_); }
  std::string expected() const {
    data::Xxh3 hash;
    each_block([&](std::size_t bytes) { hash.update(block_.data(), bytes); });
    return hash.hex();
  }

 private:
  template <class Use>
  void each_block(const Use& use) const {
    for (std::int64_t at = 0; at < bytes_; at += static_cast<std::int64_t>(block_.size())) {
      use(static_cast<std::size_t>(
          std::min<std::int64_t>(bytes_ - at, static_cast<std::int64_t>(block_.size()))));
    }
  }
  std::filesystem::path path_;
  std::vector<char> block_;
  std::int64_t bytes_;
};

/// A row: `bytes` per rank and iteration, `tokens` where they are tokens.
void put(const Place& place, Sheet& sheet, const FileOptions& options, const std::string& what,
         const Times& times, double bytes, double tokens, std::int64_t wrong) {
  const double all = place.session.size() * bytes / times.average;
  const double token_rate = place.session.size() * tokens / times.average;
  const std::int64_t everywhere = place.world.all_reduce(wrong, comm::Reduction::sum);
  sheet.result(
      {.name = fmt::format("io/{}/{:.0f}", what, bytes),
       .iterations = options.rounds.iterations,
       .times = times,
       .threads = place.session.size(),
       .counters = {{"size", bytes}, {"bytes_per_second", all}, {"items_per_second", token_rate}}},
      {what, fmt::format("{:.0f}", bytes)},
      {cell(bytes / times.average / 1e6), cell(all / 1e6),
       tokens > 0 ? fmt::format("{:.4g}", token_rate) : "N/A"},
      everywhere);
}

/// Times of `work` alone, between `before` and `after`. A rank whose disk is full must not leave
/// the others waiting: each iteration is agreed on, after its time was taken, so ranks begin
/// together.
template <class Before, class Work, class After>
Times agreed_rounds(const Place& place, const Rounds& rounds, const Before& before,
                    const Work& work, const After& after) {
  std::vector<double> seconds;
  for (std::int64_t i = -rounds.warmup; i < rounds.iterations; ++i) {
    comm::agree(place.world, before);
    comm::agree(place.world, [&] {
      const auto begin = Clock::now();
      work();
      if (i >= 0) seconds.push_back(seconds_since(begin));
      after();
    });
  }
  return times_over_ranks(place.world, seconds);
}

void bench_writer(const Place& place, const FileOptions& options, Sheet& sheet) {
  std::optional<TemporaryFolder> owned;  // rank 0's
  const std::filesystem::path folder = comm::of_rank_zero(place.world, [&] {
    return owned.emplace(options.folder / "trireme-bench-io.XXXXXX").path().string();
  });
  Writer writer(place, options, folder);
  const auto bytes = static_cast<double>(options.bytes);
  const auto timed = [&](const auto& before, const auto& work) {
    return agreed_rounds(place, options.rounds, before, work, [] {});
  };
  put(place, sheet, options, "write", timed([&] { writer.remove(); }, [&] { writer.write(); }),
      bytes, 0, 0);
  std::int64_t wrong = 0;
  const std::string expected = writer.expected();
  const auto read = [&] { wrong += writer.read() == expected ? 0 : 1; };
  const Times cold = timed([&] { writer.forget(); }, read);
  put(place, sheet, options, "read", cold, bytes, 0, std::exchange(wrong, 0));
  const Times warm = timed([] {}, read);
  put(place, sheet, options, "read-again", warm, bytes, 0, wrong);
}

void bench_dataset(const Place& place, const FileOptions& options, Sheet& sheet) {
  std::unique_ptr<data::TokenReader> reader;
  std::int64_t token_bytes = 0, vocabulary = 0;
  comm::agree(place.world, [&] {
    const data::Dataset dataset = data::Dataset::open(options.dataset);
    reader = dataset.reader(data::SplitName::train);
    token_bytes = static_cast<std::int64_t>(dataset.manifest().element_bytes);
    vocabulary = dataset.manifest().vocabulary;
  });
  const data::Sampler sampler(reader->tokens(), options.length, reader->tokens(), 1, true);
  const data::LoaderOptions loading{.micro_batch = options.sequences, .length = options.length};
  // Ranks read windows of their own, as data ranks do.
  std::int64_t next = place.session.rank() * options.sequences;
  std::int64_t wrong = 0;
  std::vector<std::int64_t> samples;
  data::Batch batch;
  const auto choose = [&] {
    batch = {};
    samples.clear();
    for (std::int64_t i = 0; i < options.sequences; ++i) samples.push_back(next + i);
    next += place.session.size() * options.sequences;
  };
  const auto check = [&] {
    for (std::size_t i = 0; i + 1 < batch.inputs.size(); ++i) {
      const bool inside = (i + 1) % static_cast<std::size_t>(options.length) != 0;
      // The target is the token after the input, and both are in the vocabulary.
      const bool follows = !inside || batch.targets[i] == batch.inputs[i + 1];
      wrong += follows && batch.inputs[i] >= 0 && batch.inputs[i] < vocabulary ? 0 : 1;
    }
  };
  const Times times = agreed_rounds(
      place, options.rounds, choose,
      [&] { batch = data::make_batch(*reader, sampler, loading, samples); }, check);
  const auto tokens = static_cast<double>(options.sequences * options.length);
  put(place, sheet, options, "dataset", times, tokens * static_cast<double>(token_bytes), tokens,
      wrong);
}

}  // namespace

void bench_files(const Place& place, const FileOptions& options, Sheet& sheet) {
  sheet.result_columns({{"what", "", 11}, {"size", "B", 11}},
                       {{"a rank", "MB/s", 8}, {"all ranks", "MB/s", 9}, {"tokens", "1/s", 9}});
  if (!options.folder.empty()) bench_writer(place, options, sheet);
  if (!options.dataset.empty()) bench_dataset(place, options, sheet);
}

}  // namespace trireme::bench
