#include "spool.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "trireme/core/error.hpp"
#include "trireme/data/hash.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t piece = 32 * chunk_elements;  // elements written at once

/// PREFIX.COLUMN
std::filesystem::path file_of(const std::filesystem::path& prefix, const char* column) {
  std::filesystem::path file = prefix;
  return file += std::string(".") + column;
}

}  // namespace

Spool::Spool(const std::filesystem::path& prefix, std::size_t element_bytes, bool has_weights)
    : prefix_(prefix),
      element_bytes_(element_bytes),
      tokens_out_(file_of(prefix, "tokens")),
      ends_out_(file_of(prefix, "ends")) {
  if (has_weights) weights_out_.emplace(file_of(prefix, "weights"));
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

void Spool::finish(const std::filesystem::path& prefix) {
  tokens_out_.finish();
  ends_out_.finish();
  if (weights_out_) weights_out_->finish();
  for (const char* column : {"tokens", "ends", "weights"}) {
    if (column == std::string_view("weights") && !weights_out_) continue;
    rename_for_good(file_of(prefix_, column), file_of(prefix, column));
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

Spools::Spools(std::vector<Part> parts, std::size_t element_bytes, bool has_weights)
    : parts_(std::move(parts)), element_bytes_(element_bytes), has_weights_(has_weights) {
  for (const Part& part : parts_) {
    begins_.push_back(begins_.back() + part.tokens);
    document_begins_.push_back(document_begins_.back() + part.documents);
  }
}

void Spools::read(const char* column, std::size_t element_bytes, std::int64_t begin,
                  std::int64_t count, std::vector<std::byte>& out) const {
  const auto width = static_cast<std::int64_t>(element_bytes);
  out.resize(static_cast<std::size_t>(count * width));
  const std::int64_t end = begin + count;
  std::size_t done = 0;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const std::int64_t first = std::max(begin, begins_[part]);
    const std::int64_t last = std::min(end, begins_[part + 1]);
    if (first >= last) continue;
    RangeReader reader(
        std::make_shared<InputFile>(file_of(parts_[part].prefix, column), Links::refuse),
        (first - begins_[part]) * width, (last - first) * width);
    while (!reader.done()) done += reader.read(out.data() + done, out.size() - done);
  }
  TRIREME_ASSERT(done == out.size(), "{} of {} bytes", done, out.size());
}

void Spools::read_tokens(std::int64_t begin, std::int64_t count,
                         std::vector<std::byte>& elements) const {
  read("tokens", element_bytes_, begin, count, elements);
}

void Spools::read_weights(std::int64_t begin, std::int64_t count,
                          std::vector<std::byte>& weights) const {
  read("weights", 1, begin, count, weights);
}

std::int64_t Spools::documents_until(std::int64_t token) const {
  const auto after = std::ranges::upper_bound(begins_, token);
  if (after == begins_.end()) return documents();
  const auto part = static_cast<std::size_t>(after - begins_.begin()) - 1;
  std::int64_t low = document_begins_[part], high = document_begins_[part + 1];
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (ends(middle, 1).front() <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

std::vector<std::int64_t> Spools::ends(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> found;
  found.reserve(static_cast<std::size_t>(count));
  const std::int64_t end = first + count;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const std::int64_t low = std::max(first, document_begins_[part]);
    const std::int64_t high = std::min(end, document_begins_[part + 1]);
    if (low >= high) continue;
    constexpr std::int64_t width = sizeof(std::int64_t);
    RangeReader reader(
        std::make_shared<InputFile>(file_of(parts_[part].prefix, "ends"), Links::refuse),
        (low - document_begins_[part]) * width, (high - low) * width);
    for (std::int64_t i = low; i < high; ++i) {
      found.push_back(begins_[part] + reader.next<std::int64_t>());
    }
  }
  return found;
}

void Spools::remove() const {
  for (const Part& part : parts_) {
    for (const char* column : {"tokens", "ends", "weights", "json"}) {
      const std::filesystem::path file = file_of(part.prefix, column);
      std::error_code error;
      std::filesystem::remove(file, error);
      if (error) throw_file_error(file, "remove", error.value());
    }
  }
}

std::int64_t training_tokens(const Spools& spools, double valid_fraction) {
  const auto all = static_cast<double>(spools.tokens());
  const double exact = (1 - valid_fraction) * all;
  // (1 − 0.9)·10 is below 1 in binary: what is whole but for rounding counts as whole.
  const double whole = std::round(exact);
  const auto target =
      static_cast<std::int64_t>(std::abs(exact - whole) <= 1e-12 * all ? whole : std::floor(exact));
  if (valid_fraction == 0) return spools.tokens();
  if (valid_fraction == 1) return 0;
  if (spools.documents() == 1) return target;
  // The last end up to the target and the one behind it, but not the end of the last document.
  const std::int64_t boundaries = spools.documents() - 1;
  const std::int64_t until = std::min(boundaries, spools.documents_until(target));
  std::int64_t best = 0;
  for (std::int64_t i = std::max<std::int64_t>(0, until - 1); i < std::min(boundaries, until + 1);
       ++i) {
    const std::int64_t end = spools.ends(i, 1).front();
    if (best == 0 || std::llabs(end - target) < std::llabs(best - target)) best = end;
  }
  return best;
}

std::vector<ShardPlan> plan_shards(SplitName split, std::int64_t begin, std::int64_t tokens,
                                   std::int64_t shard_tokens) {
  std::vector<ShardPlan> shards;
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t part = std::min(shard_tokens, tokens - done);
    shards.push_back({shard_file(split, shards.size()), begin + done, part});
    done += part;
  }
  return shards;
}

ShardInfo write_shard(const Spools& spools, const ShardPlan& plan,
                      const std::filesystem::path& folder, std::int64_t& learned) {
  const std::int64_t first = spools.documents_until(plan.begin);
  const std::int64_t documents = spools.documents_until(plan.begin + plan.tokens) - first;
  const std::filesystem::path path = folder / plan.file;
  ShardWriter writer(path, plan.tokens, documents, spools.element_bytes(), spools.has_weights());
  std::vector<std::byte> elements;
  for (std::int64_t done = 0; done < plan.tokens; done += piece) {
    const std::int64_t count = std::min(piece, plan.tokens - done);
    spools.read_tokens(plan.begin + done, count, elements);
    writer.append_tokens(elements);
    if (!spools.has_weights()) {
      learned += count;
      continue;
    }
    spools.read_weights(plan.begin + done, count, elements);
    learned += count - std::ranges::count(elements, std::byte{0});
    writer.append_weights(elements);
  }
  for (std::int64_t done = 0; done < documents; done += piece) {
    std::vector<std::uint64_t> ends;
    for (const std::int64_t end : spools.ends(first + done, std::min(piece, documents - done))) {
      ends.push_back(static_cast<std::uint64_t>(end - plan.begin));
    }
    writer.append_ends(ends);
  }
  writer.finish();
  return {plan.file, plan.tokens, documents, hash_file(path)};
}

}  // namespace trireme::data
