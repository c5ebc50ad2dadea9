// From the spool to shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/core/files.hpp"
#include "trireme/data/dataset.hpp"

#include "spool.hpp"

namespace trireme::data {

/// Reads the spool once, from front to end, and writes it as shards of at most `shard_tokens`.
class Sharder {
 public:
  Sharder(const Spool& spool, const std::filesystem::path& folder, std::int64_t shard_tokens);
  /// The next `tokens` tokens of the spool, as the shards of `split`.
  std::vector<ShardInfo> write(SplitName split, std::int64_t tokens);

 private:
  ShardInfo write_shard(const std::string& file, std::int64_t tokens);

  std::size_t element_bytes_;
  std::filesystem::path folder_;
  std::int64_t shard_tokens_;
  InputFile tokens_;
  EndReader counter_, ends_;        // the first runs ahead by a shard, to count
  std::int64_t begin_ = 0;          // of the next shard, in tokens of the spool
  std::int64_t counted_end_, end_;  // the next document end of each
};

}  // namespace trireme::data
