#include "trireme/checkpoint/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/half.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little,
              "values are read in the order of their bytes");

constexpr std::string_view metadata_key = "__metadata__";
constexpr int prefix_bytes = 8;
constexpr std::int64_t most_dimensions = 64;

/// The header as it is parsed, event by event: a DOM would keep the last of two equal keys
/// silently, and nest as deep as a file likes.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafeTensorsHeader& header) : header_(header) {}
  std::string fault;  // why it was refused

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) return refuse("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse("a number above 2^63 - 1");
    }
    numbers_.push_back(static_cast<std::int64_t>(value));
    if (static_cast<std::int64_t>(numbers_.size()) > most_dimensions) {
      return fail("'{}' has more than {} numbers", key_, most_dimensions);
    }
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header_.metadata.emplace(key_, value);
      return true;
    }
    if (place_ != Place::entry || key_ != "dtype") return refuse("a string");
    tensor_.type = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
      return true;
    }
    if (place_ != Place::top) return refuse("an object");
    keys_.clear();
    place_ = name_ == metadata_key ? Place::metadata : Place::entry;
    tensor_ = {.name = name_};
    return true;
  }
  bool key(string_t& key) override {
    if (place_ == Place::top) {
      name_ = key_ = key;
      if (!names_.insert(key).second) return fail("has the key '{}' twice", shown(key));
      return true;
    }
    key_ = key;
    if (!keys_.insert(key).second)
      return fail("'{}' has the key '{}' twice", shown(name_), shown(key));
    if (place_ == Place::entry && key != "dtype" && key != "shape" && key != "data_offsets") {
      return fail("'{}' has the unknown key '{}'", shown(name_), shown(key));
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::top) {
      place_ = Place::outside;
      return true;
    }
    if (place_ == Place::entry) {
      if (keys_.size() != 3) return fail("'{}' lacks dtype, shape or data_offsets", shown(name_));
      header_.tensors.push_back(std::move(tensor_));
    }
    place_ = Place::top;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::entry || (key_ != "shape" && key_ != "data_offsets")) {
      return refuse("a list");
    }
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    if (place_ == Place::shape) {
      tensor_.shape = numbers_;
    } else {
      if (numbers_.size() != 2) {
        return fail("'{}' has {} data_offsets, not 2", shown(name_), numbers_.size());
      }
      tensor_.begin = numbers_[0];
      tensor_.end = numbers_[1];
    }
    place_ = Place::entry;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    if (fault.empty()) fault = fmt::format("is not valid JSON at byte {}", prefix_bytes + at);
    return false;
  }

 private:
  enum class Place : std::uint8_t { outside, top, entry, shape, offsets, metadata };
  static std::string shown(const std::string& text) {
    return config::one_line(text.size() > 80 ? text.substr(0, 80) + "…" : text);
  }
  template <class... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    fault = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }
  bool refuse(const char* what) {
    if (place_ == Place::outside) return fail("holds {} where an object is expected", what);
    return fail("'{}' holds {} where none belongs",
                place_ == Place::top ? shown(name_) : shown(name_) + "." + shown(key_), what);
  }

  SafeTensorsHeader& header_;
  SafeTensor tensor_;
  std::string name_, key_;
  std::set<std::string> names_, keys_;
  std::vector<std::int64_t> numbers_;
  Place place_ = Place::outside;
};

/// Bytes of a tensor; −1 where they pass 2⁶³ or are not whole.
std::int64_t bytes_of(const SafeTensor& tensor) {
  std::int64_t bits = bits_of_safetensors_type(tensor.type);
  for (const std::int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) {
      // A later extent of 0 makes the whole 0, but no sound file has such a shape.
      return -1;
    }
  }
  return bits % 8 == 0 ? bits / 8 : -1;
}

