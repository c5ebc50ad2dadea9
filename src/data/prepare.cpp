#include "trireme/data/prepare.hpp"

#include <cstdio>
#include <fstream>
#include <optional>
#include <system_error>

#include <unistd.h>

#include "trireme/comm/agree.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/tokenizer.hpp"

#include "dataset_files.hpp"
#include "prepare_plan.hpp"
#include "spool.hpp"
#include "token_files.hpp"
#include "tokenizers.hpp"
#include "work_folder.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Encodes every document into the spool. Pieces are cut where that does not change the tokens.
void encode(DocumentStream& documents, const Tokenizer& tokenizer,
            std::optional<std::int64_t> end_of_document, Spool& spool,
            const ProgressReport& progress) {
  std::string pending;
  std::vector<std::int32_t> ids;
  DocumentStream::Piece piece;
  while (documents.next(piece)) {
    pending += piece.text;
    ids.clear();
    if (piece.ends_document || piece.ends_prompt) {
      ids = tokenizer.encode(pending);
      pending.clear();
    } else {
      pending.erase(0, tokenizer.encode_stable(pending, ids));
    }
    spool.append(ids, piece.is_prompt ? 0 : 1);
    if (piece.ends_document && spool.in_document()) {
      if (end_of_document) {
        const auto end = static_cast<std::int32_t>(*end_of_document);
        spool.append({&end, 1});
      }
      spool.end_document();
    }
    progress(documents.bytes_read());
  }
}

void write_manifest(const Manifest& manifest, const fs::path& folder) {
  const std::string text = to_text(manifest);
  parse_manifest(text, (folder / manifest_file).string());  // what is written can be read
  write_file(folder / manifest_file, text);
}

/// The ranks that prepare, or this process alone.
class Ranks {
 public:
  explicit Ranks(comm::Communicator* all) : all_(all) {}
  std::size_t rank() const { return all_ == nullptr ? 0 : static_cast<std::size_t>(all_->rank()); }
  std::size_t size() const { return all_ == nullptr ? 1 : static_cast<std::size_t>(all_->size()); }
  template <class Work>
  void agree(const Work& work) {
    if (all_ == nullptr) return work();
    comm::agree(*all_, work);
  }
  /// What `work` returns on the first rank.
  template <class Work>
  std::string of_first(const Work& work) {
    return all_ == nullptr ? work() : comm::of_rank_zero(*all_, work);
  }
  std::vector<std::string> of_all(const std::string& text) {
    return all_ == nullptr ? std::vector{text} : all_->all_gather_texts(text);
  }

