// Files in the safetensors format: u64 N (little-endian), N bytes of JSON, data. Entries map a name
// to {"dtype", "shape", "data_offsets": [begin, end]}, offsets from the data's beginning,
// row-major. The reader takes nothing on trust: no overlap, no gap, no duplicate key, no size that
// does not follow from shape and type, nothing behind the last tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/files.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::checkpoint {

/// A tensor of a file: `type` as the file spells it ("F32", "BF16", "F16", "I64", …), any number of
/// dimensions.
struct SafeTensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  // bytes, from the data's beginning
  std::int64_t elements() const;
};

/// The header before the data.
struct SafeTensorsHeader {
  std::vector<SafeTensor> tensors;              // by offset
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

inline constexpr std::int64_t most_header_bytes = 100'000'000;

/// Of a tensor, passed on at once by import and export.
inline constexpr std::int64_t block_elements = std::int64_t{4} << 20;

/// Parses the JSON of a header whose data section has `data_bytes`. Throws Error that begins with
/// `source`.
SafeTensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& source);

/// One file, open. Symbolic links are followed only with `links`.
class SafeTensorsFile {
 public:
  /// Reads and checks the header. Throws Error that names the file.
  explicit SafeTensorsFile(const std::filesystem::path& path, Links links = Links::refuse);
  const SafeTensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  /// The entry of that name, or null.
  const SafeTensor* find(const std::string& name) const;
  /// Reads the whole file and throws Error unless it matches the checksum that SafeTensorsWriter
  /// has put into its metadata; does nothing for a file of another program, which has none.
  void verify() const;
  /// Elements [first, first + values.size()) of a tensor of type F32, BF16, F16 or F64 as fp32.
  /// Throws Error for other types and where the file does not give them.
  void read(const SafeTensor& tensor, std::int64_t first, std::vector<float>& values) const;

 private:
  InputFile file_;
  SafeTensorsHeader header_;
  std::map<std::string, std::size_t> by_name_;  // index into header_.tensors
  std::int64_t data_begin_ = 0;
};

/// Writes one file, with a checksum of it in its metadata: make it with all names, types and
/// shapes, then write each tensor's bytes in the order of `order()`, then finish(). Until then the
/// file has the name path + ".tmp".
class SafeTensorsWriter {
 public:
  struct Entry {
    std::string name;
    std::string type;  // F32, BF16 or F16
    std::vector<std::int64_t> shape;
  };
  SafeTensorsWriter(const std::filesystem::path& path, std::vector<Entry> entries,
                    const std::map<std::string, std::string>& metadata);
  SafeTensorsWriter(const SafeTensorsWriter&) = delete;
  SafeTensorsWriter& operator=(const SafeTensorsWriter&) = delete;
  ~SafeTensorsWriter();  // removes what was not finished
  /// Largest alignment first, then by name.
  const std::vector<Entry>& order() const { return entries_; }
  /// The next `n` elements, rounded to the type of the tensor that they belong to.
  void write(const float* values, std::int64_t n);
  /// Throws Error unless every element was written. The file is fsynced, then renamed.
  void finish();

 private:
  std::filesystem::path path_, temporary_;
  std::vector<Entry> entries_;
  std::unique_ptr<OutputFile> file_;
  std::size_t current_ = 0;
  std::int64_t written_ = 0;  // elements of the current tensor
  bool finished_ = false;
};

/// The key in the metadata of the checksum of our files, where the format has none: the xxh3 of the
/// whole file with zeros in the place of its own 16 digits.
inline constexpr const char* seal_key = "trireme_xxh3";
inline constexpr const char* no_seal = "0000000000000000";

/// Computes it and writes it into a file whose header holds `no_seal`. Throws Error.
void seal_safetensors(const std::filesystem::path& path);

/// Bytes of an element of `type` times 8, or 0 for a type that the format does not have.
int bits_of_safetensors_type(std::string_view type);

}  // namespace trireme::checkpoint
