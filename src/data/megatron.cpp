#include "megatron.hpp"

#include <array>
#include <cstring>
#include <string_view>

#include "trireme/core/error.hpp"

namespace trireme::data {
namespace {

constexpr std::string_view magic{"MMIDIDX\0\0", 9};
constexpr std::int64_t header_bytes = 9 + 8 + 1 + 8 + 8;
constexpr const char* remedy = "restore the file or write it again";

TokenType type_of(std::uint8_t code, const std::string& where) {
  switch (code) {
    case 1:
      return TokenType::u8;
    case 3:
      return TokenType::i16;
    case 4:
      return TokenType::i32;
    case 5:
      return TokenType::i64;
    case 8:
      return TokenType::u16;
    case 6:
    case 7:
      throw Error("{}: holds real numbers, not tokens; {}", where, remedy);
    default:
      throw Error("{}: element type {} is none of 1, 3, 4, 5 and 8; {}", where, code, remedy);
  }
}

template <class T>
T take(const char*& from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return value;
}

}  // namespace

std::int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
    case TokenType::u32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  no_case_for(type);
}

MegatronIndex::MegatronIndex(const std::filesystem::path& path, std::int64_t data_bytes)
    : path_(path), data_bytes_(data_bytes) {
  const std::string where = path.string();
  const auto file = std::make_shared<InputFile>(path);
  std::array<char, header_bytes> header{};
  if (file->size() < header_bytes) {
    throw Error("{}: has {} bytes, the header alone takes {}; {}", where, file->size(),
                header_bytes, remedy);
  }
  RangeReader(file, 0, header_bytes).read(header.data(), header.size());
  if (std::string_view(header.data(), magic.size()) != magic) {
    throw Error("{}: does not begin as a Megatron index does; {}", where, remedy);
  }
  const char* at = header.data() + magic.size();
  const auto version = take<std::uint64_t>(at);
  if (version != 1) throw Error("{}: is of version {}, only 1 is read; {}", where, version, remedy);
  type_ = type_of(take<std::uint8_t>(at), where);
  element_bytes_ = bytes_of(type_);
  const auto sequences = take<std::uint64_t>(at), documents = take<std::uint64_t>(at);
  // Bounded by the file first, so that no product can pass 2^63.
  const auto size = static_cast<std::uint64_t>(file->size());
  const bool small = sequences <= size / 12 && documents <= size / 8;
  const std::uint64_t plain = small ? header_bytes + 12 * sequences + 8 * documents : 0;
  if (!small || documents < 1 || (size != plain && size != plain + sequences)) {
    throw Error("{}: has {} bytes, which do not fit {} sequences and {} document indices; {}",
                where, size, sequences, documents, remedy);
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(documents) - 1;
  if (data_bytes % element_bytes_ != 0) {
    throw Error("{}: {} bytes of tokens are no multiple of {}, the size of one; {}", where,
                data_bytes, element_bytes_, remedy);
  }
  std::int64_t begin = header_bytes;
  const auto range = [&](std::int64_t bytes) {
    auto reader = std::make_unique<RangeReader>(file, begin, bytes);
    begin += bytes;
    return reader;
  };
  lengths_ = range(4 * sequences_);
  offsets_ = range(8 * sequences_);
  begins_ = range(8 * (documents_ + 1));
  if (size != plain) modes_ = range(sequences_);
  if (const auto first = begins_->next<std::int64_t>(); first != 0) {
    throw Error("{}: its first document begins at sequence {}, not 0; {}", where, first, remedy);
  }
}

std::int64_t MegatronIndex::next_end() {
  if (document_ == documents_) {
    finish();
    return -1;
  }
  const auto end = begins_->next<std::int64_t>();
  if (end < sequence_ || end > sequences_) {
    throw Error("{}: document {} ends at sequence {}, not between {} and {}; {}", path_.string(),
                document_, end, sequence_, sequences_, remedy);
  }
  ++document_;
  for (; sequence_ < end; ++sequence_) {
    const auto length = lengths_->next<std::int32_t>();
    const auto offset = offsets_->next<std::int64_t>();
    if (length < 0 || offset != tokens_ * element_bytes_ || length > tokens() - tokens_) {
      throw Error(
          "{}: sequence {}: {} tokens at byte {}; the sequences before it end at byte {} of {}; {}",
          path_.string(), sequence_, length, offset, tokens_ * element_bytes_, data_bytes_, remedy);
    }
    if (modes_ && modes_->next<std::int8_t>() != 0) {
      throw Error("{}: sequence {} is not text; only text is read", path_.string(), sequence_);
    }
    tokens_ += length;
  }
  return tokens_;
}

void MegatronIndex::finish() {
  if (sequence_ != sequences_ || tokens_ != tokens()) {
    throw Error("{}: its documents end at sequence {} of {} and token {} of {}; {}", path_.string(),
                sequence_, sequences_, tokens_, tokens(), remedy);
  }
}

}  // namespace trireme::data
