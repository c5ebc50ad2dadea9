#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "trireme/checkpoint/checkpoint.hpp"

#include "files.hpp"
#include "manifest.hpp"
#include "piece_file.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t no_piece = ~std::size_t{0};

}  // namespace

struct Reader::Stored {
  std::vector<FileRecord> files;
  std::vector<PieceRecord> pieces;
  std::vector<std::size_t> first_piece;  // by tensor; one more at the end

  std::mutex mutex;                     // of what follows
  std::vector<bool> located;            // by file
  std::vector<std::int64_t> addresses;  // by piece, where its file is located
  // The last block of which only a part was wanted: slices of columns come back for its other
  // parts.
  std::size_t block_piece = no_piece;
  std::int64_t block_index = 0;
  std::vector<std::byte> block;

  /// Where piece `p` lies in its file, which is opened and checked the first time.
  std::int64_t address(std::size_t p, const fs::path& path, const std::vector<Entry>& tensors);
};

std::int64_t Reader::Stored::address(std::size_t p, const fs::path& path,
                                     const std::vector<Entry>& tensors) {
  const std::size_t file = pieces[p].file;
  const std::lock_guard lock(mutex);
  if (!located[file]) {
    std::vector<std::size_t> members;
    std::vector<ExpectedDataset> expected;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].file != file) continue;
      const Entry& tensor = tensors[pieces[i].tensor];
      members.push_back(i);
      expected.push_back(
          {pieces[i].dataset, tensor.name, pieces[i].offset, pieces[i].elements, tensor.type});
    }
    const auto found = locate_datasets(path, files[file].bytes, expected);
    for (std::size_t i = 0; i < members.size(); ++i) addresses[members[i]] = found[i];
    located[file] = true;
  }
  return addresses[p];
}

namespace {

/// One open piece: reads and verifies its blocks.
struct OpenPiece {
  const PieceRecord& piece;
  const Reader::Entry& tensor;
  const InputFile& file;
  std::int64_t address;

  /// Block `index` of the piece, whole, into `to`.
  void read_block(std::int64_t index, std::byte* to) const {
    const std::int64_t begin = index * block_bytes;
    const std::int64_t bytes = bytes_of(piece.elements, tensor.type);
    const auto length = static_cast<std::size_t>(std::min(block_bytes, bytes - begin));
    const std::int64_t element = piece.offset + begin / bytes_of(1, tensor.type);
    data::Xxh3 hash;
    try {
      for (std::size_t at = 0; at < length; at += step_bytes) {
        const std::size_t part = std::min<std::size_t>(step_bytes, length - at);
        read_at(file, to + at, part, address + begin + static_cast<std::int64_t>(at));
        hash.update(to + at, part);
      }
    } catch (const Error& error) {
      throw Error("{} (tensor {}, element offset {})", error.what(), tensor.name, element);
    }
    if (hash.value() != piece.blocks[static_cast<std::size_t>(index)]) {
      throw Error(
          "{}: tensor {}, element offset {}: {} bytes at byte {} do not match their checksum; "
          "the file is damaged, use another checkpoint",
          file.path().string(), tensor.name, element, length, address + begin);
    }
  }
};

}  // namespace

Reader::Reader(const fs::path& folder) : folder_(folder), stored_(std::make_shared<Stored>()) {
  Manifest manifest = read_manifest(folder);
  for (const FileRecord& file : manifest.files) {
    expect_size(InputFile(folder / file.name, Links::refuse), file.bytes);
  }
  state_ = std::move(manifest.state);
  tensors_ = std::move(manifest.tensors);
  stored_->files = std::move(manifest.files);
  stored_->pieces = std::move(manifest.pieces);
  stored_->located.resize(stored_->files.size());
  stored_->addresses.resize(stored_->pieces.size());
  stored_->first_piece.resize(tensors_.size() + 1);
  for (const PieceRecord& piece : stored_->pieces) ++stored_->first_piece[piece.tensor + 1];
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    stored_->first_piece[t + 1] += stored_->first_piece[t];
  }
}

