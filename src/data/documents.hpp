// Text files as a stream of documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text_file.hpp"

namespace trireme::data {

/// What one document is: a whole file, a line without its newline, or a text field of the JSON
/// object on each line.
struct DocumentKind {
  enum class Unit : std::uint8_t { file, line, json };
  Unit unit = Unit::file;
  std::string field;
  std::string prompt;  // of json: a field whose text begins the document, or ""
  /// "file", "line" or "jsonl:FIELD"; throws Error for anything else.
  static DocumentKind parse(const std::string& text, const std::string& prompt);
};

/// The documents of a file that begin at bytes `begin` to `end` − 1 of its text.
struct TextRange {
  std::filesystem::path file;
  std::int64_t begin = 0, end = std::numeric_limits<std::int64_t>::max();
  std::size_t input = 0;  // number of the file among the inputs
};
/// The inputs as ranges, in their order, in parts that are encoded one by one: each of about
/// `bytes` of text, or of one range. What has lines is cut within files, but for compressed ones.
std::vector<std::vector<TextRange>> parts_of(const std::vector<std::filesystem::path>& inputs,
                                             DocumentKind::Unit unit, std::int64_t bytes);

/// Reads ranges from first to last in pieces of at most 1 MiB. Memory is that of a few pieces,
/// or of one line for JSON (at most 64 MiB).
class DocumentStream {
 public:
  DocumentStream(std::vector<TextRange> inputs, DocumentKind kind);
  /// Of whole files.
  DocumentStream(const std::vector<std::filesystem::path>& inputs, DocumentKind kind);
  struct Piece {
    std::string_view text;       // until the next call
    bool ends_document = false;  // an empty document is an empty piece that ends
    bool is_prompt = false;
    bool ends_prompt = false;  // what follows is no part of it
  };
  /// The next piece, or false after the last. Throws Error with file, and line for JSON.
  bool next(Piece& piece);
  /// Of the inputs, as they are on disk.
  std::int64_t bytes_read() const { return bytes_before_ + (file_ ? file_->bytes_read() : 0); }

 private:
  bool refill(bool inside);
  void open_next();
  /// The place of `unread_` in the text of the file.
  std::int64_t position() const {
    return begin_ + text_read_ - static_cast<std::int64_t>(unread_.size());
  }
  /// "FILE:LINE" of the line that was read last.
  std::string where() const;
  Piece from_file();
  Piece from_line();
  bool from_json(Piece& piece);
  bool read_json_line();
  /// Sets json_text_ and prompt_bytes_.
  void parse_json_line();
  std::string& field_of(nlohmann::json& object, const std::string& name) const;

  std::vector<TextRange> inputs_;
  DocumentKind kind_;
  std::size_t next_input_ = 0;
  std::unique_ptr<TextFile> file_;
  std::int64_t begin_ = 0, text_read_ = 0;  // where reading of the file began, and bytes since
  std::vector<char> buffer_;
  std::string_view unread_;  // in buffer_
  bool inside_ = false;      // a document has begun and not ended
  bool file_ended_ = true;
  std::int64_t line_ = 0, first_line_ = 0;  // lines of the range, and where they begin
  std::string json_line_, json_text_;
  std::size_t json_done_ = 0, prompt_bytes_ = 0;  // at the front of json_text_
  bool json_ready_ = false;
  std::int64_t bytes_before_ = 0;  // of inputs before file_
};

/// The sum of the inputs' sizes. Throws Error for one that is missing, not a regular file or empty.
std::int64_t total_bytes(const std::vector<std::filesystem::path>& inputs);
/// Of text: four times the size of compressed inputs, which is about right.
std::int64_t estimated_text_bytes(const std::vector<std::filesystem::path>& inputs);

}  // namespace trireme::data
