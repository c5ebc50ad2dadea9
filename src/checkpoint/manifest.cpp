#include "manifest.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/core/json.hpp"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

// {"manifest_xxh3": "0123456789abcdef",
constexpr std::string_view seal_begin = "{\"manifest_xxh3\": \"";
constexpr std::string_view seal_end = "\",\n";
constexpr std::size_t seal_length = seal_begin.size() + 16 + seal_end.size();

constexpr const char* tokenizer_key = "tokenizer";  // of State::extra

/// The line that goes before `rest`.
std::string seal_of(std::string_view rest) {
  return fmt::format("{}{}{}", seal_begin, data::hash_text(rest), seal_end);
}

}  // namespace

std::string to_string(const Index& index, int dimensions) {
  std::string text = "[";
  for (int d = 0; d < dimensions; ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(index[static_cast<std::size_t>(d)]);
  }
  return text + "]";
}

Index index_of(const Box& box, std::int64_t element) {
  Index index = box.begin;
  for (int d = box.extent.dimensions() - 1; d >= 0; --d) {
    index[static_cast<std::size_t>(d)] += element % box.extent[d];
    element /= box.extent[d];
  }
  return index;
}

void require_finite(const std::string& where, const std::string& name, const Box& box,
                    const Tensor& data, std::string_view remedy) {
  const auto* bytes = static_cast<const std::byte*>(data.data());
  const auto size = static_cast<std::int64_t>(size_of(data.type()));
  for_each_stretch(box, box, box, data, [&](std::int64_t from, std::int64_t at, std::int64_t n) {
    const std::int64_t element = first_not_finite(bytes + at * size, n, data.type());
    if (element == n) return;
    throw Error("{}: tensor {}: element {} is NaN or infinite; {}", where, name,
                to_string(index_of(box, from + element), box.extent.dimensions()), remedy);
  });
}

bool fits(const Box& box, const Shape& whole) {
  if (box.extent.dimensions() != whole.dimensions()) return false;
  for (int d = 0; d < whole.dimensions(); ++d) {
    const std::int64_t begin = box.begin[static_cast<std::size_t>(d)];
    if (begin < 0 || box.extent[d] < 0 || box.extent[d] > whole[d] ||
        begin > whole[d] - box.extent[d]) {
      return false;
    }
  }
  return true;
}

Box intersection(const Box& a, const Box& b) {
  Box result = a;
  for (int d = 0; d < a.extent.dimensions(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    result.begin[i] = std::max(a.begin[i], b.begin[i]);
    result.extent[d] = std::max<std::int64_t>(0, std::min(a.end(d), b.end(d)) - result.begin[i]);
  }
  return result;
}

// The number of boxes that hold an element is the sum of the signed corners at or before it in
// every dimension. So up to the first corner, in row-major order, at which the sum over all boxes
// differs from that of `whole`, every element is held once, and at it the difference shows.
std::optional<CoverFault> find_cover_fault(const Shape& whole, const std::vector<Box>& boxes) {
  const int dimensions = whole.dimensions();
  std::vector<std::pair<Index, std::int64_t>> corners;
  corners.reserve((boxes.size() + 1) << dimensions);
  const auto add = [&](const Box& box, std::int64_t sign) {
    if (box.elements() == 0) return;
    for (unsigned ends = 0; ends < 1U << dimensions; ++ends) {
      Index corner{};
      std::int64_t value = sign;
      for (int d = 0; d < dimensions; ++d) {
        const bool end = (ends >> d & 1U) != 0;
        corner[static_cast<std::size_t>(d)] =
            end ? box.end(d) : box.begin[static_cast<std::size_t>(d)];
        if (end) value = -value;
      }
      corners.emplace_back(corner, value);
    }
  };
  for (const Box& box : boxes) add(box, 1);
  add({{}, whole}, -1);
  std::sort(corners.begin(), corners.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < corners.size();) {
    std::int64_t sum = 0;
    std::size_t next = i;
    for (; next < corners.size() && corners[next].first == corners[i].first; ++next) {
      sum += corners[next].second;
    }
    if (sum != 0) return CoverFault{corners[i].first, 1 + sum};
    i = next;
  }
  return std::nullopt;
}

bool is_sealed(std::string_view text) {
  return text.size() >= seal_length && text.starts_with(seal_of(text.substr(seal_length)));
}

std::string fault_of_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > 512) return "has more than 512 bytes";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return "has an empty part, '.' or '..'";
    begin = end + 1;
  }
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '@')
      return "has a byte that is '@' or not printable ASCII";
  }
  return "";
}

bool checked_elements(const Shape& shape, DType type, std::int64_t& elements) {
  elements = 1;
  bool empty = false;
  for (int d = 0; d < shape.dimensions(); ++d) {
    if (shape[d] < 0) return false;
    empty = empty || shape[d] == 0;
    // Shape::elements() would multiply the others before it comes to a zero.
    const std::int64_t factor = std::max<std::int64_t>(shape[d], 1);
    if (__builtin_mul_overflow(elements, factor, &elements)) return false;
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::int64_t>(size_of(type)), &bytes)) {
    return false;
  }
  if (empty) elements = 0;
  return true;
}

