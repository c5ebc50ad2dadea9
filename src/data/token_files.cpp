#include "token_files.hpp"

#include <array>
#include <cstring>
#include <set>

#include "trireme/core/error.hpp"

#include "text_file.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t llmc_header_bytes = 1024;
constexpr std::size_t piece_tokens = std::size_t{1} << 17;

/// The first bytes of a file, fewer if it is shorter.
std::string beginning(const fs::path& path, std::size_t bytes) {
  InputFile file(path);
  std::string text(bytes, '\0');
  text.resize(file.read(text.data(), bytes));
  return text;
}

std::int32_t number_at(const std::string& bytes, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

/// Version and element type by llm.c's two magic numbers (dev/data/data_common.py).
struct Llmc {
  std::int32_t magic, version;
  TokenType type;
};
constexpr std::array<Llmc, 2> llmc_kinds = {{{20240520, 1, {2, false}}, {20240801, 7, {4, false}}}};

const Llmc* llmc_kind(const std::string& begin) {
  if (begin.size() < 4) return nullptr;
  for (const Llmc& kind : llmc_kinds) {
    if (number_at(begin, 0) == kind.magic) return &kind;
  }
  return nullptr;
}

fs::path with(fs::path path, const char* extension) { return path.replace_extension(extension); }

TokenInput open_llmc(const fs::path& path) {
  const InputFile file(path);
  const std::string header = beginning(path, llmc_header_bytes);
  const Llmc* kind = llmc_kind(header);
  if (kind == nullptr || header.size() < llmc_header_bytes) {
    throw Error("{}: does not begin with llm.c's header; name another --input-format",
                path.string());
  }
  const std::int32_t version = number_at(header, 1), tokens = number_at(header, 2);
  if (version != kind->version) {
    throw Error("{}: is of version {}, only {} is read; write it again", path.string(), version,
                kind->version);
  }
  TokenInput input{path, {}, llmc_header_bytes, tokens, kind->type};
  if (tokens < 0 || file.size() != llmc_header_bytes + input.bytes()) {
    throw Error("{}: has {} bytes, its header says {} tokens of {}; restore the file",
                path.string(), file.size(), tokens, kind->type.bytes);
  }
  return input;
}

TokenInput open_nanogpt(const fs::path& path) {
  const InputFile file(path);
  if (file.size() % 2 != 0) {
    throw Error("{}: has {} bytes, no whole number of uint16 tokens; restore the file",
                path.string(), file.size());
  }
  return {path, {}, 0, file.size() / 2, {}};
}

TokenInput open_megatron(const fs::path& path) {
  const fs::path tokens = with(path, ".bin"), index = with(path, ".idx");
  if (path.extension() != ".bin" && path.extension() != ".idx") {
    throw Error("{}: is neither NAME.bin nor NAME.idx of a Megatron pair; name one of them",
                path.string());
  }
  const MegatronIndex checked(index, InputFile(tokens).size());
  return {tokens, index, 0, checked.tokens(), checked.type()};
}

OpenTokens recognized(const fs::path& path) {
  if (is_compressed(path) && path.stem().extension() == ".bin") {
    throw Error("--input {}: token files are read as they are; decompress it first", path.string());
  }
  if (llmc_kind(beginning(path, 4)) != nullptr) return open_llmc;
  const bool pair = path.extension() == ".bin" && fs::exists(with(path, ".idx"));
  if (MegatronIndex::recognizes(pair ? with(path, ".idx") : path)) return open_megatron;
  if (path.extension() == ".bin") {
    throw Error(
        "--input {}: says nothing of its format; add --input-format nanogpt (bare uint16 tokens) "
        "or text",
        path.string());
  }
  return nullptr;
}

/// Tokens of one input as int32, compared with the vocabulary.
class TokenReaderOf {
 public:
  TokenReaderOf(const TokenInput& input, std::int64_t vocabulary)
      : input_(input),
        vocabulary_(vocabulary),
        reader_(std::make_shared<InputFile>(input.file), input.offset, input.bytes()) {}

  /// The next of them, or none at the end.
  const std::vector<std::int32_t>& next() {
    const auto [bytes, is_signed] = input_.type;
    const auto width = static_cast<std::size_t>(bytes);
    raw_.resize(piece_tokens * width);
    const std::size_t got = reader_.read(raw_.data(), raw_.size()) / width;
    tokens_.resize(got);
    if (bytes == 1) {
      convert<std::uint8_t>();
    } else if (bytes == 2) {
      is_signed ? convert<std::int16_t>() : convert<std::uint16_t>();
    } else if (bytes == 4) {
      is_signed ? convert<std::int32_t>() : convert<std::uint32_t>();
    } else {
      convert<std::int64_t>();
    }
    done_ += static_cast<std::int64_t>(got);
    return tokens_;
  }
  std::int64_t done() const { return done_; }

 private:
  template <class T>
  void convert() {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      T token{};
      std::memcpy(&token, raw_.data() + i * sizeof token, sizeof token);
      const auto value = static_cast<std::int64_t>(token);
      if (value < 0 || value >= vocabulary_) {
        throw Error(
            "{}: token {} is {}, outside the vocabulary of {}; name the vocabulary it was made "
            "with",
            input_.file.string(), done_ + static_cast<std::int64_t>(i), value, vocabulary_);
      }
      tokens_[i] = static_cast<std::int32_t>(value);
    }
  }

  const TokenInput& input_;
  std::int64_t vocabulary_, done_ = 0;
  RangeReader reader_;
  std::vector<std::byte> raw_;
  std::vector<std::int32_t> tokens_;
};

