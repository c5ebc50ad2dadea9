#include <algorithm>
#include <bit>
#include <cstring>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

// Chunks are used in the byte order of the file.
static_assert(std::endian::native == std::endian::little, "shards are little-endian");

using hdf5::Lock;

constexpr std::size_t checksum_bytes = 4;

std::int64_t chunk_extent(std::int64_t size) { return std::min(size, chunk_elements); }

hid_t stored_type(std::size_t element_bytes) {
  if (element_bytes == 1) return H5T_STD_U8LE;
  if (element_bytes == 2) return H5T_STD_U16LE;
  if (element_bytes == 4) return H5T_STD_U32LE;
  TRIREME_ASSERT(element_bytes == 8, "elements of {} bytes", element_bytes);
  return H5T_STD_U64LE;
}

/// A sum in the representation that end-around carries leave: 0 only for nothing but zeros.
std::uint32_t fold(std::uint64_t sum) {
  return sum == 0 ? 0 : static_cast<std::uint32_t>((sum - 1) % 65535 + 1);
}

template <class Element>
Element largest(std::span<const std::byte> chunk) {
  Element most = 0;
  for (std::size_t at = 0; at < chunk.size(); at += sizeof(Element)) {
    Element id;
    std::memcpy(&id, chunk.data() + at, sizeof id);
    most = std::max(most, id);
  }
  return most;
}

/// H5Dread_chunk by the signature that it had until version 2.0.
herr_t read_raw_chunk(hid_t dataset, hsize_t offset, std::uint32_t* skipped_filters, void* data) {
#if H5_VERSION_GE(2, 0, 0)
  return H5Dread_chunk1(dataset, H5P_DEFAULT, &offset, skipped_filters, data);
#else
  return H5Dread_chunk(dataset, H5P_DEFAULT, &offset, skipped_filters, data);
#endif
}

}  // namespace

std::uint32_t fletcher32(std::span<const std::byte> data) {
  TRIREME_ASSERT(data.size() <= (std::size_t{1} << 21), "{} bytes", data.size());
  // Exact sums: with n ≤ 2^20 words the second is at most 65535·n(n+1)/2 < 2^56. Inside a block of
  // 256 words both fit into 32 bits (65535·256·257/2 < 2^31.1), which lets the loop be vectorized.
  constexpr std::size_t block = 256;
  std::uint64_t sum = 0;
  std::uint64_t running = 0;
  std::array<std::uint16_t, block> words{};
  for (std::size_t at = 0; at + 1 < data.size();) {
    const std::size_t count = std::min(block, (data.size() - at) / 2);
    std::memcpy(words.data(), data.data() + at, 2 * count);
    std::uint32_t block_sum = 0;
    std::uint32_t block_running = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto word = static_cast<std::uint16_t>(words[i] << 8 | words[i] >> 8);
      block_sum += word;
      block_running += static_cast<std::uint32_t>(count - i) * word;
    }
    running += count * sum + block_running;
    sum += block_sum;
    at += 2 * count;
  }
  if (data.size() % 2 == 1) {
    sum += std::to_integer<std::uint64_t>(data.back()) << 8;
    running += sum;
  }
  return fold(running) << 16 | fold(sum);
}

ShardReader::ShardReader(const std::filesystem::path& folder, const Manifest& manifest,
                         const ShardInfo& shard)
    : what_((folder / shard.file).string()), vocabulary_(manifest.vocabulary) {
  const Lock lock;
  file_ = hdf5::open_file(folder / shard.file);
  hdf5::expect_attributes(file_.get(), {"format", "version"}, what_);
  if (hdf5::read_text_attribute(file_.get(), "format", what_) != format_name ||
      hdf5::read_number_attribute(file_.get(), "version", what_) != format_version(manifest)) {
    throw Error("{}: is not version {} of {}; prepare again", what_, format_version(manifest),
                format_name);
  }
  const auto add = [&](const char* name, std::int64_t size, std::size_t element_bytes) {
    columns_.push_back({name, {}, size, element_bytes});
  };
  add("tokens", shard.tokens, manifest.element_bytes);
  add("document_ends", shard.documents, sizeof(std::uint64_t));
  if (manifest.loss_weights) add("loss_weights", shard.tokens, 1);
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  std::ranges::sort(names);
  hdf5::expect_links(file_.get(), names, what_);
  for (Column& column : columns_) {
    column.dataset =
        hdf5::open_dataset(file_.get(), column.name, stored_type(column.element_bytes),
                           static_cast<std::uint64_t>(column.size),
                           static_cast<std::uint64_t>(chunk_extent(column.size)), what_);
    hdf5::expect_attributes(column.dataset.get(), {}, what_);
  }
}

