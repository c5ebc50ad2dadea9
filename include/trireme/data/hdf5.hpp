// How this process uses libhdf5: one lock around every call (distributions build it without thread
// safety), handles that close themselves, and strict opening of untrusted files. No
// call moves more than `piece_bytes`, so that no thread holds the lock for long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

namespace trireme::data::hdf5 {

/// Holds the lock; recursive, so that helpers may take it again. The first one sets the library up:
/// no plug-ins (a file may name a filter, but never load code), no error stacks on standard error,
/// and no clean-up at exit (every handle is closed by its owner; after a failed write on a full
/// disk the library's own clean-up would try again for ever).
class Lock {
 public:
  Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

inline constexpr std::size_t piece_bytes = std::size_t{16} << 20;

/// Why the last call of this thread failed, from the library's error stack: the system's reason
/// where there is one ("No space left on device"), else the library's. Call it under the same Lock.
std::string reason();

/// Throws Error "<what>: cannot write: <reason>; <remedy>" for the last call of this thread. Call
/// it under the same Lock.
[[noreturn]] void fail_to_write(const std::string& what);

/// What a call that may write to the file `what` returned, if it succeeded.
template <class Result>
Result written(Result result, const std::string& what) {
  if (result < 0) fail_to_write(what);
  return result;
}

/// An owned identifier of the library, or none.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept;
  ~Handle() { close(); }
  explicit operator bool() const { return id_ >= 0; }
  hid_t get() const { return id_; }
  /// What the library's close call returns, for those who must know (a file's close writes).
  herr_t close();

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

// Below, the path or `what` opens the message of every Error; `what` is the path of the open file.

/// Opens an existing file for reading without locking it. Throws when it is not a regular file
/// (symbolic links are not followed) or not whole.
Handle open_file(const std::filesystem::path& path);

/// Creates a file that must not exist, in the format whose metadata carry checksums (1.10). Data of
/// at least `on_pages` bytes begin on a page; 0: anywhere.
Handle create_file(const std::filesystem::path& path, hsize_t on_pages = 0);

/// Closes a file that was written; throws when what was still in memory could not be written.
void close_file(Handle& file, const std::string& what);

/// Throws unless `group` holds exactly `names`, all of them hard links (no soft or external ones).
void expect_links(hid_t group, const std::vector<std::string>& names, const std::string& what);

/// Throws unless `object` has exactly the attributes `names`.
void expect_attributes(hid_t object, const std::vector<std::string>& names,
                       const std::string& what);

/// A scalar attribute: a fixed-length string (at most 256 bytes), or an unsigned number.
void write_attribute(hid_t object, const std::string& name, const std::string& value,
                     const std::string& what);
void write_attribute(hid_t object, const std::string& name, std::uint64_t value,
                     const std::string& what);
std::string read_text_attribute(hid_t object, const std::string& name, const std::string& what);
std::uint64_t read_number_attribute(hid_t object, const std::string& name, const std::string& what);

/// Opens the one-dimensional dataset `name` of `file` and checks kind, type, extent (exactly
/// `elements`, fixed) and storage before anything of it is read: chunks of `chunk` elements whose
/// only filter is Fletcher32, partial ones included; zero elements are contiguous.
Handle open_dataset(hid_t file, const std::string& name, hid_t type, std::uint64_t elements,
                    std::uint64_t chunk, const std::string& what);

/// Creates a dataset of these extents: of one dimension as open_dataset expects it or, where
/// `chunk` is 0, contiguous and allocated in full.
Handle create_dataset(hid_t file, const std::string& name, hid_t type,
                      const std::vector<hsize_t>& extents, hsize_t chunk, const std::string& what);

/// Writes elements [offset, offset + count) of a one-dimensional dataset, in pieces of at most
/// `piece_bytes` with the lock released in between. `type` is the type in memory.
void write_elements(const Handle& dataset, hid_t type, std::uint64_t offset, std::uint64_t count,
                    const void* data, const std::string& what);

}  // namespace trireme::data::hdf5
