#include "piece_file.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <fcntl.h>
#include <hdf5.h>

#include "trireme/data/hdf5.hpp"

#include "files.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
namespace hdf5 = data::hdf5;
using hdf5::Handle;
using hdf5::written;
static_assert(std::endian::native == std::endian::little, "data are stored in the order of memory");

/// Data of at least this size begin on a page.
constexpr hsize_t on_pages = hsize_t{64} << 10;

void require(herr_t status, const char* call) {
  if (status < 0) throw Error("{}: {}", call, hdf5::reason());
}

/// An identifier that a call returned, if it did.
Handle own(hid_t id, Handle::Close close, const char* call) {
  if (id < 0) throw Error("{}: {}", call, hdf5::reason());
  return {id, close};
}

/// bf16 has no type of its own in HDF5 1.10: its bits as uint16, and the attribute "type" holds
/// what they are.
hid_t standard_type(DType type) {
  switch (type) {
    case DType::f16:  // made from it
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::bf16:
    case DType::u16:
      return H5T_STD_U16LE;
    case DType::u8:
      return H5T_STD_U8LE;
  }
  throw Error("element type {}: cannot be stored", static_cast<int>(type));
}

Handle file_type(DType type) {
  Handle result = own(H5Tcopy(standard_type(type)), H5Tclose, "H5Tcopy");
  if (type == DType::f16) {  // IEEE binary16: sign 15, exponent 5, fraction 10
    require(H5Tset_fields(result.get(), 15, 10, 5, 0, 10), "H5Tset_fields");
    require(H5Tset_size(result.get(), 2), "H5Tset_size");
    require(H5Tset_ebias(result.get(), 15), "H5Tset_ebias");
  }
  return result;
}

/// One number per dimension of the tensor.
void write_numbers(hid_t object, const char* name, const std::vector<std::int64_t>& numbers,
                   const std::string& what) {
  const hsize_t size = numbers.size();
  const Handle space = own(size == 0 ? H5Screate(H5S_NULL) : H5Screate_simple(1, &size, nullptr),
                           H5Sclose, "H5Screate");
  const Handle attribute(
      written(H5Acreate2(object, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), what),
      H5Aclose);
  if (size != 0) written(H5Awrite(attribute.get(), H5T_NATIVE_INT64, numbers.data()), what);
}

/// Extents of the dataset that holds a box: the box's own, so that other tools show the matrix that
/// it is; a scalar is a vector of one element.
std::vector<hsize_t> dataset_extents(const Shape& box) {
  std::vector<hsize_t> extents;
  for (int d = 0; d < box.dimensions(); ++d) extents.push_back(static_cast<hsize_t>(box[d]));
  if (extents.empty()) extents.push_back(1);
  return extents;
}

/// Makes the groups on the way to `dataset`; `made` knows those that exist.
void make_groups(hid_t file, const std::string& dataset, std::set<std::string>& made,
                 const std::string& what) {
  const Handle creation = own(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "H5Pcreate");
  require(H5Pset_obj_track_times(creation.get(), 0), "H5Pset_obj_track_times");  // as of files
  for (std::size_t slash = dataset.find('/'); slash != dataset.npos;
       slash = dataset.find('/', slash + 1)) {
    const std::string group = dataset.substr(0, slash);
    if (!made.insert(group).second) continue;
    const Handle closes_itself(
        written(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), what),
        H5Gclose);
  }
}

std::int64_t make_dataset(hid_t file, const PlannedPiece& piece, const std::string& name,
                          const std::string& what) {
  const Handle dataset = hdf5::create_dataset(file, name, file_type(piece.type).get(),
                                              dataset_extents(piece.box.extent), 0, what);
  hdf5::write_attribute(dataset.get(), "type", std::string(name_of(piece.type)), what);
  write_numbers(dataset.get(), "global_shape", list_of(piece.shape), what);
  write_numbers(dataset.get(), "global_offset", list_of(piece.box.begin, piece.shape.dimensions()),
                what);
  const haddr_t address = H5Dget_offset(dataset.get());
  TRIREME_ASSERT(address != HADDR_UNDEF, "dataset {} has no place in {}", name, what);
  return static_cast<std::int64_t>(address);
}

