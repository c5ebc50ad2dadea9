// dataset.json: an accepted one names plain files, has valid counts, and round-trips.
#include "data/dataset_files.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  data::Manifest manifest;
  if (!fuzz::accepted("set/dataset.json: ", [&] {
        manifest = data::parse_manifest(fuzz::text_of(data, size), "set/dataset.json");
      })) {
    return 0;
  }
  for (const data::SplitName split : {data::SplitName::train, data::SplitName::valid}) {
    std::int64_t tokens = 0;
    for (const data::ShardInfo& shard : data::shards_of(manifest, split)) {
      fuzz::require(std::filesystem::path(shard.file).filename() == shard.file, "a plain name");
      fuzz::require(shard.tokens > 0 && shard.documents >= 0 && shard.documents <= shard.tokens,
                    "counts are valid");
      fuzz::require(!__builtin_add_overflow(tokens, shard.tokens, &tokens), "and so is their sum");
    }
  }
  const std::int64_t ids = std::int64_t{1} << (8 * manifest.element_bytes);
  fuzz::require(manifest.vocabulary > 0 && manifest.vocabulary <= ids, "ids fit their elements");
  fuzz::require(manifest.end_of_document.value_or(0) < manifest.vocabulary,
                "an id like the others");
  const std::string text = data::to_text(manifest);
  fuzz::require(data::to_text(data::parse_manifest(text, "again")) == text, "written and read");
  return 0;
}
