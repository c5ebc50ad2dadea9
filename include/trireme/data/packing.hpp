// Whole documents in sequences (data.packing = documents): which tokens sample number n holds.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

/// Tokens [begin, end) of one document.
struct Piece {
  std::int64_t begin = 0, end = 0;
  bool ends_document = false;
  bool operator==(const Piece&) const = default;
};

/// Best fit: puts lengths, each from 1 to `capacity`, into bins of that capacity in the order
/// given, each into the fullest bin that has room, or a new one. Returns the bin of each. In
/// descending order it takes at most 11/9 of the fewest possible bins, and four more (Johnson,
/// 1973).
std::vector<std::uint32_t> best_fit(std::span<const std::uint32_t> lengths, std::uint32_t capacity);

/// The samples of a split's documents. A document is cut into pieces of `length` tokens, and a
/// rest. Pieces that begin within `group_tokens` neighboring tokens make a group, which is packed
/// by itself: longest piece first, by best fit. So every token is in one sample of an epoch, and a
/// sample is found by looking at one group.
///
/// In each epoch groups, the samples of a group, and pieces of equal length are shuffled, so that
/// other documents share a sequence. Without shuffling samples are in the order of their first
/// pieces. How many samples a group has is known once it is packed: sample number n is found by
/// counting groups from the last one known (Cursor). Thread-safe.
class Packer {
 public:
  /// `group_tokens` is at least `length`. `reader` has at least one token.
  Packer(std::shared_ptr<TokenReader> reader, std::int64_t length, std::int64_t group_tokens,
         std::uint64_t seed, bool shuffle);
  const std::shared_ptr<TokenReader>& reader() const { return reader_; }

  /// The pieces of sample `sample` ≥ 0, in the order of the split.
  std::vector<Piece> at(std::int64_t sample);

  /// A group of the run: number `place` of the order of `epoch`. Its first sample is `first`.
  struct Cursor {
    std::int64_t epoch = 0, place = 0, first = 0;
    bool operator==(const Cursor&) const = default;
  };
  /// The group that holds sample `sample`.
  Cursor cursor(std::int64_t sample);
  /// Spares the counting up to `cursor`, which a packer of the same arguments gave.
  void begin_at(const Cursor& cursor);
  std::int64_t groups() const { return static_cast<std::int64_t>(counts_.size()); }

 private:
  /// A group's pieces by sample, as offsets from its first token.
  struct Group {
    std::int64_t number = -1, epoch = -1;
    struct Part {
      std::uint32_t offset, length : 31, ends_document : 1;
    };
    std::vector<Part> parts;
    std::vector<std::size_t> begins;  // of each sample in `parts`, and the end
    std::int64_t samples() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  };
  std::int64_t group_at(std::int64_t epoch, std::int64_t place) const;
  std::vector<Group::Part> parts_of(std::int64_t group) const;
  const Group& packed(std::int64_t group, std::int64_t epoch);
  Cursor find(std::int64_t sample);
  std::int64_t first_token(std::int64_t group) const { return group * group_tokens_; }

  const std::shared_ptr<TokenReader> reader_;
  const std::int64_t length_, group_tokens_;
  const std::uint64_t seed_;
  const bool shuffle_;

  std::mutex mutex_;                  // of what follows
  std::vector<std::int64_t> counts_;  // samples by group; −1: not known yet
  std::int64_t counted_ = 0;          // groups whose count is known
  std::int64_t all_ = 0;              // their samples
  Cursor start_, last_;               // given, and found last
  Group group_;                       // used last
};

}  // namespace trireme::data
