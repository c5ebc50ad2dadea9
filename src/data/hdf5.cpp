#include "trireme/data/hdf5.hpp"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

#include "hdf5_check.hpp"

namespace trireme::data::hdf5 {
namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

void set_up_library() {
  static const bool once = [] {
    H5dont_atexit();
    H5open();
    H5PLset_loading_state(0);
    return true;
  }();
  // A thread-safe build of the library keeps one error stack per thread.
  thread_local const bool quiet = [] {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return true;
  }();
  static_cast<void>(once);
  static_cast<void>(quiet);
}

/// What to do where the library could not lock a file (flock(2)), or "".
std::string_view mend_of_lock(const std::string& why) {
  for (const int error : {EAGAIN, ENOLCK, ENOSYS, ENOTSUP}) {
    if (why != std::generic_category().message(error)) continue;
    return "it is locked, or its file system has no locks: set HDF5_USE_FILE_LOCKING=FALSE";
  }
  return "";
}

template <class Id>
Id checked(Id result, const std::string& what, std::string_view verb) {
  if (result >= 0) return result;
  const std::string why = reason();
  const std::string_view mend = mend_of_lock(why);
  throw Error("{}: cannot {}: {}; {}", what, verb, why,
              mend.empty() ? "restore the file or make it again" : mend);
}

/// The format whose metadata carry checksums. No locks: finished files never change, others are
/// written by one process under a name that no reader looks at, and many network file systems have
/// none. HDF5_USE_FILE_LOCKING outdoes this in the library itself.
Handle access_list() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
#if H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 11, 0) || H5_VERSION_GE(1, 12, 1)
  H5Pset_file_locking(access.get(), false, true);
#endif
  return access;
}

struct Reason {
  std::string system;  // inside "error message = '…'"
  std::string first;   // of the innermost entry
};

herr_t note_reason(unsigned depth, const H5E_error2_t* entry, void* context) {
  auto* found = static_cast<Reason*>(context);
  const std::string_view text = entry->desc == nullptr ? "" : entry->desc;
  if (depth == 0) found->first = text;
  static constexpr std::string_view mark = "error message = '";
  const std::size_t begin = text.find(mark);
  if (begin != std::string_view::npos && found->system.empty()) {
    const std::string_view rest = text.substr(begin + mark.size());
    found->system = rest.substr(0, rest.find('\''));
  }
  return 0;
}

struct Names {
  std::vector<std::string> found;
  std::size_t limit;
};

herr_t note_name(const char* name, void* context) {
  auto* names = static_cast<Names*>(context);
  names->found.emplace_back(name);
  return names->found.size() > names->limit ? 1 : 0;  // 1 ends the walk
}

void expect_names(Names names, std::vector<std::string> expected, std::string_view kind,
                  const std::string& what) {
  std::sort(names.found.begin(), names.found.end());
  std::sort(expected.begin(), expected.end());
  if (names.found != expected) {
    std::string list;
    for (const std::string& name : expected) list += (list.empty() ? "" : ", ") + name;
    throw Error("{}: does not hold exactly the {} {}; restore the file or make it again", what,
                kind, list);
  }
}

Handle open_attribute(hid_t object, const std::string& name, H5T_class_t kind,
                      const std::string& what) {
  Handle attribute(checked(H5Aopen(object, name.c_str(), H5P_DEFAULT), what, "read attributes"),
                   H5Aclose);
  const Handle space(H5Aget_space(attribute.get()), H5Sclose);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const bool scalar = space && H5Sget_simple_extent_type(space.get()) == H5S_SCALAR;
  bool right = scalar && type && H5Tget_class(type.get()) == kind && H5Tget_size(type.get()) <= 256;
  if (right && kind == H5T_STRING) right = H5Tis_variable_str(type.get()) == 0;
  if (!right) throw Error("{}: attribute {} is of the wrong type; make the file again", what, name);
  return attribute;
}

[[noreturn]] void refuse_storage(const std::string& what) {
  throw Error("{}: is stored in another way than this program stores it; make the file again",
              what);
}