std::vector<std::int64_t> list_of(const Shape& shape) {
  std::vector<std::int64_t> list;
  for (int d = 0; d < shape.dimensions(); ++d) list.push_back(shape[d]);
  return list;
}

std::vector<std::int64_t> list_of(const Index& index, int dimensions) {
  return {index.begin(), index.begin() + dimensions};
}

Index make_index(const std::vector<std::int64_t>& list) {
  Index index{};
  TRIREME_ASSERT(list.size() <= index.size(), "{} dimensions", list.size());
  std::copy(list.begin(), list.end(), index.begin());
  return index;
}

void sort_and_check_cover(const std::string& where, const std::vector<Reader::Entry>& tensors,
                          std::vector<PieceRecord>& pieces) {
  const auto before = [](const PieceRecord& a, const PieceRecord& b) {
    return std::tie(a.tensor, a.box.begin) < std::tie(b.tensor, b.box.begin);
  };
  if (!std::ranges::is_sorted(pieces, before)) std::ranges::sort(pieces, before);
  auto piece = pieces.begin();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto& [name, shape, type] = tensors[t];
    std::vector<Box> boxes;
    for (; piece != pieces.end() && piece->tensor == t; ++piece) {
      if (!fits(piece->box, shape) || piece->box.elements() == 0) {
        throw Error("{}: tensor {}: a piece {} from {} on does not fit into {}", where, name,
                    piece->box.extent.to_string(),
                    to_string(piece->box.begin, piece->box.extent.dimensions()), shape.to_string());
      }
      boxes.push_back(piece->box);
    }
    const auto fault = find_cover_fault(shape, boxes);
    if (!fault) continue;
    const std::string element = to_string(fault->at, shape.dimensions());
    if (fault->holders == 0) {
      throw Error("{}: tensor {}: no piece holds element {} of {}", where, name, element,
                  shape.to_string());
    }
    throw Error("{}: tensor {}: {} pieces hold element {}; each is to be stored once", where, name,
                fault->holders, element);
  }
}

std::string to_text(const Manifest& manifest) {
  const State& state = manifest.state;
  const auto field = [](std::string& text, const char* key, const json& value) {
    text += fmt::format("\"{}\": {},\n", key, json_text(value));
  };
  std::string rest;
  field(rest, "format", format_name);
  field(rest, "version", format_version);
  field(rest, "block_bytes", block_bytes);
  field(rest, "step", state.step);
  field(rest, "samples", state.samples);
  field(rest, "seed", state.seed);
  field(rest, "config", state.config);
  field(rest, "versions", state.versions);
  field(rest, "extra", state.extra);
  // A list with one entry a line, so that people can read and compare manifests.
  const auto list = [&rest](const char* key, std::size_t size, const auto& entry, bool last) {
    rest += fmt::format("\"{}\": [", key);
    for (std::size_t i = 0; i < size; ++i) {
      rest += (i == 0 ? "\n  " : ",\n  ") + json_text(entry(i));
    }
    rest += last ? "\n]}\n" : "\n],\n";
  };
  list(
      "files", manifest.files.size(),
      [&](std::size_t i) {
        const FileRecord& file = manifest.files[i];
        json entry{{"name", file.name}, {"bytes", file.bytes}};
        if (!file.folder.empty()) entry["folder"] = file.folder;
        return entry;
      },
      false);
  list(
      "tensors", manifest.tensors.size(),
      [&](std::size_t i) {
        const Reader::Entry& tensor = manifest.tensors[i];
        return json{{"name", tensor.name},
                    {"type", name_of(tensor.type)},
                    {"shape", list_of(tensor.shape)}};
      },
      false);
  list(
      "pieces", manifest.pieces.size(),
      [&](std::size_t i) {
        const PieceRecord& piece = manifest.pieces[i];
        json blocks = json::array();
        for (const std::uint64_t hash : piece.blocks)
          blocks.push_back(fmt::format("{:016x}", hash));
        return json{{"tensor", manifest.tensors[piece.tensor].name},
                    {"offset", list_of(piece.box.begin, piece.box.extent.dimensions())},
                    {"shape", list_of(piece.box.extent)},
                    {"file", manifest.files[piece.file].name},
                    {"dataset", piece.dataset},
                    {"xxh3", blocks}};
      },
      true);
  return rest.insert(0, seal_of(rest));
}

void keep_tokenizer(State& state, const data::StoredTokenizer& tokenizer) {
  if (tokenizer.description.is_null() || tokenizer.description.at("tokenizer") == "none") return;
  state.extra[tokenizer_key] = tokenizer.description;
  if (!tokenizer.file.empty()) state.attachments.push_back({tokenizer.file, tokenizer.content});
}

std::optional<data::Manifest> kept_tokenizer(const Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.is_object() || !extra.contains(tokenizer_key)) return std::nullopt;
  return data::described_tokenizer(extra.at(tokenizer_key),
                                   (reader.folder() / "manifest.json").string());
}

}  // namespace trireme::checkpoint
