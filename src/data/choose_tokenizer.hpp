// The tokenizer that prepare's options ask for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "trireme/data/prepare.hpp"
#include "trireme/data/tokenizer.hpp"

#include "documents.hpp"

namespace trireme::data {

/// Passes over the input and the whole of the work, for the progress callback.
class Progress {
 public:
  using Report = std::function<void(std::int64_t, std::int64_t)>;
  Progress(const Report& report, std::int64_t bytes, int passes)
      : report_(report), bytes_(bytes), passes_(passes) {}
  void operator()(std::int64_t bytes_read) const {
    if (report_) report_(done_ + bytes_read, bytes_ * passes_);
  }
  void end_pass() {
    done_ += bytes_;
    operator()(0);
  }

 private:
  const Report& report_;
  std::int64_t bytes_, done_ = 0;
  int passes_;
};

struct Chosen {
  std::unique_ptr<Tokenizer> tokenizer;  // none for tokens that come without one
  std::int64_t vocabulary = 0;
  std::optional<std::int64_t> end_of_document;
  nlohmann::json details = nlohmann::json::object();
};

/// Characters are counted, and SentencePiece models trained, before anything is encoded.
bool needs_first_pass(const std::string& tokenizer);

/// For text, which has `ends` of documents to mark or has not. A model is kept in `folder`. Throws
/// Error naming the option.
Chosen choose_tokenizer(const PrepareOptions& options, bool ends, DocumentStream documents,
                        std::int64_t bytes, const std::filesystem::path& folder,
                        const Progress& progress);

/// For tokens: a tokenizer that is a file, or a vocabulary alone.
Chosen choose_for_tokens(const PrepareOptions& options, const std::filesystem::path& folder);

}  // namespace trireme::data
