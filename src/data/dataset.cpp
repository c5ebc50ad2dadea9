#include "trireme/data/dataset.hpp"

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/data/tokenizer.hpp"

#include "manifest.hpp"
#include "shard.hpp"

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
