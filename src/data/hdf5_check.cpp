#include "hdf5_check.hpp"

#include <cerrno>
#include <set>

#include <unistd.h>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

#include "hdf5_structures.hpp"

namespace trireme::data::hdf5 {

/// Of one structure. The largest that is written is an index of chunks, 12 bytes for each 64 Ki
/// tokens.
static constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;

Structures::Structures(const InputFile& file)
    : file_(file),
      size_(static_cast<std::uint64_t>(file.size())),
      budget_(8 * size_ + (std::uint64_t{1} << 20)) {}

Bytes Structures::read(std::uint64_t at, std::uint64_t size) {
  if (at > size_ || size > size_ - at) damaged("a structure lies outside of the file");
  if (size > most_bytes) damaged("a structure is larger than any that this program writes");
  // Structures of a sound file hardly ever overlap.
  if (size > budget_) damaged("its structures lie one over another");
  budget_ -= size;
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::pread(file_.descriptor(), bytes.data() + done, size - done,
                                static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(file_.path(), "read", errno);
    if (got == 0) damaged("the file became shorter");
    done += static_cast<std::size_t>(got);
  }
  return Bytes(std::move(bytes));
}

Bytes Structures::block(std::uint64_t at, std::uint64_t size, const char* signature) {
  Bytes bytes = read(at, size);
  if (bytes.text(4) != signature) damaged(fmt::format("no {} at byte {}", signature, at));
  return bytes;
}

std::uint64_t checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) damaged("an extent passes 2^64");
  return product;
}

namespace {

class Walk {
 public:
  explicit Walk(const InputFile& file) : structures_(file) {}

  void run() {
    const std::uint64_t root = superblock();
    std::vector<std::pair<std::string, std::uint64_t>> open{{"", root}};
    std::set<std::uint64_t> seen{root};
    while (!open.empty()) {
      const auto [path, address] = open.back();
      open.pop_back();
      path_ = path;
      for (const auto& [name, target] : object(address).links) {
        if (seen.insert(target).second) open.emplace_back(fmt::format("{}/{}", path, name), target);
      }
    }
  }
  /// Of the object at hand; "" for the root group.
  const std::string& path() const { return path_; }

 private:
  std::uint64_t superblock() {
    if (structures_.size() < 48) damaged("it is no HDF5 file");
    Bytes bytes = structures_.read(0, 48);
    if (bytes.text(8) != "\x89HDF\r\n\x1a\n") damaged("it is no HDF5 file");
    bytes.expect(3, 1, "its format is not that of HDF5 1.10");
    bytes.expect(8, 1, "its addresses are not of 8 bytes");
    bytes.expect(8, 1, "its sizes are not of 8 bytes");
    bytes.expect(0, 1, "it was not closed");
    bytes.expect(0, 8, "it has a user block");
    bytes.expect(nowhere, 8, "its superblock has an extension");
    if (const std::uint64_t end = bytes.number(8); end != structures_.size()) {
      damaged(fmt::format("it has {} bytes, its superblock says {}", structures_.size(), end));
    }
    return bytes.number(8);
  }

  Object object(std::uint64_t at) {
    Bytes head = structures_.block(at, 6, "OHDR");
    head.expect(2, 1, "an object header is of another version");
    const std::uint64_t flags = head.number(1);
    const std::size_t width = std::size_t{1} << (flags & 3U);
    const std::uint64_t more = ((flags & 0x20U) != 0 ? 16 : 0) + ((flags & 0x10U) != 0 ? 4 : 0);
    const std::uint64_t first = structures_.read(at + 6 + more, width).number(width);
    const bool ordered = (flags & 4U) != 0;
    Object found;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> further;
    messages(structures_.read(at + 6 + more + width, first), ordered, found, further);
    // The budget ends chains that bite their own tail.
    for (std::size_t i = 0; i < further.size(); ++i) {
      const auto [place, size] = further[i];
      if (size < 8) damaged("a continuation is too short");
      Bytes bytes = structures_.block(place, size, "OCHK");
      messages(bytes.part(size - 8), ordered, found, further);
    }
    if (found.chunk_index != nowhere) fixed_array(found);
    if (found.heap != nowhere) take_dense_links(structures_, found);
    return found;
  }

  void messages(Bytes bytes, bool ordered, Object& found,
                std::vector<std::pair<std::uint64_t, std::uint64_t>>& further) {
    const std::size_t head = ordered ? 6 : 4;
    while (bytes.left() >= head) {
      const std::uint64_t type = bytes.number(1), size = bytes.number(2), flags = bytes.number(1);
      if (ordered) bytes.skip(2);
      Bytes body = bytes.part(size);
      if (type != 0 && (flags & 2U) != 0) damaged("a message is shared");
      if (type == 0x10) {
        const std::uint64_t place = body.number(8);
        further.emplace_back(place, body.number(8));
      } else {
        take_message(type, body, structures_.size(), found);
      }
    }
  }

  void fixed_array(const Object& found) {
    Bytes head = structures_.block(found.chunk_index, 28, "FAHD");
    head.expect(0, 1, "an index of chunks is of another version");
    head.expect(found.filtered ? 1 : 0, 1, "an index of chunks is of another kind");
    const std::uint64_t entry = head.number(1), page_bits = head.number(1);
    const std::uint64_t entries = head.number(8), data = head.number(8);
    if (found.extents.size() != found.chunk.size()) damaged("chunks have another rank");
    std::uint64_t chunks = 1;
    for (std::size_t d = 0; d < found.chunk.size(); ++d) {
      const std::uint64_t extent = found.extents[d];
      const std::uint64_t chunk = found.chunk[d];
      if (chunk == 0) damaged("a chunk is empty");
      chunks = checked_product(chunks, extent / chunk + (extent % chunk == 0 ? 0 : 1));
    }
    if (entries != chunks || entry < 8 || entry > 20 || (found.filtered && entry < 13) ||
        (!found.filtered && entry != 8) || page_bits == 0 || page_bits > 20) {
      damaged("an index of chunks does not fit its dataset");
    }
    if (data == nowhere) return;
    const std::uint64_t page = std::uint64_t{1} << page_bits;
    const std::uint64_t pages = entries > page ? (entries + page - 1) >> page_bits : 0;
    // Checksums of each page, or one in all.
    if (entries > structures_.size()) damaged("an index of chunks lies outside of the file");
    const std::uint64_t bytes = checked_product(entries, entry) + 18 + (pages + 7) / 8 + 4 * pages;
    if (data > structures_.size() || bytes > structures_.size() - data)
      damaged("an index of chunks lies outside of the file");
    Bytes begin = structures_.block(data, 14, "FADB");
    begin.expect(0, 1, "an index of chunks is of another version");
    begin.expect(found.filtered ? 1 : 0, 1, "an index of chunks is of another kind");
    begin.expect(found.chunk_index, 8, "an index of chunks belongs to another");
  }

  Structures structures_;
  std::string path_;
};

}  // namespace

void check_structure(const InputFile& file) {
  Walk walk(file);
  try {
    walk.run();
  } catch (const Fault& fault) {
    const std::string path = config::one_line(config::shortened(walk.path(), 200));
    if (fault.known) {
      throw Error("{}: {}{}{}", file.path().string(), path, path.empty() ? "" : ": ", fault.text);
    }
    throw Error("{}: cannot open as HDF5: {}{}{}; restore the file or make it again",
                file.path().string(), path, path.empty() ? "" : ": ", fault.text);
  }
}

}  // namespace trireme::data::hdf5
