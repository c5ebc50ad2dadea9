#include <array>
#include <bit>
#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/report/formats.hpp"

namespace trireme::report {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1U) ^ ((value & 1U) != 0 ? 0x82F63B78U : 0U);  // the polynomial, reflected
    }
    table[byte] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> crc_table = make_table();

template <class T>
void append_little_endian(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    text += static_cast<char>(value >> (8 * i) & 0xFFU);
  }
}

// The wire format of protocol buffers: a key (field number and wire type), then the value.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& text, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7U) text += static_cast<char>((value & 0x7FU) | 0x80U);
  text += static_cast<char>(value);
}
void append_key(std::string& text, unsigned field, Wire wire) {
  append_varint(text, field << 3U | static_cast<unsigned>(wire));
}
void append_bytes(std::string& text, unsigned field, std::string_view bytes) {
  append_key(text, field, Wire::bytes);
  append_varint(text, bytes.size());
  text += bytes;
}

// message Event: double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary
// = 5; SessionLog session_log = 7. message SessionLog: enum status = 1 (1: START). message Summary:
// repeated Value value = 1. message Value: string tag = 1; float simple_value = 2.
std::string event_at(double wall_time) {
  std::string event;
  append_key(event, 1, Wire::fixed64);
  append_little_endian(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path new_name(const std::filesystem::path& folder, int attempt) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_file_error(folder, "create", error.value());
  utsname system{};
  uname(&system);
  return folder / fmt::format("events.out.tfevents.{:04}.{}.{}.{}", attempt,
                              static_cast<std::int64_t>(seconds_since_1970()), system.nodename,
                              ::getpid());
}

void append_step(std::string& event, std::int64_t step) {
  append_key(event, 2, Wire::varint);
  append_varint(event, static_cast<std::uint64_t>(step));
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t value = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    value = crc_table[(value ^ static_cast<unsigned char>(byte)) & 0xFFU] ^ (value >> 8U);
  }
  return value ^ 0xFFFFFFFFU;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

std::string tfrecord(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(data.size()));
  append_little_endian(record, masked_crc32c(record));
  record += data;
  append_little_endian(record, masked_crc32c(data));
  return record;
}

std::string scalar_event(double wall_time, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, 1, tag);
    append_key(value, 2, Wire::fixed32);
    append_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    append_bytes(summary, 1, value);
  }
  std::string event = event_at(wall_time);
  append_step(event, step);
  append_bytes(event, 5, summary);
  return event;
}

std::string version_event(double wall_time) {
  std::string event = event_at(wall_time);
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string session;
  append_key(session, 1, Wire::varint);
  append_varint(session, 1);
  std::string event = event_at(wall_time);
  append_step(event, step);
  append_bytes(event, 7, session);
  return event;
}

EventFile::EventFile(const std::filesystem::path& folder, int attempt)
    : path_(new_name(folder, attempt)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) throw_file_error(path_, "create", errno);
  write_all(file_, path_, tfrecord(version_event(seconds_since_1970())));
}

void EventFile::start(std::int64_t step) {
  write_all(file_, path_, tfrecord(start_event(seconds_since_1970(), step)));
}

void EventFile::write(std::int64_t step, const Scalars& scalars) {
  write_all(file_, path_, tfrecord(scalar_event(seconds_since_1970(), step, scalars)));
}

}  // namespace trireme::report
