#include "trireme/data/packing.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>

#include "trireme/core/error.hpp"
#include "trireme/core/random.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::data {
namespace {

/// A count of samples that is not known yet.
constexpr std::int64_t unknown = -1;

/// Where the document of token `token` begins.
std::int64_t document_begin(TokenReader& reader, std::int64_t token) {
  for (std::int64_t reach = 1 << 12; token > 0; reach *= 2) {
    const std::int64_t low = std::max<std::int64_t>(0, token - reach);
    const std::vector<std::int64_t> ends = reader.document_ends(low, token);
    if (!ends.empty()) return ends.back();
    if (low == 0) break;
  }
  return 0;
}

/// 0 … size − 1, shuffled by the stream of `key` (Fisher and Yates; Durstenfeld, 1964).
std::vector<std::uint32_t> shuffled(std::size_t size, const RandomKey& key) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = size; i > 1; --i) {
    const std::size_t draw = size - i;
    if (draw % 4 == 0) words = random_block(key, draw / 4);
    // Below i, uneven by less than i / 2^32.
    const auto other = static_cast<std::size_t>(std::uint64_t{words[draw % 4]} * i >> 32);
    std::swap(order[i - 1], order[other]);
  }
  return order;
}

/// Indices of `lengths` by descending length; equal ones in the order of `ties`.
std::vector<std::uint32_t> longest_first(std::span<const std::uint32_t> lengths,
                                         std::int64_t longest,
                                         std::span<const std::uint32_t> ties) {
  std::vector<std::size_t> begins(static_cast<std::size_t>(longest) + 2);
  const auto slot = [&](std::uint32_t length) {
    return static_cast<std::size_t>(longest) - length;
  };
  for (const std::uint32_t length : lengths) ++begins[slot(length) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<std::uint32_t> order(lengths.size());
  for (const std::uint32_t index : ties) order[begins[slot(lengths[index])]++] = index;
  return order;
}

}  // namespace

std::vector<std::uint32_t> best_fit(std::span<const std::uint32_t> lengths,
                                    std::uint32_t capacity) {
  std::vector<std::uint32_t> bins;
  bins.reserve(lengths.size());
  std::map<std::uint32_t, std::vector<std::uint32_t>> open;  // bins by the room that is left
  std::uint32_t count = 0;
  for (const std::uint32_t length : lengths) {
    std::uint32_t bin = count, room = capacity;
    if (const auto fullest = open.lower_bound(length); fullest != open.end()) {
      room = fullest->first;
      bin = fullest->second.back();
      fullest->second.pop_back();
      if (fullest->second.empty()) open.erase(fullest);
    } else {
      ++count;
    }
    bins.push_back(bin);
    if (room > length) open[room - length].push_back(bin);
  }
  return bins;
}

Packer::Packer(std::shared_ptr<TokenReader> reader, std::int64_t length, std::int64_t group_tokens,
               std::uint64_t seed, bool shuffle)
    : reader_(std::move(reader)),
      length_(length),
      group_tokens_(std::min(group_tokens, std::int64_t{1} << 31)),
      seed_(seed),
      shuffle_(shuffle) {
  TRIREME_ASSERT(length >= 1 && length <= group_tokens_ && reader_->tokens() > 0,
                 "{} tokens in sequences of {}, groups of {}", reader_->tokens(), length,
                 group_tokens);
  const std::int64_t groups = (reader_->tokens() - 1) / group_tokens_ + 1;
  counts_.assign(static_cast<std::size_t>(groups), unknown);
}

