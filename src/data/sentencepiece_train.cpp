// Training SentencePiece models on a stream of documents.
#include <algorithm>
#include <charconv>
#include <exception>
#include <mutex>
#include <unordered_map>

#include <sentencepiece_trainer.h>

#include "trireme/core/error.hpp"

#include "tokenizers.hpp"

namespace trireme::data {
namespace {

// The library skips sentences of more than 4192 bytes; ours are cut at a space before that.
constexpr std::size_t longest_sentence = 4000;
// The library keeps its sample in memory, several times over in places; its time grows faster than
// the number of different words.
constexpr std::int64_t most_sample_bytes = std::int64_t{32} << 20;

/// Lines of the documents. Of a text larger than the sample may be, every n-th.
class Sentences : public sentencepiece::SentenceIterator {
 public:
  Sentences(DocumentStream& documents, std::int64_t input_bytes, const ProgressReport& progress)
      : documents_(documents),
        progress_(progress),
        share_(std::min(
            1.0, static_cast<double>(most_sample_bytes) / static_cast<double>(input_bytes))) {
    advance();
  }

  bool done() const override { return done_; }
  void Next() override { advance(); }  // NOLINT(readability-identifier-naming): the library's name
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }
  /// An exception must not pass through the library.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void advance() {
    try {
      do {
        done_ = !read_sentence();
        if (done_) return;
        turn_ += share_;
      } while (sentence_.empty() || turn_ < 1);
      turn_ -= 1;
    } catch (...) {
      error_ = std::current_exception();
      done_ = true;
    }
  }

  /// The next line, or the next stretch of a long one; false after the last.
  bool read_sentence() {
    while (!complete()) {
      DocumentStream::Piece piece;
      if (!documents_.next(piece)) {
        if (at_ == pending_.size()) return false;
        take(pending_.size() - at_, 0);
        return true;
      }
      pending_.erase(0, at_);
      at_ = 0;
      pending_ += piece.text;
      if (piece.ends_document) pending_ += '\n';
      progress_(documents_.bytes_read());
    }
    const std::string_view rest = std::string_view(pending_).substr(at_, longest_sentence);
    const std::size_t newline = rest.find('\n');
    if (newline != std::string_view::npos) {
      take(newline, 1);
      return true;
    }
    const std::size_t space = rest.rfind(' ');
    take(space == std::string_view::npos || space == 0 ? rest.size() : space, 0);
    return true;
  }

  bool complete() const {
    return pending_.size() - at_ >= longest_sentence ||
           pending_.find('\n', at_) != std::string::npos;
  }

  /// Texts that the library would misread or refuse teach it nothing: they become empty.
  void take(std::size_t length, std::size_t skip) {
    sentence_.assign(pending_, at_, length);
    at_ += length + skip;
    for (std::size_t i = 0; i < sentence_.size();) {
      const std::size_t valid =
          sentence_[i] == '\0' ? 0 : utf8_length(std::string_view(sentence_).substr(i, 4));
      if (valid == 0) {
        sentence_.clear();
        return;
      }
      i += valid;
    }
  }

  DocumentStream& documents_;
  const ProgressReport& progress_;
  double share_;
  double turn_ = 0;
  std::string pending_, sentence_;
  std::size_t at_ = 0;
  bool done_ = false;
  std::exception_ptr error_;
};

/// The number behind `mark` in one of the library's messages, or 0.
std::int64_t number_after(std::string_view message, std::string_view mark) {
  const std::size_t at = message.find(mark);
  std::int64_t number = 0;
  if (at != std::string_view::npos) {
    const std::string_view rest = message.substr(at + mark.size());
    std::from_chars(rest.data(), rest.data() + rest.size(), number);
  }
  return number;
}

[[noreturn]] void explain(const std::string& message, std::int64_t vocabulary) {
  const std::string option = fmt::format("--tokenizer sentencepiece:{}", vocabulary);
  if (const std::int64_t most = number_after(message, "set it to a value <= "); most > 0) {
    throw Error("{}: this text yields at most {} tokens; use sentencepiece:{} or fewer", option,
                most, most);
  }
  if (message.find("smaller than required_chars") != std::string::npos) {
    const std::int64_t least = number_after(message, " vs ");
    throw Error(
        "{}: this text needs at least {} tokens for its bytes and characters; use sentencepiece:{} "
        "or more",
        option, least, least);
  }
  if (message.find("sentences_.empty()") != std::string::npos) {
    throw Error("{}: the input holds no line of UTF-8 text to learn from; use --tokenizer bytes",
                option);
  }
  throw Error("{}: SentencePiece could not learn from this text ({}); use --tokenizer bytes",
              option, message);
}

}  // namespace

void silence_sentencepiece() {
  // Only a call of the trainer sets the level; this one has nothing to train on and fails.
  static std::once_flag once;
  std::call_once(once, [] {
    sentencepiece::SentencePieceTrainer::Train(
        std::unordered_map<std::string, std::string>{{"minloglevel", "3"}})
        .IgnoreError();
  });
}

std::string train_sentencepiece(DocumentStream& documents, std::int64_t input_bytes,
                                std::int64_t vocabulary, std::int64_t sample_sentences,
                                const ProgressReport& progress) {
  silence_sentencepiece();
  Sentences sentences(documents, input_bytes, progress);
  sentences.rethrow();
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      std::unordered_map<std::string, std::string>{
          {"minloglevel", "3"},
          {"model_type", "bpe"},
          {"vocab_size", std::to_string(vocabulary)},
          {"input_sentence_size", std::to_string(sample_sentences)},
          {"shuffle_input_sentence", "true"},
          {"normalization_rule_name", "identity"},
          {"add_dummy_prefix", "false"},
          {"remove_extra_whitespaces", "false"},
          {"byte_fallback", "true"},
          {"unk_id", "0"},
          {"eos_id", "1"},  // the end-of-document token
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"num_threads", "1"}},
      &sentences, &model);
  sentences.rethrow();
  if (!status.ok()) explain(status.ToString(), vocabulary);
  return model;
}

}  // namespace trireme::data
