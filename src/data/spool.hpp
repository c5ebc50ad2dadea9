// Where prepare keeps tokens and document ends until their numbers, and so the split, are known:
// two plain files. Memory does not grow with the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "trireme/core/files.hpp"

namespace trireme::data {

class Spool {
 public:
  Spool(const std::filesystem::path& folder, std::size_t element_bytes);
  void append(std::span<const std::int32_t> tokens);
  void end_document();  // at the present number of tokens
  void finish();
  void remove();
  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  std::size_t element_bytes() const { return element_bytes_; }
  const std::filesystem::path& tokens_file() const { return tokens_file_; }
  const std::filesystem::path& ends_file() const { return ends_file_; }

 private:
  std::size_t element_bytes_;
  std::filesystem::path tokens_file_, ends_file_;
  OutputFile tokens_out_, ends_out_;
  std::int64_t tokens_ = 0, documents_ = 0;
};

/// Reads document ends in order; the largest number there is behind the last.
class EndReader {
 public:
  explicit EndReader(const std::filesystem::path& file) : file_(file) {}
  std::int64_t next();

 private:
  InputFile file_;
  std::vector<std::int64_t> buffer_;
  std::size_t at_ = 0;
};

/// The number of tokens of the training split. One document is cut at ⌊(1 − fraction)·tokens⌋; of
/// several, the boundary nearest to that is taken which leaves a document on both sides.
std::int64_t training_tokens(const Spool& spool, double valid_fraction);

}  // namespace trireme::data