/// A tensor of which the file has several pieces gets one dataset for each, "name@row,column".
std::vector<std::string> dataset_names(const std::vector<PlannedPiece>& pieces) {
  std::map<std::string, int> count;
  for (const PlannedPiece& piece : pieces) ++count[piece.name];
  std::vector<std::string> names;
  names.reserve(pieces.size());
  for (const PlannedPiece& piece : pieces) {
    names.push_back(piece.name);
    if (count[piece.name] == 1) continue;
    for (int d = 0; d < piece.shape.dimensions(); ++d) {
      names.back() +=
          fmt::format("{}{}", d > 0 ? ',' : '@', piece.box.begin[static_cast<std::size_t>(d)]);
    }
  }
  return names;
}

/// Writes a dataset's bytes in order and sums each block as they pass.
class BlockWriter {
 public:
  BlockWriter(const Descriptor& file, const fs::path& path, std::int64_t address)
      : file_(file), path_(path), address_(address) {}

  void append(const std::byte* from, std::int64_t bytes) {
    while (bytes > 0) {
      // Only what is scattered is gathered first.
      if (staged_ == 0 && bytes >= step_bytes) {
        write(from, step_bytes);
        from += step_bytes;
        bytes -= step_bytes;
        continue;
      }
      const std::int64_t part = std::min(bytes, step_bytes - staged_);
      if (staging_.empty()) staging_.resize(step_bytes);
      std::memcpy(staging_.data() + staged_, from, static_cast<std::size_t>(part));
      staged_ += part;
      from += part;
      bytes -= part;
      if (staged_ == step_bytes) flush();
    }
  }
  std::vector<std::uint64_t> finish() {
    flush();
    if (done_ % block_bytes != 0) hashes_.push_back(hash_.value());
    return std::move(hashes_);
  }

 private:
  void flush() {
    if (staged_ > 0) write(staging_.data(), std::exchange(staged_, 0));
  }
  void write(const std::byte* from, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    hash_.update(from, size);
    write_at(file_, path_, from, size, address_ + done_);
    done_ += bytes;
    if (done_ % block_bytes != 0) return;
    hashes_.push_back(hash_.value());
    hash_ = {};
  }

  static_assert(block_bytes % step_bytes == 0, "a step never spans two blocks");
  const Descriptor& file_;
  const fs::path& path_;
  std::int64_t address_, done_ = 0, staged_ = 0;
  std::vector<std::byte> staging_;
  data::Xxh3 hash_;
  std::vector<std::uint64_t> hashes_;
};

std::vector<std::uint64_t> write_blocks(const Descriptor& file, const fs::path& path,
                                        const Piece& piece, std::int64_t address) {
  BlockWriter writer(file, path, address);
  const DType type = piece.data.type();
  const auto* data = static_cast<const std::byte*>(piece.data.data());
  const Box box{piece.begin, piece.data.shape()};
  if (piece.finite) {
    require_finite(path.string(), piece.name, box, piece.data,
                   "not saved; go back to an older checkpoint");
  }
  for_each_stretch(box, box, box, piece.data,
                   [&](std::int64_t, std::int64_t at, std::int64_t elements) {
                     writer.append(data + bytes_of(at, type), bytes_of(elements, type));
                   });
  return writer.finish();
}

/// Refuses soft and external links on the way to `dataset`, which could lead out of the file.
void check_links(hid_t file, const std::string& dataset) {
  for (std::size_t end = dataset.find('/');; end = dataset.find('/', end + 1)) {
    const std::string path = dataset.substr(0, end);
    H5L_info_t link{};
    if (H5Lget_info(file, path.c_str(), &link, H5P_DEFAULT) < 0) {
      throw Error("is not in the file ({})", hdf5::reason());
    }
    if (link.type != H5L_TYPE_HARD) throw Error("is reached by a link, which is not allowed");
    if (end == dataset.npos) return;
  }
}

