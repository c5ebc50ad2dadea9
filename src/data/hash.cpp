#include "trireme/data/hash.hpp"

#include <new>
#include <vector>

#include <xxhash.h>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

namespace trireme::data {

void Xxh3::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Xxh3::Xxh3() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Xxh3::update(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(state_.get(), data, bytes);
}

std::uint64_t Xxh3::value() const { return XXH3_64bits_digest(state_.get()); }

std::string Xxh3::hex() const { return fmt::format("{:016x}", value()); }

std::string hash_text(std::string_view bytes) {
  Xxh3 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

std::string hash_file(const std::filesystem::path& path) {
  InputFile file(path);
  std::vector<char> buffer(std::size_t{4} << 20);
  Xxh3 hash;
  while (const std::size_t got = file.read(buffer.data(), buffer.size())) {
    hash.update(buffer.data(), got);
  }
  return hash.hex();
}

}  // namespace trireme::data
