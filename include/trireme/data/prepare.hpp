// Text files, or token files of other trainers, to a dataset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::comm {
class Communicator;
}

namespace trireme::data {

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;       // must not exist, or be empty
  std::string name;                   // default: the output folder's name
  std::string input_format = "auto";  // auto | text | llmc | nanogpt | megatron
  // bytes (the default for text) | characters | sentencepiece:VOCAB | sentencepiece:FILE |
  // huggingface:FILE. For token files one of the last two, or "" and `vocabulary`.
  std::string tokenizer;
  std::int64_t vocabulary = 0;  // of token files without a tokenizer
  // Id or text of the token; none; "": the tokenizer's usual one, but none for token files without
  // a tokenizer.json, of which each is then one document (Megatron's hold their documents).
  std::string end_of_document;
  std::string documents = "file";  // text: file | line | jsonl:FIELD
  std::string prompt;  // jsonl: a field that begins documents, and that is not to be learned
  double valid_fraction = 0.1;            // the last documents; a single document is cut at a token
  std::int64_t shard_tokens = 1LL << 27;  // tokens in one shard
  std::int64_t sample_sentences = 1'000'000;  // for training SentencePiece
  std::int64_t part_bytes = 1LL << 24;        // of text that is encoded at once, about
};

/// What prepare() made.
struct Prepared {
  Manifest manifest;         // on every rank
  std::int64_t bytes = 0;    // of the inputs that this rank has encoded
  std::int64_t learned = 0;  // tokens of the training split with a loss, on every rank
};
/// Streams the inputs (memory does not grow with them), writes `output.tmp-PID`, then renames it.
/// On any failure nothing is left behind; what a killed process leaves, the next one with the same
/// inputs and options takes over. All ranks of `everyone`, or this process alone where it is null,
/// encode parts of the inputs and write shards; the files are the same for any number. Collective;
/// needs a file system that all ranks see. `progress` receives (bytes done, bytes in all). Throws
/// Error.
Prepared prepare(const PrepareOptions& options,
                 const std::function<void(std::int64_t, std::int64_t)>& progress,
                 comm::Communicator* everyone = nullptr);

}  // namespace trireme::data