std::int64_t locate(hid_t file, std::int64_t file_bytes, const ExpectedDataset& expected) {
  check_links(file, expected.dataset);
  const Handle dataset =
      own(H5Dopen2(file, expected.dataset.c_str(), H5P_DEFAULT), H5Dclose, "H5Dopen2");
  // Storage first: asking a virtual dataset for its extent may open other files.
  const Handle creation = own(H5Dget_create_plist(dataset.get()), H5Pclose, "H5Dget_create_plist");
  if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS) throw Error("is not contiguous");
  if (H5Pget_external_count(creation.get()) != 0) throw Error("is outside the file");
  if (H5Pget_nfilters(creation.get()) != 0) throw Error("has filters");
  const Handle type = own(H5Dget_type(dataset.get()), H5Tclose, "H5Dget_type");
  const Handle space = own(H5Dget_space(dataset.get()), H5Sclose, "H5Dget_space");
  if (H5Tequal(type.get(), file_type(expected.type).get()) <= 0) {
    throw Error("does not have the type {}", name_of(expected.type));
  }
  const std::int64_t bytes = bytes_of(expected.box.elements(), expected.type);
  const std::vector<hsize_t> wanted = dataset_extents(expected.box.extent);
  std::vector<hsize_t> extents(wanted.size());
  const bool right = H5Sget_simple_extent_type(space.get()) == H5S_SIMPLE &&
                     H5Sget_simple_extent_ndims(space.get()) == static_cast<int>(wanted.size()) &&
                     H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr) >= 0 &&
                     extents == wanted &&
                     H5Dget_storage_size(dataset.get()) == static_cast<hsize_t>(bytes);
  if (!right) throw Error("does not have {} elements in full", expected.box.extent.to_string());
  const haddr_t address = H5Dget_offset(dataset.get());
  if (address == HADDR_UNDEF || address > static_cast<haddr_t>(file_bytes) ||
      bytes > file_bytes - static_cast<std::int64_t>(address)) {
    throw Error("claims more than the file holds");
  }
  return static_cast<std::int64_t>(address);
}

}  // namespace

MadeFile make_piece_file(const fs::path& path, const std::vector<PlannedPiece>& pieces,
                         std::int64_t step) {
  const SizeLimitGuard guard;
  const hdf5::Lock lock;
  const std::string what = path.string();
  Handle file = hdf5::create_file(path, on_pages);
  hdf5::write_attribute(file.get(), "format", std::string(format_name), what);
  hdf5::write_attribute(file.get(), "version", std::uint64_t{format_version}, what);
  hdf5::write_attribute(file.get(), "step", static_cast<std::uint64_t>(step), what);
  std::set<std::string> groups;
  std::vector<Place> places;
  for (const std::string& name : dataset_names(pieces)) {
    make_groups(file.get(), name, groups, what);
    places.push_back({name, make_dataset(file.get(), pieces[places.size()], name, what)});
  }
  written(file.close(), what);
  return {InputFile(path, Links::refuse).size(), std::move(places)};
}

std::vector<std::vector<std::uint64_t>> write_pieces(const fs::path& path,
                                                     const std::vector<const Piece*>& pieces,
                                                     const std::vector<Place>& places) {
  const SizeLimitGuard guard;
  Descriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.get() < 0) throw_file_error(path, "open", errno);
  std::vector<std::vector<std::uint64_t>> blocks;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    blocks.push_back(write_blocks(file, path, *pieces[i], places[i].address));
  }
  if (::fsync(file.get()) != 0 || file.close() != 0) throw_file_error(path, "write", errno);
  return blocks;
}

std::vector<std::int64_t> locate_datasets(const fs::path& path, std::int64_t bytes,
                                          const std::vector<ExpectedDataset>& expected) {
  expect_size(InputFile(path, Links::refuse), bytes);
  const hdf5::Lock lock;
  std::vector<std::int64_t> addresses;
  const ExpectedDataset* current = nullptr;
  try {
    const Handle file = hdf5::open_file(path);
    for (const ExpectedDataset& each : expected) {
      current = &each;
      addresses.push_back(locate(file.get(), bytes, each));
    }
  } catch (const Error& error) {
    if (current == nullptr) throw;
    throw Error("{}: tensor {}, element {}: dataset {}: {}", path.string(), current->tensor,
                to_string(current->box.begin, current->box.extent.dimensions()), current->dataset,
                error.what());
  }
  return addresses;
}

}  // namespace trireme::checkpoint
