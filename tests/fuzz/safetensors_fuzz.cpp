// A safetensors file by the reader of whole files. The first byte selects the form of the rest:
// even, unchanged; odd, two bytes with the size of the data (zeros), then the header's JSON,
// without its length.
#include <cstring>
#include <set>
#include <vector>

#include "trireme/checkpoint/safetensors.hpp"

#include "fuzz.hpp"

namespace trireme {
namespace {

std::vector<std::uint8_t> file_from(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> file;
  if (size == 0) return file;
  if (data[0] % 2 == 0) return {data + 1, data + size};
  if (size < 3) return file;
  const std::size_t zeros = data[1] | static_cast<std::size_t>(data[2]) << 8;
  const std::uint64_t length = size - 3;
  file.resize(8 + length + zeros);
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, data + 3, length);
  return file;
}

/// By plain loops: the tensors tile the data, in order.
void check(const checkpoint::SafeTensorsFile& file, std::int64_t data_bytes) {
  std::int64_t end = 0;
  std::set<std::string> names;
  for (const checkpoint::SafeTensor& tensor : file.header().tensors) {
    fuzz::require(names.insert(tensor.name).second, "names are unique");
    fuzz::require(file.find(tensor.name) == &tensor, "and found");
    fuzz::require(tensor.begin == end && tensor.end >= end && tensor.end <= data_bytes,
                  "tensors are contiguous in the data");
    end = tensor.end;
    double bits = checkpoint::bits_of_safetensors_type(tensor.type);  // exact below 2^53
    for (const std::int64_t extent : tensor.shape) {
      bits *= static_cast<double>(extent);
      fuzz::require(extent >= 0 && bits < 0x1p63, "a shape is valid");
    }
    fuzz::require(bits == 8 * static_cast<double>(tensor.end - tensor.begin),
                  "a shape has as many bytes as its tensor");
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    // The data are complete, so only the type can be refused.
    fuzz::accepted(file.path().string(), [&] { file.read(tensor, 0, values); });
  }
  fuzz::require(end == data_bytes, "nothing is left over");
}

}  // namespace
}  // namespace trireme

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  const std::vector<std::uint8_t> bytes = file_from(data, size);
  folder.put("x.safetensors", bytes.data(), bytes.size());
  const std::filesystem::path path = folder.path() / "x.safetensors";
  fuzz::accepted(path.string(), [&] {
    const checkpoint::SafeTensorsFile file(path);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    check(file, static_cast<std::int64_t>(bytes.size() - 8 - header));
  });
  return 0;
}
