// What the fuzz targets share. Each target is one function that libFuzzer calls with bytes of its
// own making (make fuzz), and that replay.cpp calls with those of tests/fuzz/corpus (make test).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "trireme/core/error.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace trireme::fuzz {

/// Ends the program, as a crash does, unless `held`.
inline void require(bool held, const std::string& what) {
  if (held) return;
  std::fprintf(stderr, "does not hold: %s\n", what.c_str());
  std::abort();
}

/// Whether `work` comes to its end. An Error (shown where TRIREME_FUZZ_SHOW is set) must be one
/// line that begins with `source` and is no longer than a screen; any other exception ends the
/// program.
template <class Work>
bool accepted(const std::string& source, const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (std::getenv("TRIREME_FUZZ_SHOW") != nullptr) std::fprintf(stderr, "%s\n", error.what());
    require(message.starts_with(source), "names its source: " + std::string(message));
    require(message.find('\n') == message.npos, "is one line: " + std::string(message));
    require(message.size() < 2000, "is short: " + std::string(message));
    return false;
  }
}

inline std::string text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder of this process in memory, where the system has one; its files are made anew for each
/// input.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    std::error_code error;
    const bool there = std::filesystem::is_directory(memory, error);
    std::string name =
        ((there ? memory : std::filesystem::temp_directory_path()) / "trireme-fuzz-XXXXXX")
            .string();
    require(::mkdtemp(name.data()) != nullptr, "a folder can be made: " + name);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  /// Makes `bytes` the content of the file `name`.
  void put(const std::string& name, const std::uint8_t* bytes, std::size_t size) const {
    std::FILE* file = std::fopen((path_ / name).c_str(), "wb");
    const bool written =
        file != nullptr && (size == 0 || std::fwrite(bytes, 1, size, file) == size);
    require(written && std::fclose(file) == 0, "a file can be written: " + name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::fuzz
