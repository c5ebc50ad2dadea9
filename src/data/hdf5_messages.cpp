#include <fmt/format.h>

#include "trireme/core/config.hpp"

#include "hdf5_check.hpp"

namespace trireme::data::hdf5 {
namespace {

[[noreturn]] void refuse_type() { throw Fault{"is of the wrong type; make the file again", true}; }
[[noreturn]] void refuse_storage() {
  throw Fault{"is stored in another way than this program stores it; make the file again", true};
}

std::vector<std::uint64_t> dataspace(Bytes& body) {
  body.expect(2, 1, "a dataspace is of another version");
  const std::uint64_t rank = body.number(1), flags = body.number(1), kind = body.number(1);
  if (rank > 32 || flags > 1 || kind > 2 || (kind != 1 && rank != 0)) {
    damaged("a dataspace is none that can be");
  }
  std::vector<std::uint64_t> extents;
  for (std::uint64_t d = 0; d < rank; ++d) extents.push_back(body.number(8));
  for (std::uint64_t d = 0; flags == 1 && d < rank; ++d) {
    if (body.number(8) < extents[d]) damaged("an extent is above its most");
  }
  if (kind == 2) extents.assign(1, 0);
  return extents;
}

/// Bytes of one element.
std::uint64_t datatype(Bytes& body) {
  const std::uint64_t head = body.number(1), kind = head & 15U, version = head >> 4U;
  const std::uint64_t bits = body.number(3), size = body.number(4);
  if (version < 1 || version > 3 || (kind != 0 && kind != 1 && kind != 3)) refuse_type();
  if (kind == 3) {
    if (size == 0 || size > 65536) refuse_type();
    return size;
  }
  if (size == 0 || size > 16) refuse_type();
  const std::uint64_t offset = body.number(2), precision = body.number(2);
  if (precision == 0 || offset + precision > 8 * size) refuse_type();
  if (kind == 1) {
    const std::uint64_t exponent = body.number(1), exponent_bits = body.number(1);
    const std::uint64_t mantissa = body.number(1), mantissa_bits = body.number(1);
    body.skip(4);
    const std::uint64_t sign = bits >> 8U & 255U;
    if (exponent_bits == 0 || mantissa_bits == 0 || exponent + exponent_bits > precision ||
        mantissa + mantissa_bits > precision || sign >= precision) {
      refuse_type();
    }
  }
  return size;
}

void attribute(Bytes& body) {
  body.expect(3, 1, "an attribute is of another version");
  body.expect(0, 1, "an attribute is shared");
  const std::uint64_t name_bytes = body.number(2), type_bytes = body.number(2);
  const std::uint64_t space_bytes = body.number(2);
  body.skip(1);
  std::string name = body.text(name_bytes);
  if (name.size() < 2 || name.find('\0') != name.size() - 1) damaged("an attribute has no name");
  name.pop_back();
  Bytes type = body.part(type_bytes), space = body.part(space_bytes);
  std::uint64_t bytes = 0;
  try {
    bytes = datatype(type);
  } catch (const Fault& fault) {
    if (!fault.known) throw;
    throw Fault{
        fmt::format("attribute {} {}", config::one_line(config::shortened(name, 80)), fault.text),
        true};
  }
  for (const std::uint64_t extent : dataspace(space)) bytes = checked_product(bytes, extent);
  body.skip(bytes);
}

void link_info(Bytes& body, Object& found) {
  body.expect(0, 1, "a list of links is of another version");
  const std::uint64_t flags = body.number(1);
  if ((flags & ~std::uint64_t{1}) != 0) damaged("links are kept in order of creation");
  if (flags == 1) body.skip(8);
  found.heap = body.number(8);
  found.names = body.number(8);
  if ((found.heap == nowhere) != (found.names == nowhere)) damaged("a list of links has no names");
}

void layout(Bytes& body, std::uint64_t file_bytes, Object& found) {
  const std::uint64_t version = body.number(1), kind = body.number(1);
  if (version != 3 && version != 4) damaged("a layout is of another version");
  if (kind == 0) return body.skip(body.number(2));
  if (kind == 1) {
    const std::uint64_t at = body.number(8), size = body.number(8);
    if (at != nowhere && (at > file_bytes || size > file_bytes - at)) {
      throw Fault{"claims more than the file holds; restore the file or make it again", true};
    }
    return;
  }
  if (kind != 2 || version != 4) refuse_storage();
  const std::uint64_t flags = body.number(1), rank = body.number(1), width = body.number(1);
  if (flags > 3 || rank < 2 || rank > 33 || width < 1 || width > 8) refuse_storage();
  for (std::uint64_t d = 0; d < rank; ++d) {
    found.chunk.push_back(body.number(width));
    if (found.chunk.back() == 0) damaged("a chunk is empty");
  }
  found.chunk.pop_back();  // bytes of an element
  const std::uint64_t index = body.number(1);
  if (index == 1) {  // a single chunk
    if ((flags & 2U) != 0) body.skip(12);
    body.skip(8);
  } else if (index == 3) {
    const std::uint64_t page_bits = body.number(1);
    if (page_bits == 0 || page_bits > 20) damaged("an index of chunks is none that can be");
    found.chunk_index = body.number(8);
  } else {
    refuse_storage();
  }
}

void filters(Bytes& body, Object& found) {
  body.expect(2, 1, "a list of filters is of another version");
  const std::uint64_t count = body.number(1);
  if (count == 0 || count > 32) damaged("a list of filters is none that can be");
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t filter = body.number(2);
    const std::uint64_t name = filter >= 256 ? body.number(2) : 0;
    body.skip(2);
    const std::uint64_t values = body.number(2);
    body.skip(name + 4 * values);
  }
  found.filtered = true;
}

}  // namespace