/// Appends, and ends documents behind `end` unless all of one so far are such tokens.
void append_flat(std::span<const std::int32_t> tokens, std::int32_t end, bool& others,
                 Spool& spool) {
  std::size_t done = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != end) {
      others = true;
      continue;
    }
    if (!others) continue;
    spool.append(tokens.subspan(done, i + 1 - done));
    spool.end_document();
    others = false;
    done = i + 1;
  }
  spool.append(tokens.subspan(done));
}

void append_indexed(std::span<const std::int32_t> tokens, std::int64_t before, MegatronIndex& index,
                    std::int64_t& end, Spool& spool) {
  const auto size = static_cast<std::int64_t>(tokens.size());
  std::int64_t done = 0;
  while (end >= 0 && end <= before + size) {
    const std::int64_t upto = end - before;
    spool.append(
        tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(upto - done)));
    spool.end_document();
    done = upto;
    end = index.next_end();
  }
  spool.append(tokens.subspan(static_cast<std::size_t>(done)));
}

}  // namespace

OpenTokens token_format(const std::string& wanted, const std::vector<fs::path>& inputs) {
  if (wanted == "text") return nullptr;
  if (wanted == "llmc") return open_llmc;
  if (wanted == "nanogpt") return open_nanogpt;
  if (wanted == "megatron") return open_megatron;
  if (wanted != "auto") {
    throw Error("--input-format {}: must be auto, text, llmc, nanogpt or megatron; use auto",
                wanted);
  }
  OpenTokens format = nullptr;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const OpenTokens found = recognized(inputs[i]);
    if (i > 0 && found != format) {
      throw Error("--input {}: is of another format than {}; prepare them one by one",
                  inputs[i].string(), inputs[0].string());
    }
    format = found;
  }
  return format;
}

std::vector<TokenInput> open_token_files(OpenTokens open, const std::vector<fs::path>& inputs) {
  if (inputs.empty()) throw Error("--input: names no file; name at least one token file");
  std::vector<TokenInput> opened;
  std::set<fs::path> pairs;
  for (const fs::path& path : inputs) {
    if (open == open_megatron && !pairs.insert(with(path, "")).second) continue;
    opened.push_back(open(path));
  }
  return opened;
}

void copy_tokens(const std::vector<TokenInput>& inputs, std::int64_t vocabulary,
                 std::optional<std::int64_t> end_of_document, Spool& spool,
                 const std::function<void(std::int64_t)>& progress) {
  std::int64_t before = 0;  // bytes of the inputs that are done
  bool others = false;      // the document that is open has a token other than its end
  for (const TokenInput& input : inputs) {
    TokenReaderOf reader(input, vocabulary);
    std::optional<MegatronIndex> index;
    std::int64_t end = -1;
    if (!input.index.empty()) {
      end = index.emplace(input.index, input.bytes()).next_end();
    }
    for (;;) {
      const std::int64_t begin = reader.done();
      const std::vector<std::int32_t>& tokens = reader.next();
      if (tokens.empty()) break;
      if (index) {
        append_indexed(tokens, begin, *index, end, spool);
      } else if (end_of_document) {
        append_flat(tokens, static_cast<std::int32_t>(*end_of_document), others, spool);
      } else {
        spool.append(tokens);
      }
      progress(before + reader.done() * input.type.bytes);
    }
    while (end >= 0) end = index->next_end();  // documents without tokens, the rest of the index
    before += input.bytes();
    if (index || !end_of_document) spool.end_document();
  }
  spool.end_document();
}

}  // namespace trireme::data
