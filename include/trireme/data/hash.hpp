// xxh3 (64 bits) of streams and of whole files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace trireme::data {

/// A running xxh3. `update` may be called with pieces of any size; `value` may be asked at any
/// time.
class Xxh3 {
 public:
  Xxh3();
  void update(const void* data, std::size_t bytes);
  std::uint64_t value() const;
  std::string hex() const;  // 16 lower-case digits

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The hash of `bytes`, as Xxh3::hex() gives it.
std::string hash_text(std::string_view bytes);

/// The hash of a whole file, read in pieces of 4 MiB. Throws Error with the path and the system's
/// reason.
std::string hash_file(const std::filesystem::path& path);

}  // namespace trireme::data
