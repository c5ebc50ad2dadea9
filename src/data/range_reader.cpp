#include "range_reader.hpp"

#include <algorithm>
#include <cerrno>

#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::data {

std::size_t RangeReader::read(void* data, std::size_t most) {
  const auto wanted = std::min(static_cast<std::int64_t>(most), end_ - at_);
  auto* to = static_cast<std::byte*>(data);
  for (std::int64_t done = 0; done < wanted;) {
    const ssize_t got = ::pread(file_->descriptor(), to + done,
                                static_cast<std::size_t>(wanted - done), at_ + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(file_->path(), "read", errno);
    if (got == 0) {
      throw Error("{}: ended at byte {} while it was read; leave it alone meanwhile",
                  file_->path().string(), at_ + done);
    }
    done += got;
  }
  at_ += wanted;
  return static_cast<std::size_t>(wanted);
}

}  // namespace trireme::data
