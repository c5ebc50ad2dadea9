#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>

#include "trireme/checkpoint/checkpoint.hpp"

#include "files.hpp"
#include "manifest.hpp"
#include "piece_file.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

using Block = std::shared_ptr<const std::vector<std::byte>>;

/// Verified blocks of which only a part was wanted: the next read is often of the rows or columns
/// beside it. Several, because those may be in several pieces in turn.
class RecentBlocks {
 public:
  /// Null when it is not there.
  Block find(std::size_t piece, std::int64_t index) {
    const std::lock_guard lock(mutex_);
    for (auto each = blocks_.begin(); each != blocks_.end(); ++each) {
      if (each->piece != piece || each->index != index) continue;
      std::rotate(blocks_.begin(), each, each + 1);
      return blocks_.front().block;
    }
    return nullptr;
  }
  void add(std::size_t piece, std::int64_t index, const Block& block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_front({piece, index, block});
    bytes_ += block->size();
    while (bytes_ > most_bytes || blocks_.size() > most_blocks) {
      bytes_ -= blocks_.back().block->size();
      blocks_.pop_back();
    }
  }

 private:
  static constexpr std::size_t most_bytes = 4 * static_cast<std::size_t>(block_bytes);
  static constexpr std::size_t most_blocks = 64;  // so that looking through them costs nothing
  struct Entry {
    std::size_t piece;
    std::int64_t index;
    Block block;
  };
  std::mutex mutex_;
  std::deque<Entry> blocks_;  // the last used first
  std::size_t bytes_ = 0;
};

/// One open piece: reads and verifies its blocks.
struct OpenPiece {
  const PieceRecord& piece;
  const Reader::Entry& tensor;
  const InputFile& file;
  std::int64_t address;

  std::size_t length(std::int64_t index) const {
    const std::int64_t bytes = bytes_of(piece.box.elements(), tensor.type);
    return static_cast<std::size_t>(std::min(block_bytes, bytes - index * block_bytes));
  }

  /// Throws Error where an element of block `index` is NaN or infinite.
  void require_finite(std::int64_t index, const std::byte* block) const {
    const std::int64_t size = bytes_of(1, tensor.type);
    const auto n = static_cast<std::int64_t>(length(index)) / size;
    const std::int64_t element = first_not_finite(block, n, tensor.type);
    if (element == n) return;
    throw Error("{}: tensor {}: element {} is NaN or infinite; use another checkpoint",
                file.path().string(), tensor.name,
                to_string(index_of(piece.box, index * (block_bytes / size) + element),
                          tensor.shape.dimensions()));
  }

  /// Block `index` of the piece, whole, into `to`.
  void read_block(std::int64_t index, std::byte* to) const {
    const std::int64_t begin = index * block_bytes;
    const std::size_t bytes = length(index);
    const auto element = [&] {
      return to_string(index_of(piece.box, begin / bytes_of(1, tensor.type)),
                       tensor.shape.dimensions());
    };
    data::Xxh3 hash;
    try {
      for (std::size_t at = 0; at < bytes; at += step_bytes) {
        const std::size_t part = std::min<std::size_t>(step_bytes, bytes - at);
        read_at(file, to + at, part, address + begin + static_cast<std::int64_t>(at));
        hash.update(to + at, part);
      }
    } catch (const Error& error) {
      throw Error("{} (tensor {}, element {})", error.what(), tensor.name, element());
    }
    if (hash.value() != piece.blocks[static_cast<std::size_t>(index)]) {
      throw Error(
          "{}: tensor {}, from element {} on: {} bytes at byte {} do not match their checksum; "
          "the file is damaged, use another checkpoint",
          file.path().string(), tensor.name, element(), bytes, address + begin);
    }
  }
};

}  // namespace

struct Reader::Stored {
  fs::path folder;
  Manifest manifest;
  std::vector<std::size_t> first_piece;           // by tensor; one more at the end
  std::vector<std::vector<std::size_t>> members;  // pieces by file

  std::mutex mutex;                     // of `located` and `addresses`
  std::vector<bool> located;            // by file
  std::vector<std::int64_t> addresses;  // by piece, where its file is located
  RecentBlocks recent;

  fs::path path_of(std::size_t p) const {
    return manifest.files[manifest.pieces[p].file].below(folder);
  }
  std::int64_t address(std::size_t p);
  void read_piece(std::size_t p, const Box& wanted, const Tensor& data);
};

/// The place of piece `p` in its file, which is opened and checked the first time.
std::int64_t Reader::Stored::address(std::size_t p) {
  const std::size_t file = manifest.pieces[p].file;
  const std::lock_guard lock(mutex);
  if (!located[file]) {
    std::vector<ExpectedDataset> expected;
    for (const std::size_t i : members[file]) {
      const PieceRecord& piece = manifest.pieces[i];
      const Entry& tensor = manifest.tensors[piece.tensor];
      expected.push_back({piece.dataset, tensor.name, piece.box, tensor.type});
    }
    const auto found = locate_datasets(path_of(p), manifest.files[file].bytes, expected);
    for (std::size_t i = 0; i < found.size(); ++i) addresses[members[file][i]] = found[i];
    located[file] = true;
  }
  return addresses[p];
}

