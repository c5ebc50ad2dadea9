#include <algorithm>
#include <cerrno>

#include <fcntl.h>

#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/data/hash.hpp"

#include "files.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t digits = 16;

struct Seal {
  std::int64_t place = 0;  // of the digits, in bytes
  std::string value;       // what they ought to be
};

/// Hashes a file whose header holds `stored`. Throws Error where those digits are not to be found.
Seal compute_seal(const fs::path& path, Links links, const std::string& stored) {
  InputFile file(path, links);
  std::uint64_t length = 0;
  read_at(file, &length, sizeof length, 0);
  const std::uint64_t rest = static_cast<std::uint64_t>(file.size()) - sizeof length;
  std::string header(std::min(length, rest), '\0');
  read_at(file, header.data(), header.size(), sizeof length);
  const std::string mark = fmt::format("\"{}\":\"", seal_key);
  const std::size_t at = header.find(mark + stored + "\"");
  if (stored.size() != digits || at == std::string::npos) {
    throw Error("{}: its metadata hold a {} that was not written by this program; restore the file",
                path.string(), seal_key);
  }
  header.replace(at + mark.size(), digits, no_seal);
  data::Xxh3 hash;
  hash.update(&length, sizeof length);
  hash.update(header.data(), header.size());
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  auto done = static_cast<std::int64_t>(sizeof length + header.size());
  while (done < file.size()) {
    const auto part =
        std::min<std::int64_t>(static_cast<std::int64_t>(buffer.size()), file.size() - done);
    read_at(file, buffer.data(), static_cast<std::size_t>(part), done);
    hash.update(buffer.data(), static_cast<std::size_t>(part));
    done += part;
  }
  return {static_cast<std::int64_t>(sizeof length + at + mark.size()), hash.hex()};
}

}  // namespace

void seal_safetensors(const fs::path& path) {
  const Seal seal = compute_seal(path, Links::refuse, no_seal);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.get() < 0) throw_file_error(path, "open", errno);
  write_at(file, path, seal.value.data(), seal.value.size(), seal.place);
  if (file.close() != 0) throw_file_error(path, "write", errno);
}

void SafeTensorsFile::verify() const {
  const auto stored = header_.metadata.find(seal_key);
  if (stored == header_.metadata.end()) return;
  if (compute_seal(path(), Links::follow, stored->second).value == stored->second) return;
  throw Error(
      "{}: does not match the checksum in its metadata; restore the file, or remove {} from them "
      "if another program has changed it",
      path().string(), seal_key);
}

}  // namespace trireme::checkpoint