const Reader::Entry* Reader::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const Entry& entry, const std::string& key) { return entry.name < key; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void Reader::read(const std::string& name, std::int64_t offset, const Tensor& data) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw Error("{}: has no tensor {}", folder_.string(), name);
  if (data.type() != entry->type) {
    throw Error("{}: tensor {}: is {}, {} is wanted", folder_.string(), name, name_of(entry->type),
                name_of(data.type()));
  }
  const std::int64_t wanted = data.elements();
  const std::int64_t whole = entry->shape.elements();
  if (offset < 0 || wanted > whole || offset > whole - wanted) {
    throw Error("{}: tensor {}: {} elements from offset {} on are wanted of {}", folder_.string(),
                name, wanted, offset, entry->shape.to_string());
  }
  TRIREME_ASSERT(data.contiguous() && (data.data() != nullptr || wanted == 0), "read of {}", name);
  if (wanted == 0) return;
  const auto tensor = static_cast<std::size_t>(entry - tensors_.data());
  const auto begin = stored_->pieces.begin();
  // The last piece that begins at or before `offset`; with its successors it covers the rest.
  auto piece = std::upper_bound(
      begin + static_cast<std::ptrdiff_t>(stored_->first_piece[tensor]),
      begin + static_cast<std::ptrdiff_t>(stored_->first_piece[tensor + 1]), offset,
      [](std::int64_t key, const PieceRecord& each) { return key < each.offset; });
  for (--piece;
       piece != stored_->pieces.end() && piece->tensor == tensor && piece->offset < offset + wanted;
       ++piece) {
    const std::int64_t from = std::max(offset, piece->offset);
    const std::int64_t to = std::min(offset + wanted, piece->offset + piece->elements);
    read_piece(static_cast<std::size_t>(piece - begin), from - piece->offset, to - from,
               static_cast<std::byte*>(data.data()) + bytes_of(from - offset, entry->type));
  }
}

// Blocks that are wanted whole go straight to their place, others through the kept block.
void Reader::read_piece(std::size_t p, std::int64_t first, std::int64_t elements,
                        std::byte* to) const {
  const PieceRecord& piece = stored_->pieces[p];
  const Entry& tensor = tensors_[piece.tensor];
  const std::int64_t total = bytes_of(piece.elements, tensor.type);
  const std::int64_t begin = bytes_of(first, tensor.type);
  const std::int64_t end = begin + bytes_of(elements, tensor.type);
  const fs::path path = folder_ / stored_->files[piece.file].name;
  const std::int64_t address = stored_->address(p, path, tensors_);
  std::optional<InputFile> file;
  const auto read_block = [&](std::int64_t index, std::byte* target) {
    if (!file) file.emplace(path, Links::refuse);
    OpenPiece{piece, tensor, *file, address}.read_block(index, target);
  };
  for (std::int64_t index = begin / block_bytes; index * block_bytes < end; ++index) {
    const std::int64_t block_begin = index * block_bytes;
    const std::int64_t block_end = std::min(total, block_begin + block_bytes);
    if (block_begin >= begin && block_end <= end) {
      read_block(index, to + (block_begin - begin));
      continue;
    }
    const std::lock_guard lock(stored_->mutex);
    if (stored_->block_piece != p || stored_->block_index != index) {
      stored_->block_piece = no_piece;  // until it is verified
      stored_->block.resize(static_cast<std::size_t>(block_end - block_begin));
      read_block(index, stored_->block.data());
      stored_->block_piece = p;
      stored_->block_index = index;
    }
    const std::int64_t from = std::max(begin, block_begin);
    const std::int64_t until = std::min(end, block_end);
    std::memcpy(to + (from - begin), stored_->block.data() + (from - block_begin),
                static_cast<std::size_t>(until - from));
  }
}

void Reader::verify() const {
  std::vector<std::byte> block;
  for (std::size_t p = 0; p < stored_->pieces.size(); ++p) {
    const PieceRecord& piece = stored_->pieces[p];
    const Entry& tensor = tensors_[piece.tensor];
    const fs::path path = folder_ / stored_->files[piece.file].name;
    const std::int64_t address = stored_->address(p, path, tensors_);
    const InputFile file(path, Links::refuse);
    const OpenPiece open{piece, tensor, file, address};
    block.resize(
        static_cast<std::size_t>(std::min(block_bytes, bytes_of(piece.elements, tensor.type))));
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(piece.blocks.size()); ++i) {
      open.read_block(i, block.data());
    }
  }
}

}  // namespace trireme::checkpoint
