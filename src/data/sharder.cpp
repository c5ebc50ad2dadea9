#include "sharder.hpp"

#include <algorithm>

#include "trireme/core/error.hpp"
#include "trireme/data/hash.hpp"

#include "manifest.hpp"
#include "shard.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t piece = 32 * chunk_elements;  // elements written at once

}  // namespace

Sharder::Sharder(const Spool& spool, const std::filesystem::path& folder, std::int64_t shard_tokens)
    : element_bytes_(spool.element_bytes()),
      folder_(folder),
      shard_tokens_(shard_tokens),
      tokens_(spool.tokens_file()),
      counter_(spool.ends_file()),
      ends_(spool.ends_file()),
      counted_end_(counter_.next()),
      end_(ends_.next()) {}

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
  for (; counted_end_ <= begin_ + tokens; counted_end_ = counter_.next()) ++documents;
  const std::filesystem::path path = folder_ / file;
  ShardWriter writer(path, tokens, documents, element_bytes_);
  std::vector<std::byte> elements;
  for (std::int64_t done = 0; done < tokens; done += piece) {
    elements.resize(static_cast<std::size_t>(std::min(piece, tokens - done)) * element_bytes_);
    const std::size_t got = tokens_.read(elements.data(), elements.size());
    TRIREME_ASSERT(got == elements.size(), "the spool ended early");
    writer.append_tokens(elements);
  }
  std::vector<std::uint64_t> ends;
  for (std::int64_t done = 0; done < documents; done += piece) {
    ends.clear();
    for (std::int64_t i = 0; i < std::min(piece, documents - done); ++i) {
      ends.push_back(static_cast<std::uint64_t>(end_ - begin_));
      end_ = ends_.next();
    }
    writer.append_ends(ends);
  }
  writer.finish();
  begin_ += tokens;
  return {file, tokens, documents, hash_file(path)};
}

}  // namespace trireme::data