/// Everything about storage that could lead outside of the file or round its checks.
void check_storage(hid_t plist, bool contiguous, std::uint64_t chunk, const std::string& what) {
  const int filters = H5Pget_nfilters(plist);
  bool right = false;
  if (contiguous) {
    right = filters == 0 && H5Pget_external_count(plist) == 0;
  } else if (filters == 1) {
    hsize_t extent = 0;
    unsigned options = 0;
    unsigned flags = 0;
    unsigned config = 0;
    std::size_t values = 0;
    right = H5Pget_chunk(plist, 1, &extent) == 1 && extent == chunk &&
            H5Pget_chunk_opts(plist, &options) >= 0 && options == 0 &&
            H5Pget_filter2(plist, 0, &flags, &values, nullptr, 0, nullptr, &config) ==
                H5Z_FILTER_FLETCHER32;
  }
  if (!right) refuse_storage(what);
}

void check_extent(hid_t dataset, std::uint64_t elements, const std::string& what) {
  const Handle space(checked(H5Dget_space(dataset), what, "read the extent of a dataset"),
                     H5Sclose);
  hsize_t extent = 0;
  hsize_t most = 0;
  const bool line = H5Sget_simple_extent_type(space.get()) == H5S_SIMPLE &&
                    H5Sget_simple_extent_ndims(space.get()) == 1 &&
                    H5Sget_simple_extent_dims(space.get(), &extent, &most) == 1;
  if (!line || extent != elements || most != elements) {
    throw Error("{}: expected one dimension of exactly {} elements{}; make the file again", what,
                elements, line ? fmt::format(", found {}", extent) : "");
  }
}

Handle space_of(const std::vector<hsize_t>& extents) {
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
}

}  // namespace

Lock::Lock() : lock_(library_mutex()) { set_up_library(); }

std::string reason() {
  Reason found;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_reason, &found);
  if (!found.system.empty()) return found.system;
  return found.first.empty() ? "the HDF5 library gives no reason" : found.first;
}

void fail_to_write(const std::string& what) {
  const std::string why = reason();
  std::string_view mend = mend_of_lock(why);
  if (mend.empty()) mend = mend_of(EIO);
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EACCES}) {
    if (why == std::generic_category().message(error)) mend = mend_of(error);
  }
  throw Error("{}: cannot write: {}; {}", what, why, mend);
}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = std::exchange(other.id_, H5I_INVALID_HID);
    close_ = other.close_;
  }
  return *this;
}

herr_t Handle::close() {
  if (id_ < 0) return 0;
  const Lock lock;
  return close_(std::exchange(id_, H5I_INVALID_HID));
}

Handle open_file(const std::filesystem::path& path) {
  // The library would follow links and wait for pipes.
  const InputFile regular(path, Links::refuse);
  check_structure(regular);
  const Lock lock;
  const Handle access = access_list();
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  checked(file.get(), path.string(), "open as HDF5");
  return file;
}

Handle create_file(const std::filesystem::path& path, hsize_t on_pages) {
  constexpr hsize_t page = 4096;
  const Lock lock;
  const Handle access = access_list();
  if (on_pages > 0) H5Pset_alignment(access.get(), on_pages, page);
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // the same content makes the same bytes
  Handle file(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), H5Fclose);
  written(file.get(), path.string());
  return file;
}

void close_file(Handle& file, const std::string& what) {
  const Lock lock;
  written(file.close(), what);
}

void expect_links(hid_t group, const std::vector<std::string>& names, const std::string& what) {
  const Lock lock;
  Names found{{}, names.size()};
  const auto note = [](hid_t, const char* name, const H5L_info_t*, void* context) {
    return note_name(name, context);
  };
  checked(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, note, &found), what,
          "list its content");
  expect_names(std::move(found), names, "datasets", what);
  for (const std::string& name : names) {
    H5L_info_t info;
    checked(H5Lget_info(group, name.c_str(), &info, H5P_DEFAULT), what, "read a link");
    if (info.type != H5L_TYPE_HARD) {
      throw Error("{}: {} is a link to elsewhere; make the file again", what, name);
    }
  }
}

void expect_attributes(hid_t object, const std::vector<std::string>& names,
                       const std::string& what) {
  const Lock lock;
  Names found{{}, names.size()};
  const auto note = [](hid_t, const char* name, const H5A_info_t*, void* context) {
    return note_name(name, context);
  };
  checked(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, note, &found), what,
          "list attributes");
  expect_names(std::move(found), names, "attributes", what);
}

