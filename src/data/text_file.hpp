// Text files, also those compressed by gzip (NAME.gz) or Zstandard (NAME.zst).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace trireme::data {

class TextFile {
 public:
  virtual ~TextFile() = default;
  /// The next bytes of text; fewer than `bytes` only at its end. Throws Error that names the file
  /// where it is damaged or cut short.
  virtual std::size_t read(char* text, std::size_t bytes) = 0;
  /// Of the file, compressed or not.
  virtual std::int64_t bytes_read() const = 0;
};

bool is_compressed(const std::filesystem::path& path);
/// From byte `begin` on, which is 0 for compressed files.
std::unique_ptr<TextFile> open_text(const std::filesystem::path& path, std::int64_t begin = 0);

}  // namespace trireme::data
