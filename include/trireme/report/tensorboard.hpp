// Event files that TensorBoard reads: records of an Event message each (protocol buffers), framed
// as TFRecord: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data, all
// little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/files.hpp"

namespace trireme::report {

/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as iSCSI uses it (RFC 3720, B.4).
std::uint32_t crc32c(std::string_view bytes);
/// As TFRecord keeps it: turned right by 15 bits, plus 0xa282ead8.
std::uint32_t masked_crc32c(std::string_view bytes);
/// One record.
std::string tfrecord(std::string_view data);

/// Values under their tags, e.g. {"train/loss", 2.5}.
using Scalars = std::vector<std::pair<std::string, double>>;

/// An Event message of `scalars`, each a simple_value, which is fp32. `wall_time`: seconds since
/// 1970.
std::string scalar_event(double wall_time, std::int64_t step, const Scalars& scalars);
/// The Event that every file begins with.
std::string version_event(double wall_time);

/// "events.out.tfevents.SECONDS.HOST.PROCESS" in a folder; TensorBoard takes any file so named.
class EventFile {
 public:
  /// Throws Error where the file cannot be written, as does `write`.
  explicit EventFile(const std::filesystem::path& folder);
  void write(std::int64_t step, const Scalars& scalars);

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace trireme::report