Reader::Reader(const fs::path& folder) : folder_(folder), stored_(std::make_shared<Stored>()) {
  stored_->folder = folder;
  stored_->manifest = read_manifest(folder);
  const auto& [state, files, tensors, pieces] = stored_->manifest;
  std::set<std::string> parts;
  for (const FileRecord& file : files) {
    if (!file.folder.empty() && parts.insert(file.folder).second) {
      expect_folder(folder / file.folder);
    }
    expect_size(InputFile(file.below(folder), Links::refuse), file.bytes);
  }
  stored_->located.resize(files.size());
  stored_->addresses.resize(pieces.size());
  stored_->first_piece.resize(tensors.size() + 1);
  stored_->members.resize(files.size());
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    ++stored_->first_piece[pieces[p].tensor + 1];
    stored_->members[pieces[p].file].push_back(p);
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    stored_->first_piece[t + 1] += stored_->first_piece[t];
  }
}

const State& Reader::state() const { return stored_->manifest.state; }

const std::vector<Reader::Entry>& Reader::tensors() const { return stored_->manifest.tensors; }

std::vector<Reader::File> Reader::files() const {
  std::vector<File> files;
  for (const FileRecord& file : stored_->manifest.files) {
    files.push_back({file.below("").string(), file.bytes});
  }
  return files;
}

const Reader::Entry* Reader::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors().begin(), tensors().end(), name,
                       [](const Entry& entry, const std::string& key) { return entry.name < key; });
  return found != tensors().end() && found->name == name ? &*found : nullptr;
}

void Reader::read(const std::string& name, const Index& begin, const Tensor& data) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw Error("{}: has no tensor {}", folder_.string(), name);
  if (data.type() != entry->type) {
    throw Error("{}: tensor {}: is {}, {} is wanted", folder_.string(), name, name_of(entry->type),
                name_of(data.type()));
  }
  const Box wanted{begin, data.shape()};
  if (!fits(wanted, entry->shape)) {
    throw Error("{}: tensor {}: {} from {} on is wanted of {}", folder_.string(), name,
                data.shape().to_string(), to_string(begin, data.shape().dimensions()),
                entry->shape.to_string());
  }
  if (wanted.elements() == 0) return;
  TRIREME_ASSERT(data.data() != nullptr, "read of {}", name);
  const auto tensor = static_cast<std::size_t>(entry - tensors().data());
  for (std::size_t p = stored_->first_piece[tensor]; p < stored_->first_piece[tensor + 1]; ++p) {
    stored_->read_piece(p, wanted, data);
  }
  if (read_) read_(static_cast<std::int64_t>(data.bytes()));
}

// Contiguous blocks of `data` are read in place, others through a copy.
void Reader::Stored::read_piece(std::size_t p, const Box& wanted, const Tensor& data) {
  const PieceRecord& piece = manifest.pieces[p];
  const Box part = intersection(piece.box, wanted);
  if (part.elements() == 0) return;
  const Entry& tensor = manifest.tensors[piece.tensor];
  const std::int64_t place = address(p);
  std::optional<InputFile> file;
  const auto open = [&] {
    if (!file) file.emplace(path_of(p), Links::refuse);
    return OpenPiece{piece, tensor, *file, place};
  };
  Block block;  // the last one looked at
  std::int64_t block_index = -1;
  const std::int64_t total = bytes_of(piece.box.elements(), tensor.type);
  for_each_stretch(part, piece.box, wanted, data, [&](auto from, auto at, auto elements) {
    auto* to = static_cast<std::byte*>(data.data()) + bytes_of(at, tensor.type);
    const std::int64_t begin = bytes_of(from, tensor.type);
    const std::int64_t end = begin + bytes_of(elements, tensor.type);
    for (std::int64_t index = begin / block_bytes; index * block_bytes < end; ++index) {
      const std::int64_t block_begin = index * block_bytes;
      const std::int64_t block_end = std::min(total, block_begin + block_bytes);
      if (block_begin >= begin && block_end <= end) {
        open().read_block(index, to + (block_begin - begin));
        continue;
      }
      if (block_index != index) {
        block = recent.find(p, index);
        block_index = index;
      }
      if (!block) {
        const OpenPiece source = open();
        const auto fresh = std::make_shared<std::vector<std::byte>>(source.length(index));
        source.read_block(index, fresh->data());
        block = fresh;
        recent.add(p, index, block);  // only now that it is verified
      }
      const std::int64_t first = std::max(begin, block_begin);
      std::memcpy(to + (first - begin), block->data() + (first - block_begin),
                  static_cast<std::size_t>(std::min(end, block_end) - first));
    }
  });
}

void Reader::verify(bool finite) const {
  std::vector<std::byte> block;
  const std::vector<PieceRecord>& pieces = stored_->manifest.pieces;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const PieceRecord& piece = pieces[p];
    const std::int64_t address = stored_->address(p);
    const InputFile file(stored_->path_of(p), Links::refuse);
    const OpenPiece open{piece, tensors()[piece.tensor], file, address};
    block.resize(open.length(0));
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(piece.blocks.size()); ++i) {
      open.read_block(i, block.data());
      if (finite) open.require_finite(i, block.data());
    }
  }
}

}  // namespace trireme::checkpoint
