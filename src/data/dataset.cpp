#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <unordered_map>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/data/tokenizer.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t most_manifest_bytes = std::int64_t{64} << 20;

/// Reads every chunk of a shard; document ends must also ascend from chunk to chunk.
void check_chunks(const std::filesystem::path& folder, const Manifest& manifest,
                  const ShardInfo& shard) {
  const ShardReader reader(folder, manifest, shard);
  for (std::int64_t first = 0; first < reader.tokens(); first += chunk_elements) {
    reader.token_chunk(first / chunk_elements);
  }
  std::uint64_t before = 0;
  for (std::int64_t first = 0; first < reader.documents(); first += chunk_elements) {
    const std::vector<std::uint64_t> ends = reader.end_chunk(first / chunk_elements);
    if (ends.front() <= before) {
      throw Error("{}: document ends do not ascend; prepare again", (folder / shard.file).string());
    }
    before = ends.back();
  }
}

/// Chunks by number, the least recently used dropped first.
template <class Chunk>
class Cache {
 public:
  explicit Cache(std::size_t capacity) : capacity_(std::max<std::size_t>(capacity, 4)) {}

  template <class Read>
  const Chunk& get(std::uint64_t number, Read read) {
    const auto found = places_.find(number);
    if (found != places_.end()) {
      chunks_.splice(chunks_.begin(), chunks_, found->second);
      return found->second->second;
    }
    Chunk chunk = read();
    if (chunks_.size() == capacity_) {
      places_.erase(chunks_.back().first);
      chunks_.pop_back();
    }
    chunks_.emplace_front(number, std::move(chunk));
    places_.emplace(number, chunks_.begin());
    return chunks_.front().second;
  }

 private:
  using Entry = std::pair<std::uint64_t, Chunk>;
  std::size_t capacity_;
  std::list<Entry> chunks_;  // most recently used first
  std::unordered_map<std::uint64_t, typename std::list<Entry>::iterator> places_;
};

template <class Element>
void widen(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Element id;
    std::memcpy(&id, from + i * sizeof id, sizeof id);
    to[i] = static_cast<std::int32_t>(id);
  }
}

/// TokenReader over the shards of one split.
class ShardedReader : public TokenReader {
 public:
  ShardedReader(std::filesystem::path folder, Manifest manifest, SplitName split,
                std::int64_t cache_bytes)
      : folder_(std::move(folder)),
        manifest_(std::move(manifest)),
        shards_(shards_of(manifest_, split)),
        bytes_(manifest_.element_bytes),
        chunks_(static_cast<std::size_t>(std::max<std::int64_t>(cache_bytes, 0)) /
                (bytes_ * chunk_elements)),
        ends_(16) {
    for (const ShardInfo& shard : shards_) starts_.push_back(starts_.back() + shard.tokens);
  }

  std::int64_t tokens() const override { return starts_.back(); }

