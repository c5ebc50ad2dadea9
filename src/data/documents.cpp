#include "documents.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::size_t most_json_bytes = std::size_t{64} << 20;

}  // namespace

DocumentKind DocumentKind::parse(const std::string& text, const std::string& prompt) {
  const bool json = text.starts_with("jsonl:") && text.size() > 6;
  if (!prompt.empty() && !json) {
    throw Error("--prompt {}: is a field of JSON Lines; use it with --documents jsonl:FIELD",
                prompt);
  }
  if (!prompt.empty() && prompt == text.substr(6)) {
    throw Error("--prompt {}: is also the field of --documents; name another one", prompt);
  }
  if (text == "file") return {Unit::file, {}, {}};
  if (text == "line") return {Unit::line, {}, {}};
  if (json) return {Unit::json, text.substr(6), prompt};
  throw Error("--documents {}: must be file, line or jsonl:FIELD; for example jsonl:text", text);
}

std::int64_t total_bytes(const std::vector<std::filesystem::path>& inputs) {
  if (inputs.empty()) throw Error("--input: names no file; name at least one text file");
  std::int64_t total = 0;
  for (const std::filesystem::path& path : inputs) {
    const InputFile file(path);
    if (file.size() == 0) throw Error("{}: is empty; name a file that holds text", path.string());
    total += file.size();
  }
  return total;
}

std::int64_t estimated_text_bytes(const std::vector<std::filesystem::path>& inputs) {
  constexpr std::int64_t usual_ratio = 4;
  std::int64_t total = 0;
  for (const std::filesystem::path& path : inputs) {
    total += InputFile(path).size() * (is_compressed(path) ? usual_ratio : 1);
  }
  return total;
}

std::vector<std::vector<TextRange>> parts_of(const std::vector<std::filesystem::path>& inputs,
                                             DocumentKind::Unit unit, std::int64_t bytes) {
  std::vector<std::vector<TextRange>> parts;
  std::int64_t room = 0;  // of the last part
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    const std::filesystem::path& file = inputs[input];
    const std::int64_t size = estimated_text_bytes({file});
    const bool whole = unit == DocumentKind::Unit::file || is_compressed(file);
    for (std::int64_t begin = 0; begin < size;) {
      if (room <= 0) {
        parts.emplace_back();
        room = bytes;
      }
      TextRange range{.file = file, .begin = begin, .input = input};
      if (!whole && begin + room < size) range.end = begin + room;
      const std::int64_t end = std::min(range.end, size);
      room -= end - begin;
      begin = end;
      parts.back().push_back(std::move(range));
    }
  }
  return parts;
}

DocumentStream::DocumentStream(std::vector<TextRange> inputs, DocumentKind kind)
    : inputs_(std::move(inputs)), kind_(std::move(kind)), buffer_(piece_bytes) {}

DocumentStream::DocumentStream(const std::vector<std::filesystem::path>& inputs, DocumentKind kind)
    : DocumentStream(std::vector<TextRange>(), std::move(kind)) {
  for (const std::filesystem::path& file : inputs) inputs_.push_back({file});
}

/// Makes `unread_` non-empty from the current file; false at the end of the range. `inside`: of a
/// document, which the range has to its end.
bool DocumentStream::refill(bool inside) {
  if (!inside && next_input_ > 0 && position() >= inputs_[next_input_ - 1].end) {
    unread_ = {};
    file_ended_ = true;
    return false;
  }
  if (!unread_.empty()) return true;
  if (file_ended_) return false;
  const std::size_t got = file_->read(buffer_.data(), buffer_.size());
  text_read_ += static_cast<std::int64_t>(got);
  file_ended_ = got < buffer_.size();
  unread_ = {buffer_.data(), got};
  return got > 0;
}

void DocumentStream::open_next() {
  const TextRange& range = inputs_[next_input_++];
  bytes_before_ = bytes_read();
  file_.reset();
  // The first document begins behind the first line break from the byte before the range on.
  begin_ = std::max<std::int64_t>(0, range.begin - 1);
  text_read_ = 0;
  file_ = open_text(range.file, begin_);
  file_ended_ = false;
  bool begun = range.begin == 0;
  while (!begun && refill(false)) {  // not beyond the end of the range: none begins there
    const std::size_t newline = unread_.find('\n');
    begun = newline != std::string_view::npos;
    unread_.remove_prefix(begun ? newline + 1 : unread_.size());
  }
  line_ = 0;
  first_line_ = position();
}

