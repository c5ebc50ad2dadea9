// A checkpoint's manifest.json behind a valid seal: an accepted one covers each tensor exactly
// once, stays inside its files, and round-trips.
#include <map>

#include "checkpoint/manifest.hpp"
#include "fuzz.hpp"

namespace trireme::checkpoint {
namespace {

std::string sealed(const std::string& rest) {
  return fmt::format("{{\"manifest_xxh3\": \"{}\",\n{}", data::hash_text(rest), rest);
}

/// Counts, for a small tensor, how many pieces hold each element.
void check_cover(const Manifest& manifest, std::size_t t) {
  const Shape& shape = manifest.tensors[t].shape;
  if (shape.elements() > 4096) return;
  std::map<Index, int> holders;
  for (const PieceRecord& piece : manifest.pieces) {
    if (piece.tensor != t || piece.box.elements() == 0) continue;
    for (std::int64_t e = 0; e < piece.box.elements(); ++e) ++holders[index_of(piece.box, e)];
  }
  fuzz::require(static_cast<std::int64_t>(holders.size()) == shape.elements(), "all are held");
  for (const auto& [index, count] : holders) {
    fuzz::require(count == 1, "once each");
    for (int d = 0; d < shape.dimensions(); ++d) {
      const std::int64_t at = index[static_cast<std::size_t>(d)];
      fuzz::require(at >= 0 && at < shape[d], "inside the tensor");
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  Manifest manifest;
  const std::string text = sealed(fuzz::text_of(data, size));
  if (!fuzz::accepted("manifest.json: ",
                      [&] { manifest = parse_manifest(text, "manifest.json"); })) {
    return 0;
  }
  std::vector<std::int64_t> bytes(manifest.files.size());
  for (const PieceRecord& piece : manifest.pieces) {
    const std::int64_t own = bytes_of(piece.box.elements(), manifest.tensors[piece.tensor].type);
    fuzz::require(own >= 0 && static_cast<std::int64_t>(piece.blocks.size()) == block_count(own),
                  "a checksum for each block");
    bytes[piece.file] += own;
  }
  for (std::size_t f = 0; f < bytes.size(); ++f) {
    const FileRecord& file = manifest.files[f];
    fuzz::require(bytes[f] >= 0 && bytes[f] <= file.bytes, "pieces fit into their files");
    fuzz::require(std::filesystem::path(file.name).filename() == file.name && file.name[0] != '.',
                  "a plain name");
  }
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) check_cover(manifest, t);
  const std::string written = to_text(manifest);
  fuzz::require(to_text(parse_manifest(written, "again")) == written, "written and read");
  return 0;
}