void take_link(Bytes& body, Object& found) {
  body.expect(1, 1, "a link is of another version");
  const std::uint64_t flags = body.number(1);
  if (flags > 0x1F) damaged("a link is none that can be");
  const std::uint64_t kind = (flags & 8U) != 0 ? body.number(1) : 0;
  body.skip(((flags & 4U) != 0 ? 8 : 0) + ((flags & 16U) != 0 ? 1 : 0));
  const std::uint64_t length = body.number(std::size_t{1} << (flags & 3U));
  if (length == 0 || length > 1024) damaged("a link has no name that can be");
  const std::string name = body.text(length);
  if (name.find('\0') != name.npos || name.find('/') != name.npos) {
    damaged("a link has no name that can be");
  }
  if (kind == 0) {
    found.links.emplace_back(name, body.number(8));
  } else {  // soft, external: refused later by name, and never followed
    const std::uint64_t target = body.number(2);
    if (target == 0) damaged("a link leads to nothing");
    body.skip(target);
  }
}

void take_message(std::uint64_t type, Bytes& body, std::uint64_t file_bytes, Object& found) {
  switch (type) {
    case 0x00:  // nothing
      return;
    case 0x01:
      found.extents = dataspace(body);
      return;
    case 0x02:
      return link_info(body, found);
    case 0x03:
      datatype(body);
      return;
    case 0x05:
      body.expect(3, 1, "a fill value is of another version");
      if ((body.number(1) & 0x20U) != 0) body.skip(body.number(4));
      return;
    case 0x06:
      return take_link(body, found);
    case 0x07:
      refuse_storage();  // outside of the file
    case 0x08:
      return layout(body, file_bytes, found);
    case 0x0A: {
      body.expect(0, 1, "a group is of another version");
      const std::uint64_t flags = body.number(1);
      body.skip(((flags & 1U) != 0 ? 4 : 0) + ((flags & 2U) != 0 ? 4 : 0));
      return;
    }
    case 0x0B:
      return filters(body, found);
    case 0x0C:
      return attribute(body);
    case 0x15: {
      body.expect(0, 1, "attributes are of another version");
      if ((body.number(1) & 1U) != 0) body.skip(2);
      if (body.number(8) != nowhere) damaged("it has more attributes than this program writes");
      return;
    }
    case 0x16:
      body.expect(0, 1, "a count of links is of another version");
      body.skip(4);
      return;
    default:
      damaged(fmt::format("it holds what this program does not write (message {})", type));
  }
}

}  // namespace trireme::data::hdf5
