#include "spool.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "trireme/core/error.hpp"
#include "trireme/data/hash.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t piece = 32 * chunk_elements;  // elements written at once

/// The next document end; the largest number behind the last.
std::int64_t next_end(RangeReader& ends) {
  return ends.done() ? std::numeric_limits<std::int64_t>::max() : ends.next<std::int64_t>();
}

}  // namespace

Spool::Spool(const std::filesystem::path& folder, std::size_t element_bytes, bool has_weights)
    : element_bytes_(element_bytes),
      tokens_file_(folder / "tokens.spool"),
      ends_file_(folder / "ends.spool"),
      tokens_out_(tokens_file_),
      ends_out_(ends_file_) {
  if (has_weights) weights_out_.emplace(weights_file_.emplace(folder / "weights.spool"));
}

void Spool::append(std::span<const std::int32_t> tokens, std::uint8_t weight) {
  tokens_ += static_cast<std::int64_t>(tokens.size());
  if (weights_out_) {
    const std::vector<std::uint8_t> weights(tokens.size(), weight);
    weights_out_->write(weights.data(), weights.size());
  }
  if (element_bytes_ == 4) {
    tokens_out_.write(tokens.data(), tokens.size_bytes());
    return;
  }
  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  tokens_out_.write(narrow.data(), narrow.size() * sizeof(std::uint16_t));
}

void Spool::end_document() {
  if (!in_document()) return;
  document_begin_ = tokens_;
  ends_out_.write(&tokens_, sizeof tokens_);
  ++documents_;
}

void Spool::finish() {
  tokens_out_.finish();
  ends_out_.finish();
  if (weights_out_) weights_out_->finish();
}

void Spool::remove() {
  std::vector<std::filesystem::path> files{tokens_file_, ends_file_};
  if (weights_file_) files.push_back(*weights_file_);
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    std::filesystem::remove(file, error);
    if (error) throw_file_error(file, "remove", error.value());
  }
}

std::size_t RangeReader::read(void* data, std::size_t most) {
  const auto wanted = std::min(static_cast<std::int64_t>(most), end_ - at_);
  const auto got =
      static_cast<std::int64_t>(file_->read_at(data, static_cast<std::size_t>(wanted), at_));
  at_ += got;
  if (got < wanted) {
    throw Error("{}: ended at byte {} while it was read; leave it alone meanwhile",
                file_->path().string(), at_);
  }
  return static_cast<std::size_t>(got);
}

std::int64_t training_tokens(const Spool& spool, double valid_fraction) {
  const auto all = static_cast<double>(spool.tokens());
  const double exact = (1 - valid_fraction) * all;
  // (1 − 0.9)·10 is below 1 in binary: what is whole but for rounding counts as whole.
  const double whole = std::round(exact);
  const auto target =
      static_cast<std::int64_t>(std::abs(exact - whole) <= 1e-12 * all ? whole : std::floor(exact));
  if (valid_fraction == 0) return spool.tokens();
  if (valid_fraction == 1) return 0;
  if (spool.documents() == 1) return target;
  RangeReader ends(spool.ends_file());
  std::int64_t best = 0;
  for (std::int64_t i = 0; i + 1 < spool.documents(); ++i) {
    const std::int64_t end = ends.next<std::int64_t>();
    if (best == 0 || std::llabs(end - target) < std::llabs(best - target)) best = end;
    if (end >= target) break;
  }
  return best;
}

Sharder::Sharder(const Spool& spool, const std::filesystem::path& folder, std::int64_t shard_tokens)
    : element_bytes_(spool.element_bytes()),
      folder_(folder),
      shard_tokens_(shard_tokens),
      tokens_(spool.tokens_file()),
      counter_(spool.ends_file()),
      ends_(spool.ends_file()),
      counted_end_(next_end(counter_)),
      end_(next_end(ends_)) {
  if (spool.weights_file()) weights_.emplace(*spool.weights_file());
}

std::vector<ShardInfo> Sharder::write(SplitName split, std::int64_t tokens) {
  std::vector<ShardInfo> shards;
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t part = std::min(shard_tokens_, tokens - done);
    shards.push_back(write_shard(shard_file(split, shards.size()), part));
    done += part;
  }
  return shards;
}

ShardInfo Sharder::write_shard(const std::string& file, std::int64_t tokens) {
  std::int64_t documents = 0;
  for (; counted_end_ <= begin_ + tokens; counted_end_ = next_end(counter_)) ++documents;
  const std::filesystem::path path = folder_ / file;
  ShardWriter writer(path, tokens, documents, element_bytes_, weights_.has_value());
  std::vector<std::byte> elements;
  const auto next = [&](InputFile& from, std::int64_t count, std::size_t bytes) {
    elements.resize(static_cast<std::size_t>(count) * bytes);
    const std::size_t got = from.read(elements.data(), elements.size());
    TRIREME_ASSERT(got == elements.size(), "the spool ended early");
  };
  for (std::int64_t done = 0; done < tokens; done += piece) {
    const std::int64_t count = std::min(piece, tokens - done);
    next(tokens_, count, element_bytes_);
    writer.append_tokens(elements);
    if (!weights_) continue;
    next(*weights_, count, 1);
    writer.append_weights(elements);
  }
  std::vector<std::uint64_t> ends;
  for (std::int64_t done = 0; done < documents; done += piece) {
    ends.clear();
    for (std::int64_t i = 0; i < std::min(piece, documents - done); ++i) {
      ends.push_back(static_cast<std::uint64_t>(end_ - begin_));
      end_ = next_end(ends_);
    }
    writer.append_ends(ends);
  }
  writer.finish();
  begin_ += tokens;
  return {file, tokens, documents, hash_file(path)};
}

}  // namespace trireme::data
