#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <tuple>

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
    if (manifest.loss_weights) reader.weight_chunk(first / chunk_elements);
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

/// Chunks by key, the least recently used dropped first, up to a number of bytes.
template <class Key, class Element>
class Cache {
 public:
  explicit Cache(std::size_t bytes) : capacity_(bytes) {}

  template <class Read>
  const std::vector<Element>& get(const Key& key, Read read) {
    const auto found = places_.find(key);
    if (found != places_.end()) {
      chunks_.splice(chunks_.begin(), chunks_, found->second);
      return found->second->second;
    }
    std::vector<Element> chunk = read();
    bytes_ += chunk.size() * sizeof(Element);
    while (!chunks_.empty() && bytes_ > capacity_) {
      bytes_ -= chunks_.back().second.size() * sizeof(Element);
      places_.erase(chunks_.back().first);
      chunks_.pop_back();
    }
    chunks_.emplace_front(key, std::move(chunk));
    places_.emplace(key, chunks_.begin());
    return chunks_.front().second;
  }

 private:
  using Entry = std::pair<Key, std::vector<Element>>;
  std::size_t capacity_, bytes_ = 0;
  std::list<Entry> chunks_;  // most recently used first
  std::map<Key, typename std::list<Entry>::iterator> places_;
};

template <class Element>
void widen(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Element id;
    std::memcpy(&id, from + i * sizeof id, sizeof id);
    to[i] = static_cast<std::int32_t>(id);
  }
}

}  // namespace

/// Keys name a reader, a shard of its, and a chunk.
class ReaderCache {
 public:
  explicit ReaderCache(std::int64_t bytes)
      : chunks(static_cast<std::size_t>(std::max(bytes, least_bytes))),
        weights(static_cast<std::size_t>(std::max(bytes / 2, least_bytes))),
        ends(end_bytes) {}

  ShardReader& open(std::uint64_t reader, std::size_t shard, const auto& make) {
    for (Open& entry : open_) {
      if (entry.reader == reader && entry.shard == shard) return *entry.file;
    }
    auto file = make();
    if (open_.size() == most_open) open_.pop_front();
    open_.push_back({reader, shard, std::move(file)});
    return *open_.back().file;
  }
  std::uint64_t add_reader() {
    const std::lock_guard guard(mutex);
    return readers_++;
  }

  using Key = std::tuple<std::uint64_t, std::size_t, std::int64_t>;
  std::mutex mutex;  // of what follows
  Cache<Key, std::byte> chunks, weights;
  Cache<Key, std::uint64_t> ends;

 private:
  static constexpr std::int64_t least_bytes = 4 * 2 * chunk_elements;  // four chunks
  static constexpr std::size_t end_bytes = 16 * sizeof(std::uint64_t) * chunk_elements;
  static constexpr std::size_t most_open = 16;
  struct Open {
    std::uint64_t reader;
    std::size_t shard;
    std::unique_ptr<ShardReader> file;
  };
  std::deque<Open> open_;  // oldest first
  std::uint64_t readers_ = 0;
};

namespace {

/// TokenReader over the shards of one split.
class ShardedReader : public TokenReader {
 public:
  ShardedReader(std::filesystem::path folder, Manifest manifest, SplitName split,
                std::shared_ptr<ReaderCache> cache)
      : folder_(std::move(folder)),
        manifest_(std::move(manifest)),
        shards_(shards_of(manifest_, split)),
        bytes_(manifest_.element_bytes),
        cache_(std::move(cache)),
        own_(cache_->add_reader()) {
    for (const ShardInfo& shard : shards_) starts_.push_back(starts_.back() + shard.tokens);
  }

  std::int64_t tokens() const override { return starts_.back(); }

  void read(std::int64_t begin, std::span<std::int32_t> out) override {
    for_parts(begin, out,
              [&](std::size_t shard, std::int64_t chunk, std::size_t within, auto part) {
                const std::byte* from = chunk_of(shard, chunk).data() + within * bytes_;
                if (bytes_ == 2) {
                  widen<std::uint16_t>(from, part);
                } else {
                  widen<std::uint32_t>(from, part);
                }
              });
  }

