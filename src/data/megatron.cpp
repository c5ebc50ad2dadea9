#include <array>
#include <cstring>
#include <string_view>

#include "trireme/core/error.hpp"

#include "token_files.hpp"

namespace trireme::data {
namespace {

constexpr std::string_view magic{"MMIDIDX\0\0", 9};
constexpr std::int64_t header_bytes = 9 + 8 + 1 + 8 + 8;
constexpr const char* remedy = "restore the file or write it again";

TokenType type_of(std::uint8_t code, const std::string& where) {
  constexpr std::pair<std::uint8_t, TokenType> types[] = {
      {1, {1, false}}, {3, {2, true}}, {4, {4, true}}, {5, {8, true}}, {8, {2, false}}};
  for (const auto& [known, type] : types) {
    if (known == code) return type;
  }
  if (code == 6 || code == 7) throw Error("{}: holds real numbers, not tokens; {}", where, remedy);
  throw Error("{}: element type {} is none of 1, 3, 4, 5 and 8; {}", where, code, remedy);
}

template <class T>
T take(const char*& from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return value;
}

}  // namespace

bool MegatronIndex::recognizes(const std::filesystem::path& path) {
  std::array<char, magic.size()> begin{};
  const std::size_t bytes = InputFile(path).read(begin.data(), begin.size());
  return std::string_view(begin.data(), bytes) == magic;
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
  if (data_bytes % type_.bytes != 0) {
    throw Error("{}: {} bytes of tokens are no multiple of {}, the size of one; {}", where,
                data_bytes, type_.bytes, remedy);
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
    if (length < 0 || offset != tokens_ * type_.bytes || length > tokens() - tokens_) {
      throw Error(
          "{}: sequence {}: {} tokens at byte {}; the sequences before it end at byte {} of {}; {}",
          path_.string(), sequence_, length, offset, tokens_ * type_.bytes, data_bytes_, remedy);
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
