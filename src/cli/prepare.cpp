// trireme prepare
#include "trireme/data/prepare.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/core/text.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/report/progress.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* prepare_examples = R"(Examples:
  trireme prepare --input book.txt --output dataset
  trireme prepare --input *.txt --output dataset --tokenizer sentencepiece:8000
  trireme prepare --input posts.jsonl --output dataset --documents jsonl:text
  trireme prepare --input chats.jsonl --output dataset --documents jsonl:answer \
                  --prompt question
  trireme prepare --input a.txt --output dataset --tokenizer sentencepiece:my.model
  trireme prepare --input a.txt --output dataset --tokenizer huggingface:gpt2
  trireme prepare --input fineweb_*.bin --output data --tokenizer huggingface:gpt2
  trireme prepare --input text_document.bin --output dataset --vocabulary 50257
  trireme prepare --input train.bin --output dataset --input-format nanogpt \
                  --vocabulary 50257 --end-of-document 50256)";

std::string summary(const data::PrepareOptions& options, const data::Manifest& manifest) {
  const auto sum = [](const std::vector<data::ShardInfo>& shards,
                      std::int64_t data::ShardInfo::*what) {
    std::int64_t all = 0;
    for (const data::ShardInfo& shard : shards) all += shard.*what;
    return all;
  };
  const auto part = [&](const char* name, const std::vector<data::ShardInfo>& shards) {
    const std::int64_t documents = sum(shards, &data::ShardInfo::documents);
    return fmt::format("{}  {} tokens, {} document{}, {}\n", name,
                       grouped(sum(shards, &data::ShardInfo::tokens)), grouped(documents),
                       documents == 1 ? "" : "s", counted(std::ssize(shards), "shard"));
  };
  return fmt::format("{}: dataset {}, tokenizer {}, vocabulary {}\n", options.output.string(),
                     manifest.name, manifest.tokenizer, grouped(manifest.vocabulary)) +
         part("train", manifest.train) + part("valid", manifest.valid);
}

/// With prompts: how much of the training split is learned.
std::string learned_line(const data::Prepared& prepared) {
  if (!prepared.manifest.loss_weights) return {};
  if (prepared.learned > 0) return fmt::format("learned  {} tokens\n", grouped(prepared.learned));
  return "note: no token is learned: every training document is a prompt alone\n";
}

int run_prepare(comm::Session& session, const data::PrepareOptions& options) {
  device::MemoryLedger ledger;
  const auto everyone = comm::make_mpi_communicator(session.world(), ledger);
  std::optional<report::ProgressLine> line;
  if (session.rank() == 0) line.emplace(stderr);
  report::PhaseProgress progress(line ? &*line : nullptr, "prepare", {});
  const auto begin = std::chrono::steady_clock::now();
  const data::Prepared prepared = data::prepare(
      options,
      [&](std::int64_t done, std::int64_t total) {
        const double share =
            total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 1;
        progress.show(share, fmt::format("{} of {}", bytes_text(done), bytes_text(total)));
      },
      everyone.get());
  if (line) line->finish();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::int64_t bytes = everyone->all_reduce(prepared.bytes, comm::Reduction::sum);
  const double speed = static_cast<double>(bytes) / seconds.count() / 1e6;
  print_on_root(session,
                summary(options, prepared.manifest) + learned_line(prepared) +
                    fmt::format("time   {:.1f} s, {} read, {:.1f} MB/s, {:.1f} a rank\n",
                                seconds.count(), bytes_text(bytes), speed, speed / session.size()));
  return 0;
}

}  // namespace

void add_prepare(CLI::App& app, Command& command) {
  CLI::App* prepare = app.add_subcommand("prepare", "Text or token files to a dataset");
  auto options = std::make_shared<data::PrepareOptions>();
  prepare->add_option("--input", options->inputs, "files of text, or of tokens")
      ->required()
      ->type_name("FILE");
  prepare->add_option("--output", options->output, "folder to make")->required()->type_name("DIR");
  prepare->add_option("--name", options->name, "default: the folder's name")->type_name("TEXT");
  add_value(
      *prepare, "--input-format", options->input_format,
      "text, llmc, nanogpt, megatron, or auto:\nllm.c and Megatron by their headers, else text",
      config::one_of({"auto", "text", "llmc", "nanogpt", "megatron"}));
  prepare
      ->add_option("--tokenizer", options->tokenizer,
                   "bytes (text's default), characters,\nsentencepiece:VOCAB (train one),\n"
                   "sentencepiece:FILE or huggingface:FILE\n(load a model or a tokenizer.json)")
      ->type_name("TEXT");
  add_value(*prepare, "--vocabulary", options->vocabulary, "of token files without a tokenizer",
            config::at_least(0));
  prepare
      ->add_option("--end-of-document", options->end_of_document,
                   "text or id of the token that ends documents, or\nnone; default: the "
                   "tokenizer's usual one; for token\nfiles without a tokenizer.json: none")
      ->type_name("TOKEN");
  add_value(*prepare, "--documents", options->documents,
            "a document is: file, line or jsonl:FIELD");
  prepare
      ->add_option("--prompt", options->prompt,
                   "with jsonl: a field whose text begins each document,\nand is not learned: its "
                   "tokens have no loss")
      ->type_name("FIELD");
  add_value(*prepare, "--valid-fraction", options->valid_fraction, "share kept for validation",
            config::in_range(0.0, 1.0));
  add_value(*prepare, "--shard-tokens", options->shard_tokens, "tokens in a shard",
            config::at_least(1));
  add_value(*prepare, "--sample-sentences", options->sample_sentences,
            "lines SentencePiece is trained on", config::at_least(1));
  prepare->footer(prepare_examples);
  prepare->callback([options, &command] {
    command.run = [options](comm::Session& session, const std::vector<Setting>&) {
      return run_prepare(session, *options);
    };
  });
}

}  // namespace trireme::cli