void check_offsets(const SafeTensorsHeader& header, std::int64_t data_bytes,
                   const std::string& source) {
  std::int64_t end = 0;
  for (const SafeTensor& tensor : header.tensors) {
    const auto fail = [&](const std::string& what) {
      throw Error("{}: tensor '{}': {}", source, config::one_line(tensor.name), what);
    };
    if (bits_of_safetensors_type(tensor.type) == 0) {
      fail(fmt::format("dtype '{}' is unknown", config::one_line(tensor.type)));
    }
    if (tensor.begin != end) {
      fail(fmt::format("begins at byte {} of the data, the one before it ends at {}", tensor.begin,
                       end));
    }
    const std::int64_t bytes = bytes_of(tensor);
    if (bytes < 0) fail("its shape is too large");
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes) {
      fail(fmt::format("data_offsets [{}, {}] do not hold the {} bytes of its shape", tensor.begin,
                       tensor.end, bytes));
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    throw Error("{}: {} bytes of data, its tensors have {}; restore the file", source, data_bytes,
                end);
  }
}

/// Exactly `bytes` from `offset` on.
void read_at(const InputFile& file, std::int64_t offset, void* data, std::size_t bytes) {
  const std::size_t got = file.read_at(data, bytes, offset);
  if (got == bytes) return;
  throw Error("{}: ends at byte {}; restore the file", file.path().string(),
              offset + static_cast<std::int64_t>(got));
}

}  // namespace

int bits_of_safetensors_type(std::string_view type) {
  struct Known {
    std::string_view name;
    int bits;
  };
  static constexpr Known known[] = {{"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8},
                                    {"F8_E4M3", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},
                                    {"BF16", 16},   {"U32", 32}, {"I32", 32}, {"F32", 32},
                                    {"U64", 64},    {"I64", 64}, {"F64", 64}};
  for (const Known& each : known) {
    if (each.name == type) return each.bits;
  }
  return 0;
}

std::int64_t SafeTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;  // checked when the header was read
  return product;
}

SafeTensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& source) {
  SafeTensorsHeader header;
  if (json.empty() || json.front() != '{') {
    throw Error("{}: its header does not begin with '{{'; is it a safetensors file?", source);
  }
  HeaderReader reader(header);
  if (!nlohmann::json::sax_parse(json, &reader)) {
    throw Error("{}: its header {}; restore the file", source, reader.fault);
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafeTensor& a, const SafeTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_offsets(header, data_bytes, source);
  return header;
}

SafeTensorsFile::SafeTensorsFile(const fs::path& path, Links links) : file_(path, links) {
  const std::string source = path.string();
  if (file_.size() < prefix_bytes) {
    throw Error("{}: {} bytes are no safetensors file; restore the file", source, file_.size());
  }
  std::uint64_t length = 0;
  read_at(file_, 0, &length, sizeof length);
  if (length > static_cast<std::uint64_t>(most_header_bytes) ||
      length > static_cast<std::uint64_t>(file_.size() - prefix_bytes)) {
    throw Error("{}: its header has {} bytes by the first eight, the file {}; restore the file",
                source, length, file_.size());
  }
  std::string json(length, '\0');
  read_at(file_, prefix_bytes, json.data(), json.size());
  data_begin_ = prefix_bytes + static_cast<std::int64_t>(length);
  header_ = parse_safetensors_header(json, file_.size() - data_begin_, source);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    by_name_.emplace(header_.tensors[i].name, i);
  }
}

const SafeTensor* SafeTensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void SafeTensorsFile::read(const SafeTensor& tensor, std::int64_t first,
                           std::vector<float>& values) const {
  const auto n = static_cast<std::int64_t>(values.size());
  TRIREME_ASSERT(first >= 0 && first + n <= tensor.elements(), "elements [{}, {}) of {}", first,
                 first + n, tensor.elements());
  const std::int64_t bytes = bits_of_safetensors_type(tensor.type) / 8;
  const std::int64_t at = data_begin_ + tensor.begin + first * bytes;
  const auto convert = [&](auto sample, const auto& value_of) {
    std::vector<decltype(sample)> stored(values.size());
    read_at(file_, at, stored.data(), stored.size() * sizeof sample);
    std::transform(stored.begin(), stored.end(), values.begin(), value_of);
  };
  if (tensor.type == "F32") {
    read_at(file_, at, values.data(), values.size() * sizeof(float));
  } else if (tensor.type == "BF16") {
    convert(std::uint16_t{}, [](std::uint16_t x) { return bf16_to_float(x); });
  } else if (tensor.type == "F16") {
    convert(std::uint16_t{}, [](std::uint16_t x) { return fp16_to_float(x); });
  } else if (tensor.type == "F64") {
    convert(double{}, [](double x) { return static_cast<float>(x); });
  } else {
    throw Error("{}: tensor '{}': dtype {} is not F32, BF16, F16 or F64; convert it first",
                file_.path().string(), config::one_line(tensor.name), tensor.type);
  }
}

