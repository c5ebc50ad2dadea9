// How requests and replies of remote calls become bytes. Ranks of one run have one binary, hence
// one representation: trivially copyable types are sent as they are in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::comm::rpc {

/// Specialize it for types of your own: encode(value) gives bytes, decode(bytes) the value or an
/// Error where they cannot be one.
template <class Value>
struct Encoding {
  static_assert(std::is_trivially_copyable_v<Value>,
                "specialize rpc::Encoding for a type that is not trivially copyable");
  static std::vector<std::byte> encode(const Value& value) {
    std::vector<std::byte> bytes(sizeof(Value));
    std::memcpy(bytes.data(), &value, sizeof(Value));
    return bytes;
  }
  static Value decode(std::span<const std::byte> bytes) {
    if (bytes.size() != sizeof(Value)) {
      throw Error("{} bytes where the type has {}: both sides must name the same types",
                  bytes.size(), sizeof(Value));
    }
    Value value;
    std::memcpy(&value, bytes.data(), sizeof(Value));
    return value;
  }
};

namespace detail {
/// Of strings and vectors: their elements one after another.
template <class Sequence>
struct SequenceEncoding {
  using Element = typename Sequence::value_type;
  static_assert(std::is_trivially_copyable_v<Element>);
  static std::vector<std::byte> encode(const Sequence& value) {
    std::vector<std::byte> bytes(value.size() * sizeof(Element));
    if (!bytes.empty()) std::memcpy(bytes.data(), value.data(), bytes.size());
    return bytes;
  }
  static Sequence decode(std::span<const std::byte> bytes) {
    if (bytes.size() % sizeof(Element) != 0) {
      throw Error("{} bytes where elements have {}: both sides must name the same types",
                  bytes.size(), sizeof(Element));
    }
    Sequence value(bytes.size() / sizeof(Element), Element{});
    if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
    return value;
  }
};
}  // namespace detail

template <>
struct Encoding<std::string> : detail::SequenceEncoding<std::string> {};
template <class Element>
struct Encoding<std::vector<Element>> : detail::SequenceEncoding<std::vector<Element>> {};

}  // namespace trireme::comm::rpc