 private:
  comm::Communicator* all_;
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, Progress progress, Ranks ranks)
      : options_(options),
        progress_(progress ? std::move(progress) : [](std::int64_t, std::int64_t) {}),
        ranks_(ranks) {}

  Prepared run() {
    const SizeLimitGuard guard;
    plan();
    choose();
    ranks_.agree([&] {
      try {
        encode_parts();
      } catch (const Error&) {  // others need not go on
        const std::ofstream failed(path_ / failed_file);
        throw;
      }
    });
    gather();
    ranks_.agree([&] { write_shards(); });
    finish();
    return {std::move(manifest_), encoded_, learned_};
  }

 private:
  void plan() {
    const std::string plan = ranks_.of_first([&] {
      check_options(options_);
      const fs::path output = plain_output(options_);
      std::string plan = plan_of(options_, token_format(options_.input_format, options_.inputs));
      folder_.emplace(output, plan);
      if (folder_->taken_over()) remove_unfinished();
      return plan;
    });
    path_ = ranks_.of_first([&] { return folder_->path().string(); });
    parts_ = json::parse(plan).at("parts");
    ranks_.agree([&] {
      open_ = token_format(options_.input_format, options_.inputs);
      if (!fs::is_directory(path_)) {
        throw Error("{}: is not seen by rank {}; use a file system that all nodes share",
                    path_.string(), ranks_.rank());
      }
    });
  }

  /// What a process that was killed had begun to write.
  void remove_unfinished() const {
    std::vector<fs::path> left;
    std::error_code code;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_->path(), code)) {
      const std::string name = entry.path().filename().string();
      if (name.find(unfinished) != std::string::npos || name.ends_with(".h5") ||
          name.ends_with(".tmp") || name == failed_file) {
        left.push_back(entry.path());
      }
    }
    for (const fs::path& file : left) remove_file(file);
  }

  /// The tokenizer, once: a restart finds it.
  void choose() {
    const std::string text = ranks_.of_first([&] {
      const fs::path file = path_ / chosen_file;
      if (folder_->taken_over() && fs::exists(file)) return read_small_file(file, 1 << 20);
      const Chosen chosen =
          open_ == nullptr ? choose_for_text() : choose_for_tokens(options_, path_);
      const std::string kind = chosen.tokenizer ? chosen.tokenizer->kind() : "none";
      json description{{"tokenizer", kind},
                       {"tokenizer_details", chosen.details},
                       {"vocabulary", chosen.vocabulary},
                       {"end_of_document", nullptr}};
      if (chosen.end_of_document) description["end_of_document"] = *chosen.end_of_document;
      replace_file(file, description.dump());
      return description.dump();
    });
    ranks_.agree([&] {
      manifest_ = described_tokenizer(json::parse(text), path_.string());
      if (open_ == nullptr) tokenizer_ = load_tokenizer(manifest_, path_);
    });
    manifest_.name = dataset_name(options_);
    manifest_.loss_weights = !options_.prompt.empty();
    manifest_.element_bytes = manifest_.vocabulary <= (std::int64_t{1} << 16) ? 2 : 4;
  }

  Chosen choose_for_text() {
    const DocumentKind kind = DocumentKind::parse(options_.documents, options_.prompt);
    const bool ends = kind.unit != DocumentKind::Unit::file || options_.inputs.size() > 1;
    const std::int64_t bytes = total_bytes(options_.inputs);
    if (needs_first_pass(options_.tokenizer)) before_ = bytes;
    Chosen chosen = choose_tokenizer(options_, ends, DocumentStream(options_.inputs, kind),
                                     estimated_text_bytes(options_.inputs), path_,
                                     [&](auto read) { progress_(read, before_ + bytes); });
    if (before_ > 0) progress_(before_, before_ + bytes);
    return chosen;
  }

  fs::path prefix(std::size_t part) const { return path_ / fmt::format("part-{:06}", part); }

  /// Tokens and documents of a part that is whole.
  std::optional<json> done(std::size_t part) const {
    std::error_code code;
    const auto file_of = [&](const char* column) { return prefix(part) += column; };
    const auto has = [&](const char* column, const json& count, std::size_t bytes) {
      return fs::file_size(file_of(column), code) == count.get<std::uint64_t>() * bytes;
    };
    const fs::path file = file_of(".json");
    if (!fs::exists(file, code)) return std::nullopt;
    const json counts = json::parse(read_small_file(file, 4096), nullptr, false);
    const bool whole = counts.is_array() && counts.size() == 2 && counts[0].is_number_unsigned() &&
                       counts[1].is_number_unsigned() &&
                       has(".tokens", counts[0], manifest_.element_bytes) &&
                       has(".ends", counts[1], sizeof(std::int64_t)) &&
                       (!manifest_.loss_weights || has(".weights", counts[0], 1));
    return whole ? std::optional(counts) : std::nullopt;
  }

  void encode_parts() {
    const std::int64_t all = open_ == nullptr ? total_bytes(options_.inputs) : 0;
    if (folder_ && folder_->taken_over()) {
      std::size_t whole = 0;
      for (std::size_t part = 0; part < parts_.size(); ++part) whole += done(part) ? 1 : 0;
      std::fputs(fmt::format("trireme: {}: continues what was begun, {} of {} parts are done\n",
                             path_.string(), whole, parts_.size())
                     .c_str(),
                 stderr);
    }
    for (std::size_t part = ranks_.rank(); part < parts_.size(); part += ranks_.size()) {
      const std::int64_t bytes = bytes_of(ranges(part));
      read_ += bytes;
      std::error_code code;
      if (fs::exists(path_ / failed_file, code)) return;
      if (done(part)) continue;
      fs::path writing = prefix(part);
      writing += fmt::format("{}{}", unfinished, ::getpid());
      Spool spool(writing, manifest_.element_bytes, manifest_.loss_weights);
      if (open_ != nullptr) {
        copy(spool);
      } else {
        DocumentStream documents(ranges(part),
                                 DocumentKind::parse(options_.documents, options_.prompt));
        // An estimate: parts are of about one size, so ranks progress alike.
        const auto share = [&](std::int64_t read) {
          const std::int64_t own = read_ - bytes + std::min(bytes, read);
          const std::int64_t known = own * static_cast<std::int64_t>(ranks_.size());
          progress_(before_ + std::min(all, known), before_ + all);
        };
        encode(documents, *tokenizer_, manifest_.end_of_document, spool, share);
        encoded_ += bytes;
      }
      spool.finish(prefix(part));
      fs::path counts = prefix(part);
      replace_file(counts += ".json", json{spool.tokens(), spool.documents()}.dump());
    }
  }

  std::vector<TextRange> ranges(std::size_t part) const {
    std::vector<TextRange> found;
    for (const json& range : parts_.at(part)) {
      found.push_back({options_.inputs.at(range.at(0).get<std::size_t>()),
                       range.at(1).get<std::int64_t>(), range.at(2).get<std::int64_t>()});
    }
    return found;
  }

  static void remove_file(const fs::path& file) {
    std::error_code code;
    fs::remove(file, code);
    if (code) throw_file_error(file, "remove", code.value());
  }

  static std::int64_t bytes_of(const std::vector<TextRange>& ranges) {
    std::int64_t bytes = 0;
    for (const TextRange& range : ranges) {
      bytes += std::min(range.end, InputFile(range.file).size()) - range.begin;
    }
    return bytes;
  }

  void copy(Spool& spool) {
    if (options_.documents != PrepareOptions{}.documents) {
      throw Error("--documents {}: is for text; token files mark their documents: leave it out",
                  options_.documents);
    }
    if (!options_.prompt.empty()) {
      throw Error("--prompt {}: is for text; leave it out for token files", options_.prompt);
    }
    const std::vector<TokenInput> inputs = open_token_files(open_, options_.inputs);
    std::int64_t bytes = 0;
    for (const TokenInput& input : inputs) bytes += input.bytes();
    copy_tokens(inputs, manifest_.vocabulary, manifest_.end_of_document, spool,
                [&](auto copied) { progress_(copied, bytes); });
    encoded_ = bytes;
  }

  /// The counts of all parts, and where the splits part.
  void gather() {
    const json counts = json::parse(ranks_.of_first([&] {
      json found = json::array();
      for (std::size_t part = 0; part < parts_.size(); ++part) {
        const std::optional<json> one = done(part);
        if (!one) throw Error("{}.json: is gone; leave the folder alone", prefix(part).string());
        found.push_back(*one);
      }
      return found.dump();
    }));
    std::vector<Spools::Part> parts;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      parts.push_back({prefix(part), counts[part][0], counts[part][1]});
    }
    spools_.emplace(std::move(parts), manifest_.element_bytes, manifest_.loss_weights);
    ranks_.agree([&] {
      train_ = training_tokens(*spools_, options_.valid_fraction);
      if (train_ == 0 && (options_.valid_fraction < 1 || spools_->tokens() == 0)) {
        throw Error("--input {}: {} of {} in all; a dataset needs more text",
                    options_.inputs.front().string(), counted(spools_->documents(), "document"),
                    counted(spools_->tokens(), "token"));
      }
    });
  }

  void write_shards() {
    shards_ = plan_shards(SplitName::train, 0, train_, options_.shard_tokens);
    train_shards_ = shards_.size();
    const auto valid =
        plan_shards(SplitName::valid, train_, spools_->tokens() - train_, options_.shard_tokens);
    shards_.insert(shards_.end(), valid.begin(), valid.end());
    for (std::size_t i = ranks_.rank(); i < shards_.size(); i += ranks_.size()) {
      std::int64_t learned = 0;
      const ShardInfo shard = write_shard(*spools_, shards_[i], path_, learned);
      written_[std::to_string(i)] = {shard.documents, shard.xxh3, learned};
    }
  }

  void finish() {
    for (const std::string& text : ranks_.of_all(written_.dump()))
      written_.update(json::parse(text));
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const json& written = written_.at(std::to_string(i));
      (i < train_shards_ ? manifest_.train : manifest_.valid)
          .push_back({shards_[i].file, shards_[i].tokens, written[0], written[1]});
      if (i < train_shards_) learned_ += written[2].get<std::int64_t>();
    }
    ranks_.agree([&] {
      if (ranks_.rank() > 0) return;
      spools_->remove();
      remove_file(path_ / chosen_file);
      write_manifest(manifest_, path_);
      folder_->commit();
    });
  }

  static constexpr const char* chosen_file = "tokenizer.chosen";
  static constexpr const char* unfinished = ".unfinished-";
  static constexpr const char* failed_file = "failed";  // of a rank, which ends with all others

  const PrepareOptions& options_;
  Progress progress_;
  Ranks ranks_;
  OpenTokens open_ = nullptr;         // null: text
  std::optional<WorkFolder> folder_;  // the first rank's
  fs::path path_;                     // of it
  json parts_;                        // [[input, begin, end], …] of each
  Manifest manifest_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::int64_t before_ = 0, read_ = 0;  // bytes of a first pass, and of this rank's parts so far
  std::int64_t encoded_ = 0;            // bytes, by this rank
  std::optional<Spools> spools_;
  std::int64_t train_ = 0;
  std::int64_t learned_ = 0;  // of the training split
  std::vector<ShardPlan> shards_;
  std::size_t train_shards_ = 0;
  json written_ = json::object();  // documents and hash by number of the shard
};

}  // namespace

Prepared prepare(const PrepareOptions& options, const Progress& progress,
                 comm::Communicator* everyone) {
  return Preparation(options, progress, Ranks(everyone)).run();
}

}  // namespace trireme::data
