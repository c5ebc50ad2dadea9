#include "documents.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "trireme/core/error.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::size_t most_json_bytes = std::size_t{64} << 20;

}  // namespace

DocumentKind DocumentKind::parse(const std::string& text) {
  if (text == "file") return {Unit::file, {}};
  if (text == "line") return {Unit::line, {}};
  if (text.starts_with("jsonl:") && text.size() > 6) return {Unit::json, text.substr(6)};
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

DocumentStream::DocumentStream(std::vector<std::filesystem::path> inputs, DocumentKind kind)
    : inputs_(std::move(inputs)), kind_(std::move(kind)), buffer_(piece_bytes) {}

/// Makes `unread_` non-empty from the current file; false at its end.
bool DocumentStream::refill() {
  if (!unread_.empty()) return true;
  if (file_ended_) return false;
  const std::size_t got = file_->read(buffer_.data(), buffer_.size());
  file_ended_ = got < buffer_.size();
  unread_ = {buffer_.data(), got};
  bytes_read_ += static_cast<std::int64_t>(got);
  return got > 0;
}

bool DocumentStream::next(Piece& piece) {
  for (;;) {
    const bool more = kind_.unit == DocumentKind::Unit::json ? from_json(piece) : refill();
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
    file_ = std::make_unique<InputFile>(inputs_[next_input_++]);
    file_ended_ = false;
    line_ = 0;
  }
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
    json_text_ = parse_json_line();
    json_done_ = 0;
    json_ready_ = true;
  }
  const std::size_t part = std::min(piece_bytes, json_text_.size() - json_done_);
  piece.text = std::string_view(json_text_).substr(json_done_, part);
  json_done_ += part;
  piece.ends_document = json_done_ == json_text_.size();
  json_ready_ = !piece.ends_document;
  return true;
}

bool DocumentStream::read_json_line() {
  json_line_.clear();
  bool any = false;
  while (refill()) {
    if (!any) ++line_;
    any = true;
    const std::size_t newline = unread_.find('\n');
    json_line_ += unread_.substr(0, newline);
    if (json_line_.size() > most_json_bytes) {
      throw Error("{}:{}: the line is longer than {} MiB; split it into several documents",
                  inputs_[next_input_ - 1].string(), line_, most_json_bytes >> 20);
    }
    if (newline != std::string_view::npos) {
      unread_.remove_prefix(newline + 1);
      return true;
    }
    unread_ = {};
  }
  return any;
}

std::string DocumentStream::parse_json_line() {
  const std::string where = fmt::format("{}:{}", inputs_[next_input_ - 1].string(), line_);
  nlohmann::json object = nlohmann::json::parse(json_line_, nullptr, false);
  if (object.is_discarded()) throw Error("{}: is not valid JSON; correct the line", where);
  if (!object.is_object()) throw Error("{}: is not a JSON object; correct the line", where);
  const auto found = object.find(kind_.field);
  if (found == object.end()) {
    throw Error("{}: has no field \"{}\"; correct the line or name another field", where,
                kind_.field);
  }
  if (!found->is_string()) {
    throw Error("{}: field \"{}\" is not text; correct the line or name another field", where,
                kind_.field);
  }
  return std::move(found->get_ref<std::string&>());
}

}  // namespace trireme::data