bool DocumentStream::next(Piece& piece) {
  for (;;) {
    const bool more = kind_.unit == DocumentKind::Unit::json ? from_json(piece) : refill(inside_);
    if (more) {
      if (kind_.unit == DocumentKind::Unit::file) piece = from_file();
      if (kind_.unit == DocumentKind::Unit::line) piece = from_line();
      return true;
    }
    if (inside_) {  // the end of a file ends its last document
      inside_ = false;
      piece = {{}, true};
      return true;
    }
    if (next_input_ == inputs_.size()) return false;
    open_next();
  }
}

std::string DocumentStream::where() const {
  const InputFile file(inputs_[next_input_ - 1].file);
  std::int64_t before = 0;  // lines before the range
  std::vector<char> text(piece_bytes);
  for (std::int64_t at = 0; at < first_line_;) {
    const auto wanted = std::min(static_cast<std::int64_t>(text.size()), first_line_ - at);
    const std::size_t got = file.read_at(text.data(), static_cast<std::size_t>(wanted), at);
    if (got == 0) break;
    before += std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(got), '\n');
    at += static_cast<std::int64_t>(got);
  }
  return fmt::format("{}:{}", file.path().string(), before + line_);
}

DocumentStream::Piece DocumentStream::from_file() {
  inside_ = true;
  return {std::exchange(unread_, {}), false};
}

DocumentStream::Piece DocumentStream::from_line() {
  const std::size_t newline = unread_.find('\n');
  inside_ = newline == std::string_view::npos;
  if (inside_) return {std::exchange(unread_, {}), false};
  const std::string_view line = unread_.substr(0, newline);
  unread_.remove_prefix(newline + 1);
  return {line, true};
}

bool DocumentStream::from_json(Piece& piece) {
  while (!json_ready_) {
    if (!read_json_line()) return false;
    if (json_line_.find_first_not_of(" \t\r") == std::string::npos) continue;
    parse_json_line();
    json_done_ = 0;
    json_ready_ = true;
  }
  const bool is_prompt = json_done_ < prompt_bytes_;
  const std::size_t end = is_prompt ? prompt_bytes_ : json_text_.size();
  const std::size_t part = std::min(piece_bytes, end - json_done_);
  piece.text = std::string_view(json_text_).substr(json_done_, part);
  json_done_ += part;
  piece.is_prompt = is_prompt;
  piece.ends_prompt = is_prompt && json_done_ == prompt_bytes_;
  piece.ends_document = !is_prompt && json_done_ == json_text_.size();
  json_ready_ = !piece.ends_document;
  return true;
}

bool DocumentStream::read_json_line() {
  json_line_.clear();
  bool any = false;
  while (refill(any)) {
    if (!any) ++line_;
    any = true;
    const std::size_t newline = unread_.find('\n');
    json_line_ += unread_.substr(0, newline);
    if (json_line_.size() > most_json_bytes) {
      throw Error("{}: the line is longer than {} MiB; split it into several documents", where(),
                  most_json_bytes >> 20);
    }
    if (newline != std::string_view::npos) {
      unread_.remove_prefix(newline + 1);
      return true;
    }
    unread_ = {};
  }
  return any;
}

std::string& DocumentStream::field_of(nlohmann::json& object, const std::string& name) const {
  const auto found = object.find(name);
  if (found == object.end()) {
    throw Error("{}: has no field \"{}\"; correct the line or name another field", where(), name);
  }
  if (!found->is_string()) {
    throw Error("{}: field \"{}\" is not text; correct the line or name another field", where(),
                name);
  }
  return found->get_ref<std::string&>();
}

void DocumentStream::parse_json_line() {
  nlohmann::json object = nlohmann::json::parse(json_line_, nullptr, false);
  if (object.is_discarded()) throw Error("{}: is not valid JSON; correct the line", where());
  if (!object.is_object()) throw Error("{}: is not a JSON object; correct the line", where());
  json_text_ = kind_.prompt.empty() ? "" : field_of(object, kind_.prompt);
  prompt_bytes_ = json_text_.size();
  json_text_ += field_of(object, kind_.field);
}

}  // namespace trireme::data