  void read(std::int64_t begin, std::span<std::int32_t> out) override {
    TRIREME_ASSERT(begin >= 0 && begin <= tokens() &&
                       out.size() <= static_cast<std::uint64_t>(tokens() - begin),
                   "tokens {} + {} of {}", begin, out.size(), tokens());
    const std::lock_guard guard(mutex_);
    while (!out.empty()) {
      const std::size_t shard = shard_of(begin);
      const std::int64_t local = begin - starts_[shard];
      const std::int64_t within = local % chunk_elements;
      const std::int64_t in_chunk =
          std::min(chunk_elements - within, shards_[shard].tokens - local);
      const std::size_t count = std::min(out.size(), static_cast<std::size_t>(in_chunk));
      const std::byte* from = chunk_of(shard, local / chunk_elements).data() +
                              static_cast<std::size_t>(within) * bytes_;
      if (bytes_ == 2) {
        widen<std::uint16_t>(from, out.first(count));
      } else {
        widen<std::uint32_t>(from, out.first(count));
      }
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

  std::vector<std::int64_t> document_ends(std::int64_t begin, std::int64_t end) override {
    TRIREME_ASSERT(begin >= 0 && begin <= end && end <= tokens(), "tokens {}-{} of {}", begin, end,
                   tokens());
    const std::lock_guard guard(mutex_);
    std::vector<std::int64_t> found;
    if (begin == end) return found;
    for (std::size_t shard = shard_of(begin); shard < shards_.size() && starts_[shard] < end;
         ++shard) {
      const std::int64_t low = std::max<std::int64_t>(begin - starts_[shard], 0);
      const std::int64_t high = end - starts_[shard];
      append_ends(shard, static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high), found);
    }
    return found;
  }

 private:
  static constexpr std::size_t most_open = 8;

  std::size_t shard_of(std::int64_t token) const {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), token);
    return static_cast<std::size_t>(after - starts_.begin()) - 1;
  }

  ShardReader& open(std::size_t shard) {
    for (Open& entry : open_) {
      if (entry.shard == shard) return *entry.reader;
    }
    auto reader = std::make_unique<ShardReader>(folder_, manifest_, shards_[shard]);
    if (open_.size() == most_open) open_.pop_front();
    open_.push_back({shard, std::move(reader)});
    return *open_.back().reader;
  }

  static std::uint64_t number(std::size_t shard, std::int64_t chunk) {
    return std::uint64_t{shard} << 40 | static_cast<std::uint64_t>(chunk);
  }

  const std::vector<std::byte>& chunk_of(std::size_t shard, std::int64_t chunk) {
    return chunks_.get(number(shard, chunk), [&] { return open(shard).token_chunk(chunk); });
  }

  const std::vector<std::uint64_t>& ends_of(std::size_t shard, std::int64_t chunk) {
    return ends_.get(number(shard, chunk), [&] { return open(shard).end_chunk(chunk); });
  }

  /// Ends in (low, high] of one shard, as global offsets.
  void append_ends(std::size_t shard, std::uint64_t low, std::uint64_t high,
                   std::vector<std::int64_t>& found) {
    const std::int64_t chunks = (shards_[shard].documents + chunk_elements - 1) / chunk_elements;
    std::int64_t first = 0;  // chunk that holds the first end above `low`
    for (std::int64_t last = chunks; first < last;) {
      const std::int64_t middle = first + (last - first) / 2;
      if (ends_of(shard, middle).back() > low) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    for (std::int64_t chunk = first; chunk < chunks; ++chunk) {
      const std::vector<std::uint64_t>& ends = ends_of(shard, chunk);
      for (auto at = std::upper_bound(ends.begin(), ends.end(), low); at != ends.end(); ++at) {
        if (*at > high) return;
        found.push_back(starts_[shard] + static_cast<std::int64_t>(*at));
      }
    }
  }

  struct Open {
    std::size_t shard;
    std::unique_ptr<ShardReader> reader;
  };

  std::mutex mutex_;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<ShardInfo> shards_;
  std::size_t bytes_;                       // of an element
  std::vector<std::int64_t> starts_ = {0};  // first token of each shard, and the end
  std::deque<Open> open_;                   // oldest first
  Cache<std::vector<std::byte>> chunks_;
  Cache<std::vector<std::uint64_t>> ends_;
};

}  // namespace

Dataset Dataset::open(const std::filesystem::path& folder) {
  std::error_code code;
  if (!std::filesystem::is_directory(folder, code)) {
    throw Error("dataset {}: no such folder; name one made by `trireme prepare`", folder.string());
  }
  const std::filesystem::path file = folder / manifest_file;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, code))) {
    throw Error("dataset {}: holds no {}; name a folder made by `trireme prepare`", folder.string(),
                manifest_file);
  }
  Dataset dataset;
  dataset.folder_ = folder;
  dataset.manifest_ = parse_manifest(read_small_file(file, most_manifest_bytes), file.string());
  for (const SplitName split : {SplitName::train, SplitName::valid}) {
    for (const ShardInfo& shard : shards_of(dataset.manifest_, split)) {
      const ShardReader header_only(folder, dataset.manifest_, shard);
    }
  }
  return dataset;
}

std::unique_ptr<TokenReader> Dataset::reader(SplitName split, std::int64_t cache_bytes) const {
  return std::make_unique<ShardedReader>(folder_, manifest_, split, cache_bytes);
}

void Dataset::verify() const {
  for (const SplitName split : {SplitName::train, SplitName::valid}) {
    for (const ShardInfo& shard : shards_of(manifest_, split)) {
      // Chunks first: their errors name the place.
      check_chunks(folder_, manifest_, shard);
      const std::filesystem::path file = folder_ / shard.file;
      const std::string found = hash_file(file);
      if (found != shard.xxh3) {
        throw Error("{}: hash of the whole file is {}, expected {}; restore the file",
                    file.string(), found, shard.xxh3);
      }
    }
  }
  if (manifest_.tokenizer != "none") load_tokenizer(*this);
}

}  // namespace trireme::data