std::int64_t Packer::group_at(std::int64_t epoch, std::int64_t place) const {
  if (!shuffle_) return place;
  const EpochSeeds seeds = epoch_seeds(seed_, static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(permute({seeds.groups, Purpose::packing, 0},
                                           static_cast<std::uint64_t>(place), counts_.size()));
}

std::vector<Packer::Group::Part> Packer::parts_of(std::int64_t group) const {
  const std::int64_t tokens = reader_->tokens();
  const std::int64_t first = first_token(group), end = std::min(first + group_tokens_, tokens);
  // Pieces that begin before `end` end at most `length` − 1 later.
  const std::int64_t seen = std::min(end + length_, tokens);
  std::vector<std::int64_t> ends = reader_->document_ends(first, seen);
  if (ends.empty() || ends.back() < tokens) {  // of a document that goes on
    ends.push_back(seen == tokens ? tokens : std::numeric_limits<std::int64_t>::max());
  }
  std::vector<Group::Part> parts;
  std::int64_t begin = document_begin(*reader_, first);
  begin += (first - begin + length_ - 1) / length_ * length_;  // pieces before are another group's
  for (const std::int64_t document_end : ends) {
    for (; begin < std::min(document_end, end); begin += length_) {
      const std::int64_t left = document_end - begin;
      parts.push_back({static_cast<std::uint32_t>(begin - first),
                       static_cast<std::uint32_t>(std::min(length_, left)), left <= length_});
    }
    begin = document_end;
    if (begin >= end) break;
  }
  return parts;
}

const Packer::Group& Packer::packed(std::int64_t number, std::int64_t epoch) {
  if (group_.number == number && group_.epoch == epoch) return group_;
  group_ = {};
  const std::vector<Group::Part> parts = parts_of(number);
  TRIREME_ASSERT(parts.size() < std::numeric_limits<std::uint32_t>::max(), "{} pieces in a group",
                 parts.size());
  std::vector<std::uint32_t> lengths(parts.size());
  std::ranges::transform(parts, lengths.begin(),
                         [](const Group::Part& part) { return part.length; });
  const EpochSeeds seeds = epoch_seeds(seed_, static_cast<std::uint64_t>(epoch));
  const auto stream = static_cast<std::uint32_t>(number);
  const auto order_of = [&](std::size_t size, const RandomKey& key) {
    if (shuffle_) return shuffled(size, key);
    std::vector<std::uint32_t> order(size);
    std::iota(order.begin(), order.end(), 0U);
    return order;
  };
  const std::vector<std::uint32_t> order = longest_first(
      lengths, length_, order_of(lengths.size(), {seeds.groups, Purpose::packing, stream + 1}));
  std::vector<std::uint32_t> sorted(lengths.size());
  std::ranges::transform(order, sorted.begin(), [&](std::uint32_t i) { return lengths[i]; });
  const std::vector<std::uint32_t> bins = best_fit(sorted, static_cast<std::uint32_t>(length_));

  // Samples are numbered by their first pieces, then shuffled; pieces keep the order of the split.
  constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
  const std::uint32_t samples = bins.empty() ? 0 : *std::ranges::max_element(bins) + 1;
  std::vector<std::uint32_t> bin_of(parts.size()), place_of(samples, none);
  for (std::size_t i = 0; i < order.size(); ++i) bin_of[order[i]] = bins[i];
  std::uint32_t next = 0;
  for (std::uint32_t& bin : bin_of) {
    if (place_of[bin] == none) place_of[bin] = next++;
    bin = place_of[bin];
  }
  const std::vector<std::uint32_t> places =
      order_of(samples, {seeds.windows, Purpose::packing, stream});
  std::vector<std::size_t> begins(samples + std::size_t{1});
  for (const std::uint32_t bin : bin_of) ++begins[places[bin] + std::size_t{1}];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  group_.begins = begins;
  group_.parts.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    group_.parts[begins[places[bin_of[i]]]++] = parts[i];
  }
  group_.number = number;
  group_.epoch = epoch;
  std::int64_t& count = counts_[static_cast<std::size_t>(number)];
  if (count == unknown) {
    count = group_.samples();
    all_ += count;
    ++counted_;
  }
  return group_;
}

Packer::Cursor Packer::find(std::int64_t sample) {
  TRIREME_ASSERT(sample >= 0, "sample {}", sample);
  Cursor at = sample >= last_.first ? last_ : sample >= start_.first ? start_ : Cursor{};
  for (;;) {
    if (at.place == 0 && counted_ == groups()) {  // whole epochs at once
      const std::int64_t epochs = (sample - at.first) / all_;
      at.epoch += epochs;
      at.first += epochs * all_;
    }
    const std::int64_t group = group_at(at.epoch, at.place);
    std::int64_t count = counts_[static_cast<std::size_t>(group)];
    if (count == unknown) count = packed(group, at.epoch).samples();
    if (sample < at.first + count) return at;
    at.first += count;
    if (++at.place == groups()) {
      at.place = 0;
      ++at.epoch;
    }
  }
}

std::vector<Piece> Packer::at(std::int64_t sample) {
  const std::lock_guard guard(mutex_);
  last_ = find(sample);
  const std::int64_t number = group_at(last_.epoch, last_.place);
  const Group& group = packed(number, last_.epoch);
  const auto within = static_cast<std::size_t>(sample - last_.first);
  std::vector<Piece> pieces;
  for (std::size_t i = group.begins[within]; i < group.begins[within + 1]; ++i) {
    const Group::Part& part = group.parts[i];
    const std::int64_t begin = first_token(number) + part.offset;
    pieces.push_back({begin, begin + part.length, part.ends_document != 0});
  }
  return pieces;
}

Packer::Cursor Packer::cursor(std::int64_t sample) {
  const std::lock_guard guard(mutex_);
  return find(sample);
}

void Packer::begin_at(const Cursor& cursor) {
  const std::lock_guard guard(mutex_);
  TRIREME_ASSERT(
      cursor.epoch >= 0 && cursor.first >= 0 && cursor.place >= 0 && cursor.place < groups(),
      "group {} of {} in epoch {}, sample {}", cursor.place, groups(), cursor.epoch, cursor.first);
  start_ = last_ = cursor;
}

}  // namespace trireme::data
