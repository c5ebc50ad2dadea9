// The checksum that our safetensors files carry in their metadata, where the format has none.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// Its key: the xxh3 of the whole file with zeros in the place of its own 16 digits.
inline constexpr const char* seal_key = "trireme_xxh3";
inline constexpr const char* no_seal = "0000000000000000";

/// Computes it and writes it into a file whose header holds `no_seal`. Throws Error.
void seal_safetensors(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