std::vector<std::byte> ShardReader::read_chunk(const Column& column, std::int64_t chunk) const {
  const std::int64_t first = chunk * chunk_elements;
  TRIREME_ASSERT(chunk >= 0 && first < column.size, "chunk {} of {} elements", chunk, column.size);
  const auto offset = static_cast<hsize_t>(first);
  // The last chunk is stored in full too.
  const std::size_t bytes =
      static_cast<std::size_t>(chunk_extent(column.size)) * column.element_bytes;
  const std::int64_t last = std::min(first + chunk_elements, column.size) - 1;
  std::vector<std::byte> data(bytes + checksum_bytes);
  haddr_t address = HADDR_UNDEF;
  bool whole = false;
  {
    const Lock lock;
    hsize_t stored = 0;
    std::uint32_t skipped = 0;
    whole = H5Dget_chunk_storage_size(column.dataset.get(), &offset, &stored) >= 0 &&
            stored == data.size() &&
            read_raw_chunk(column.dataset.get(), offset, &skipped, data.data()) >= 0 &&
            skipped == 0;
    if (!whole) {
      throw Error(
          "{}: the chunk of {} {}-{} is not there in full ({}); restore the file or prepare again",
          what_, column.name, first, last, hdf5::reason());
    }
  }
  std::uint32_t expected = 0;
  std::memcpy(&expected, data.data() + bytes, checksum_bytes);
  data.resize(bytes);
  if (fletcher32(data) != expected) {
    const Lock lock;
    unsigned mask = 0;
    hsize_t size = 0;
    H5Dget_chunk_info_by_coord(column.dataset.get(), &offset, &mask, &address, &size);
    throw Error(
        "{}: checksum of the chunk at byte {} ({} {}-{}) does not match; restore the file or "
        "prepare again",
        what_, address, column.name, first, last);
  }
  data.resize(static_cast<std::size_t>(last + 1 - first) * column.element_bytes);
  return data;
}

void ShardReader::check_ids(std::span<const std::byte> chunk, std::int64_t first) const {
  const std::size_t bytes = columns_[0].element_bytes;
  const auto id_at = [&](std::size_t i) {
    std::uint32_t id = 0;
    std::memcpy(&id, chunk.data() + i * bytes, bytes);
    return id;
  };
  const std::uint32_t most =
      bytes == 2 ? largest<std::uint16_t>(chunk) : largest<std::uint32_t>(chunk);
  if (most < vocabulary_) return;
  std::size_t at = 0;
  while (id_at(at) < vocabulary_) ++at;
  throw Error("{}: token {} has id {}, outside the vocabulary of {}; prepare again", what_,
              first + static_cast<std::int64_t>(at), id_at(at), vocabulary_);
}

std::vector<std::byte> ShardReader::token_chunk(std::int64_t chunk) const {
  std::vector<std::byte> data = read_chunk(columns_[0], chunk);
  check_ids(data, chunk * chunk_elements);
  return data;
}

std::vector<std::byte> ShardReader::weight_chunk(std::int64_t chunk) const {
  std::vector<std::byte> data = read_chunk(columns_.at(2), chunk);
  const auto bad =
      std::ranges::find_if(data, [](std::byte weight) { return weight > std::byte{1}; });
  if (bad == data.end()) return data;
  throw Error("{}: the loss weight of token {} is neither 0 nor 1; prepare again", what_,
              chunk * chunk_elements + (bad - data.begin()));
}

std::vector<std::uint64_t> ShardReader::end_chunk(std::int64_t chunk) const {
  const std::vector<std::byte> data = read_chunk(columns_[1], chunk);
  std::vector<std::uint64_t> ends(data.size() / sizeof(std::uint64_t));
  std::memcpy(ends.data(), data.data(), data.size());
  std::uint64_t before = 0;
  for (const std::uint64_t end : ends) {
    if (end <= before || end > static_cast<std::uint64_t>(tokens())) {
      throw Error("{}: document ends do not ascend within its {} tokens; prepare again", what_,
                  tokens());
    }
    before = end;
  }
  return ends;
}

ShardWriter::ShardWriter(const std::filesystem::path& path, std::int64_t tokens,
                         std::int64_t documents, std::size_t element_bytes, bool has_weights)
    : path_(path),
      element_bytes_(element_bytes),
      file_(hdf5::create_file(path)),
      tokens_{stored_type(element_bytes), {}, tokens},
      ends_{stored_type(sizeof(std::uint64_t)), {}, documents},
      weights_{stored_type(1), {}, has_weights ? tokens : 0} {
  hdf5::write_attribute(file_.get(), "format", std::string(format_name), path_.string());
  Manifest manifest;
  manifest.loss_weights = has_weights;
  hdf5::write_attribute(file_.get(), "version", format_version(manifest), path_.string());
  for (const auto& [column, name] :
       {std::pair(&tokens_, "tokens"), std::pair(&ends_, "document_ends"),
        std::pair(&weights_, "loss_weights")}) {
    if (column == &weights_ && !has_weights) continue;
    column->dataset =
        hdf5::create_dataset(file_.get(), name, column->type, {static_cast<hsize_t>(column->left)},
                             static_cast<hsize_t>(chunk_extent(column->left)), path_.string());
  }
}

void ShardWriter::append(Column& column, const void* elements, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  TRIREME_ASSERT(size <= column.left, "{} elements too many", size - column.left);
  hdf5::write_elements(column.dataset, column.type, static_cast<std::uint64_t>(column.done), count,
                       elements, path_.string());
  column.done += size;
  column.left -= size;
}

void ShardWriter::append_tokens(std::span<const std::byte> elements) {
  append(tokens_, elements.data(), elements.size() / element_bytes_);
}

void ShardWriter::append_ends(std::span<const std::uint64_t> ends) {
  append(ends_, ends.data(), ends.size());
}

void ShardWriter::append_weights(std::span<const std::byte> weights) {
  append(weights_, weights.data(), weights.size());
}

void ShardWriter::finish() {
  TRIREME_ASSERT(tokens_.left == 0 && ends_.left == 0 && weights_.left == 0,
                 "{} tokens, {} documents and {} weights missing", tokens_.left, ends_.left,
                 weights_.left);
  // What the library still holds is written here.
  for (Column* column : {&tokens_, &ends_, &weights_}) {
    const Lock lock;
    hdf5::written(column->dataset.close(), path_.string());
  }
  hdf5::close_file(file_, path_.string());
  sync_path(path_);
}

}  // namespace trireme::data
