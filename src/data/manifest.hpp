// dataset.json: text to Manifest and back.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

inline constexpr const char* manifest_file = "dataset.json";
inline constexpr const char* format_name = "trireme-tokens";
inline constexpr std::uint64_t format_version = 1;

std::string name_of(SplitName split);  // "train", "valid"

/// "train-00000.h5": the only name that shard `index` of a split may have.
std::string shard_file(SplitName split, std::size_t index);

const std::vector<ShardInfo>& shards_of(const Manifest& manifest, SplitName split);

/// JSON whose first value is the xxh3 of all that follows it.
std::string to_text(const Manifest& manifest);

/// Throws Error that begins with `where` for anything but what `to_text` writes.
Manifest parse_manifest(const std::string& text, const std::string& where);

}  // namespace trireme::data