SafeTensorsWriter::SafeTensorsWriter(const fs::path& path, std::vector<Entry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), temporary_(path.string() + ".tmp"), entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    const int left = bits_of_safetensors_type(a.type), right = bits_of_safetensors_type(b.type);
    return left != right ? left > right : a.name < b.name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  nlohmann::ordered_json& about = header[std::string(metadata_key)] = metadata;
  about[seal_key] = no_seal;
  std::int64_t at = 0;
  for (const Entry& entry : entries_) {
    const SafeTensor tensor{entry.name, entry.type, entry.shape, 0, 0};
    const std::int64_t bytes = bytes_of(tensor);
    TRIREME_ASSERT(bytes >= 0 && !header.contains(entry.name), "tensor {} of type {}", entry.name,
                   entry.type);
    header[entry.name] = {
        {"dtype", entry.type}, {"shape", entry.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string json = header.dump();
  json.append((prefix_bytes - json.size() % prefix_bytes) % prefix_bytes, ' ');
  std::error_code ignored;
  fs::remove(temporary_, ignored);
  file_ = std::make_unique<OutputFile>(temporary_);
  const std::uint64_t length = json.size();
  file_->write(&length, sizeof length);
  file_->write(json.data(), json.size());
}

SafeTensorsWriter::~SafeTensorsWriter() {
  std::error_code ignored;
  if (!finished_) fs::remove(temporary_, ignored);
}

void SafeTensorsWriter::write(const float* values, std::int64_t n) {
  while (n > 0) {
    TRIREME_ASSERT(current_ < entries_.size(), "more elements than were announced");
    const Entry& entry = entries_[current_];
    const SafeTensor tensor{entry.name, entry.type, entry.shape, 0, 0};
    const std::int64_t part = std::min(n, tensor.elements() - written_);
    if (entry.type == "F32") {
      file_->write(values, static_cast<std::size_t>(part) * sizeof(float));
    } else {
      std::vector<std::uint16_t> rounded(static_cast<std::size_t>(part));
      const bool brain = entry.type == "BF16";
      TRIREME_ASSERT(brain || entry.type == "F16", "writing {}", entry.type);
      std::transform(values, values + part, rounded.begin(),
                     [&](float x) { return brain ? float_to_bf16(x) : float_to_fp16(x); });
      const DType type = brain ? DType::bf16 : DType::f16;
      const std::int64_t element = first_not_finite(rounded.data(), part, type);
      if (element < part && std::isfinite(values[element])) {
        throw Error("{}: tensor {}: {} is beyond the range of {}; write it in another type",
                    path_.string(), entry.name, values[element], entry.type);
      }
      file_->write(rounded.data(), rounded.size() * sizeof(std::uint16_t));
    }
    values += part;
    n -= part;
    written_ += part;
    if (written_ == tensor.elements()) {
      written_ = 0;
      ++current_;
    }
  }
}

void SafeTensorsWriter::finish() {
  while (current_ < entries_.size() && written_ == 0 &&
         std::count(entries_[current_].shape.begin(), entries_[current_].shape.end(), 0) > 0) {
    ++current_;  // tensors of no elements
  }
  TRIREME_ASSERT(current_ == entries_.size(), "{} of {} tensors written", current_,
                 entries_.size());
  file_->finish();
  seal_safetensors(temporary_);
  sync_path(temporary_);
  std::error_code error;
  fs::rename(temporary_, path_, error);
  if (error) throw_file_error(path_, "create", error.value());
  finished_ = true;
  sync_path(parent_of(path_));
}

}  // namespace trireme::checkpoint
