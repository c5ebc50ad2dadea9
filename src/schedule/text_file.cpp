#include "text_file.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

namespace trireme::schedule {

namespace {
constexpr std::size_t most_bytes = std::size_t{64} << 20;
}  // namespace

std::string read_small_file(const std::filesystem::path& path) {
  const std::string shown = config::one_line(path.string());
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw AgreedError("{}: is a folder; name a CSV file", shown);
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw AgreedError("{}: cannot be read: {}; name an existing CSV file", shown,
                      std::generic_category().message(errno));
  std::string text(std::size_t{1} << 16, '\0');
  std::size_t size = 0;
  do {
    if (size == text.size()) text.resize(2 * size);
    file.read(text.data() + size, static_cast<std::streamsize>(text.size() - size));
    size += static_cast<std::size_t>(file.gcount());
    if (size > most_bytes)
      throw AgreedError("{}: is larger than {} MiB; is it the right file?", shown,
                        most_bytes >> 20);
  } while (file);
  if (file.bad()) throw AgreedError("{}: reading failed; try again or copy the file", shown);
  text.resize(size);
  return text;
}

}  // namespace trireme::schedule