  bool has_weights() const override { return manifest_.loss_weights; }
  void weights(std::int64_t begin, std::span<std::byte> out) override {
    if (!has_weights()) return TokenReader::weights(begin, out);
    for_parts(begin, out,
              [&](std::size_t shard, std::int64_t chunk, std::size_t within, auto part) {
                std::ranges::copy_n(weights_of(shard, chunk).data() + within,
                                    static_cast<std::ptrdiff_t>(part.size()), part.begin());
              });
  }

  std::vector<std::int64_t> document_ends(std::int64_t begin, std::int64_t end) override {
    TRIREME_ASSERT(begin >= 0 && begin <= end && end <= tokens(), "tokens {}-{} of {}", begin, end,
                   tokens());
    const std::lock_guard guard(cache_->mutex);
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
  /// read(shard, chunk, first element in the chunk, part of `out`) for each chunk of the tokens
  /// [begin, begin + out.size()), under the lock.
  template <class Element, class Read>
  void for_parts(std::int64_t begin, std::span<Element> out, const Read& read) {
    TRIREME_ASSERT(begin >= 0 && begin <= tokens() &&
                       out.size() <= static_cast<std::uint64_t>(tokens() - begin),
                   "tokens {} + {} of {}", begin, out.size(), tokens());
    const std::lock_guard guard(cache_->mutex);
    while (!out.empty()) {
      const std::size_t shard = shard_of(begin);
      const std::int64_t local = begin - starts_[shard];
      const std::int64_t within = local % chunk_elements;
      const std::int64_t in_chunk =
          std::min(chunk_elements - within, shards_[shard].tokens - local);
      const std::size_t count = std::min(out.size(), static_cast<std::size_t>(in_chunk));
      read(shard, local / chunk_elements, static_cast<std::size_t>(within), out.first(count));
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

  std::size_t shard_of(std::int64_t token) const {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), token);
    return static_cast<std::size_t>(after - starts_.begin()) - 1;
  }

  ShardReader& open(std::size_t shard) {
    return cache_->open(own_, shard, [&] {
      return std::make_unique<ShardReader>(folder_, manifest_, shards_[shard]);
    });
  }

  const std::vector<std::byte>& chunk_of(std::size_t shard, std::int64_t chunk) {
    return cache_->chunks.get({own_, shard, chunk}, [&] { return open(shard).token_chunk(chunk); });
  }

  const std::vector<std::byte>& weights_of(std::size_t shard, std::int64_t chunk) {
    return cache_->weights.get({own_, shard, chunk},
                               [&] { return open(shard).weight_chunk(chunk); });
  }

  const std::vector<std::uint64_t>& ends_of(std::size_t shard, std::int64_t chunk) {
    return cache_->ends.get({own_, shard, chunk}, [&] { return open(shard).end_chunk(chunk); });
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

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<ShardInfo> shards_;
  std::size_t bytes_;                       // of an element
  std::vector<std::int64_t> starts_ = {0};  // first token of each shard, and the end
  std::shared_ptr<ReaderCache> cache_;
  std::uint64_t own_;  // this reader's number in the cache
};

}  // namespace

void TokenReader::weights(std::int64_t /*begin*/, std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{1});
}

Dataset Dataset::open(const std::filesystem::path& folder) {
  Dataset dataset = open_manifest(folder);
  dataset.check_headers();
  return dataset;
}

void Dataset::check_headers(std::size_t part, std::size_t parts) const {
  std::size_t number = 0;
  for (const SplitName split : {SplitName::train, SplitName::valid}) {
    for (const ShardInfo& shard : shards_of(manifest_, split)) {
      if (number++ % parts == part) const ShardReader header_only(folder_, manifest_, shard);
    }
  }
}

Dataset Dataset::open_manifest(const std::filesystem::path& folder) {
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
  return dataset;
}

std::shared_ptr<ReaderCache> make_reader_cache(std::int64_t bytes) {
  return std::make_shared<ReaderCache>(bytes);
}

std::unique_ptr<TokenReader> Dataset::reader(SplitName split,
                                             std::shared_ptr<ReaderCache> cache) const {
  if (cache == nullptr) cache = make_reader_cache();
  return std::make_unique<ShardedReader>(folder_, manifest_, split, std::move(cache));
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
