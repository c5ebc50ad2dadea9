// A split whose tokens are their own numbers.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/data/dataset.hpp"

namespace trireme::data::test {

/// Token i is i; documents end at the given places; reads fail from the n-th on.
class CountingReader : public TokenReader {
 public:
  explicit CountingReader(std::int64_t tokens, std::vector<std::int64_t> ends = {},
                          std::int64_t good_reads = 1 << 30)
      : tokens_(tokens), ends_(std::move(ends)), good_reads_(good_reads) {}
  std::int64_t tokens() const override { return tokens_; }
  void read(std::int64_t begin, std::span<std::int32_t> out) override {
    if (good_reads_-- == 0) throw Error("demo/train-00000.h5: broken on purpose; repair it");
    ASSERT_LE(begin + static_cast<std::int64_t>(out.size()), tokens_);
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(begin));
  }
  std::vector<std::int64_t> document_ends(std::int64_t begin, std::int64_t end) override {
    std::vector<std::int64_t> found;
    for (const std::int64_t e : ends_) {
      if (e > begin && e <= end) found.push_back(e);
    }
    return found;
  }

 private:
  std::int64_t tokens_;
  std::vector<std::int64_t> ends_;
  std::int64_t good_reads_;
};

}  // namespace trireme::data::test