void write_attribute(hid_t object, const std::string& name, const std::string& value,
                     const std::string& what) {
  TRIREME_ASSERT(!value.empty() && value.size() <= 256, "attribute of {} bytes", value.size());
  const Lock lock;
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), value.size());
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  written(attribute.get(), what);
  written(H5Awrite(attribute.get(), type.get(), value.data()), what);
}

void write_attribute(hid_t object, const std::string& name, std::uint64_t value,
                     const std::string& what) {
  const Lock lock;
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(object, name.c_str(), H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  written(attribute.get(), what);
  written(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &value), what);
}

std::string read_text_attribute(hid_t object, const std::string& name, const std::string& what) {
  const Lock lock;
  const Handle attribute = open_attribute(object, name, H5T_STRING, what);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  std::string value(H5Tget_size(type.get()), '\0');
  checked(H5Aread(attribute.get(), type.get(), value.data()), what, "read attributes");
  return value.substr(0, value.find('\0'));
}

std::uint64_t read_number_attribute(hid_t object, const std::string& name,
                                    const std::string& what) {
  const Lock lock;
  const Handle attribute = open_attribute(object, name, H5T_INTEGER, what);
  std::uint64_t value = 0;
  checked(H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value), what, "read attributes");
  return value;
}

Handle open_dataset(hid_t file, const std::string& name, hid_t type, std::uint64_t elements,
                    std::uint64_t chunk, const std::string& what) {
  const Lock lock;
  const std::string item = what + ": /" + name;
  Handle object(checked(H5Oopen(file, name.c_str(), H5P_DEFAULT), item, "open it"), H5Oclose);
  if (H5Iget_type(object.get()) != H5I_DATASET) {
    throw Error("{}: is not a dataset; make the file again", item);
  }
  const Handle plist(checked(H5Dget_create_plist(object.get()), item, "read its storage"),
                     H5Pclose);
  // Before anything else: asking a virtual dataset for its extent may open other files.
  const H5D_layout_t layout = H5Pget_layout(plist.get());
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) refuse_storage(item);
  const Handle stored(checked(H5Dget_type(object.get()), item, "read its type"), H5Tclose);
  if (H5Tequal(stored.get(), type) <= 0) {
    throw Error("{}: is of the wrong type; make the file again", item);
  }
  check_extent(object.get(), elements, item);
  if ((layout == H5D_CONTIGUOUS) != (elements == 0)) refuse_storage(item);
  check_storage(plist.get(), elements == 0, chunk, item);
  return object;
}

Handle create_dataset(hid_t file, const std::string& name, hid_t type,
                      const std::vector<hsize_t>& extents, hsize_t chunk, const std::string& what) {
  const Lock lock;
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(plist.get(), false);
  if (chunk == 0) {
    H5Pset_layout(plist.get(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(plist.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(plist.get(), H5D_FILL_TIME_NEVER);
  } else {
    H5Pset_chunk(plist.get(), 1, &chunk);
    H5Pset_fletcher32(plist.get());
    H5Pset_fill_time(plist.get(), H5D_FILL_TIME_ALLOC);  // zeros behind the end of the last chunk
  }
  const Handle space = space_of(extents);
  Handle dataset(
      H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, plist.get(), H5P_DEFAULT),
      H5Dclose);
  written(dataset.get(), what);
  return dataset;
}

void write_elements(const Handle& dataset, hid_t type, std::uint64_t offset, std::uint64_t count,
                    const void* data, const std::string& what) {
  std::size_t size = 0;
  {
    const Lock lock;
    size = H5Tget_size(type);
  }
  TRIREME_ASSERT(size > 0 && size <= piece_bytes, "element of {} bytes", size);
  const std::uint64_t most = piece_bytes / size;
  for (std::uint64_t done = 0; done < count;) {
    const Lock lock;
    const hsize_t part = std::min<std::uint64_t>(most, count - done);
    const hsize_t start = offset + done;
    const Handle space(H5Dget_space(dataset.get()), H5Sclose);
    const Handle memory = space_of({part});
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &part, nullptr);
    written(H5Dwrite(dataset.get(), type, memory.get(), space.get(), H5P_DEFAULT,
                     static_cast<const char*>(data) + done * size),
            what);
    done += part;
  }
}

}  // namespace trireme::data::hdf5
