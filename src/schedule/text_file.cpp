#include "text_file.hpp"

#include <cerrno>
#include <system_error>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

namespace trireme::schedule {

namespace {
constexpr std::int64_t most_bytes = std::int64_t{64} << 20;
}  // namespace

std::string read_small_file(const std::filesystem::path& path) {
  const std::string shown = config::one_line(path.string());
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw AgreedError("{}: is a folder; name a CSV file", shown);
  if (!std::filesystem::exists(path, error))
    throw AgreedError("{}: cannot be read: {}; name an existing CSV file", shown,
                      std::generic_category().message(error ? error.value() : ENOENT));
  InputFile file(path);
  if (file.size() > most_bytes)
    throw AgreedError("{}: is larger than {} MiB; is it the right file?", shown, most_bytes >> 20);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  text.resize(file.read(text.data(), text.size()));
  return text;
}

}  // namespace trireme::schedule
