#include "trireme/data/prepare.hpp"

#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/data/tokenizer.hpp"

#include "dataset_files.hpp"
#include "spool.hpp"
#include "token_files.hpp"
#include "tokenizers.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

using Progress = std::function<void(std::int64_t, std::int64_t)>;

void check(const PrepareOptions& options) {
  const double fraction = options.valid_fraction;
  if (!(fraction >= 0 && fraction <= 1)) {
    throw Error("--valid-fraction {}: must be from 0 to 1; use 0.1", fraction);
  }
  if (options.shard_tokens < 1) {
    throw Error("--shard-tokens {}: must be at least 1; use {}", options.shard_tokens,
                PrepareOptions{}.shard_tokens);
  }
  if (options.sample_sentences < 1) {
    throw Error("--sample-sentences {}: must be at least 1; use {}", options.sample_sentences,
                PrepareOptions{}.sample_sentences);
  }
}

/// The output folder without "." parts and a slash at the end, so that it has a name and a parent.
fs::path plain_output(const PrepareOptions& options) {
  fs::path output = options.output.lexically_normal();
  if (!output.has_filename()) output = output.parent_path();
  if (output.filename().empty() || output.filename() == "." || output.filename() == "..") {
    throw Error("--output {}: names no new folder; name one, for example data/text",
                options.output.string());
  }
  return output;
}

constexpr const char* work_suffix = ".tmp-";

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

/// The folder at `path`, open and locked until it is closed; no descriptor where another process
/// has the lock, or the file system has no locks.
Descriptor lock_folder(const fs::path& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool locked = folder.get() >= 0 && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0;
  return locked ? std::move(folder) : Descriptor();
}

/// Removes work folders of `output` that no process has locked: theirs was killed.
void remove_abandoned(const fs::path& output) {
  const std::string prefix = output.filename().string() + work_suffix;
  std::error_code code;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent_of(output), code)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.starts_with(prefix) && name.size() > prefix.size() &&
                          name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (numbered) found.push_back(entry.path());
  }
  for (const fs::path& path : found) {
    if (lock_folder(path).get() >= 0) fs::remove_all(path, code);
  }
}

/// `output`.tmp-<pid>, locked: removed with all that it holds, and with the parents that were made
/// for it, unless committed.
class WorkFolder {
 public:
  /// Throws Error when `output` exists and is not an empty folder, or when nothing can be made
  /// there.
  explicit WorkFolder(const fs::path& output) : output_(output) {
    std::error_code code;
    const bool usable = fs::is_directory(output, code) && fs::is_empty(output, code);
    if (is_there(output) && !usable) {
      throw Error("--output {}: exists and is not an empty folder; remove it or choose another",
                  output.string());
    }
    for (fs::path at = parent_of(output); !is_there(at); at = parent_of(at)) {
      made_parents_.push_back(at);
    }
    remove_abandoned(output);
    fs::path path = output;
    path += work_suffix + std::to_string(::getpid());
    try {
      fs::create_directories(parent_of(output));
      fs::remove_all(path);  // left by a process of this number that was killed
      fs::create_directory(path);
    } catch (const fs::filesystem_error& error) {
      discard();
      throw_file_error(path, "create", error.code().value());
    }
    path_ = path;
    lock_ = lock_folder(path);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    if (!committed_) discard();
  }
  const fs::path& path() const { return path_; }
  /// Fsyncs the folder and renames it to `output`; its files were fsynced by those who wrote them.
  void commit() {
    sync_path(path_);
    for (const fs::path& parent : made_parents_) sync_path(parent_of(parent));
    rename_for_good(path_, output_);
    committed_ = true;
  }

 private:
  void discard() {
    std::error_code code;
    if (!path_.empty()) fs::remove_all(path_, code);
    for (const fs::path& parent : made_parents_) fs::remove(parent, code);  // only if empty
  }

  fs::path output_, path_;
  Descriptor lock_;
  std::vector<fs::path> made_parents_;  // innermost first
  bool committed_ = false;
};

/// Encodes every document into the spool. Pieces are cut where that does not change the tokens.
void encode(DocumentStream& documents, const Chosen& chosen, Spool& spool,
            const ProgressReport& progress) {
  std::string pending;
  std::vector<std::int32_t> ids;
  DocumentStream::Piece piece;
  while (documents.next(piece)) {
    pending += piece.text;
    ids.clear();
    if (piece.ends_document) {
      ids = chosen.tokenizer->encode(pending);
      pending.clear();
    } else {
      pending.erase(0, chosen.tokenizer->encode_stable(pending, ids));
    }
    spool.append(ids);
    if (piece.ends_document && spool.in_document()) {
      if (chosen.end_of_document) {
        const auto end = static_cast<std::int32_t>(*chosen.end_of_document);
        spool.append({&end, 1});
      }
      spool.end_document();
    }
    progress(documents.bytes_read());
  }
}

/// The dataset's own fields; the shards are added later.
Manifest manifest_of(const PrepareOptions& options, const fs::path& output, const Chosen& chosen) {
  Manifest manifest;
  manifest.name = options.name.empty() ? output.filename().string() : options.name;
  manifest.tokenizer = chosen.tokenizer ? chosen.tokenizer->kind() : "none";
  manifest.vocabulary = chosen.vocabulary;
  manifest.element_bytes = manifest.vocabulary <= (std::int64_t{1} << 16) ? 2 : 4;
  manifest.end_of_document = chosen.end_of_document;
  manifest.tokenizer_details = chosen.details;
  return manifest;
}

void write_manifest(const Manifest& manifest, const fs::path& folder) {
  const std::string text = to_text(manifest);
  parse_manifest(text, (folder / manifest_file).string());  // what is written can be read
  write_file(folder / manifest_file, text);
}

/// From the spool to a dataset.
Manifest finish(const PrepareOptions& options, Manifest manifest, Spool& spool,
                WorkFolder& folder) {
  spool.finish();
  const std::int64_t train = training_tokens(spool, options.valid_fraction);
  if (train == 0 && (options.valid_fraction < 1 || spool.tokens() == 0)) {
    throw Error("--input {}: {} documents of {} tokens in all; a dataset needs more text",
                options.inputs.front().string(), spool.documents(), spool.tokens());
  }
  Sharder sharder(spool, folder.path(), options.shard_tokens);
  manifest.train = sharder.write(SplitName::train, train);
  manifest.valid = sharder.write(SplitName::valid, spool.tokens() - train);
  spool.remove();
  write_manifest(manifest, folder.path());
  folder.commit();
  return manifest;
}

Manifest prepare_text(const PrepareOptions& options, const fs::path& output,
                      const Progress& progress) {
  const DocumentKind kind = DocumentKind::parse(options.documents);
  const std::int64_t bytes = total_bytes(options.inputs);
  const bool ends = kind.unit != DocumentKind::Unit::file || options.inputs.size() > 1;
  WorkFolder folder(output);
  // Bytes of the passes before, and of all.
  const std::int64_t before = needs_first_pass(options.tokenizer) ? bytes : 0, all = before + bytes;
  const Chosen chosen = choose_tokenizer(options, ends, DocumentStream(options.inputs, kind), bytes,
                                         folder.path(), [&](auto read) { progress(read, all); });
  if (before > 0) progress(before, all);
  Manifest manifest = manifest_of(options, output, chosen);
  Spool spool(folder.path(), manifest.element_bytes);
  DocumentStream documents(options.inputs, kind);
  encode(documents, chosen, spool, [&](auto read) { progress(before + read, all); });
  return finish(options, std::move(manifest), spool, folder);
}

Manifest prepare_tokens(const PrepareOptions& options, OpenTokens open, const fs::path& output,
                        const Progress& progress) {
  if (options.documents != PrepareOptions{}.documents) {
    throw Error("--documents {}: is for text; token files mark their documents: leave it out",
                options.documents);
  }
  const std::vector<TokenInput> inputs = open_token_files(open, options.inputs);
  std::int64_t bytes = 0;
  for (const TokenInput& input : inputs) bytes += input.bytes();
  WorkFolder folder(output);
  const Chosen chosen = choose_for_tokens(options, folder.path());
  Manifest manifest = manifest_of(options, output, chosen);
  Spool spool(folder.path(), manifest.element_bytes);
  copy_tokens(inputs, manifest.vocabulary, manifest.end_of_document, spool,
              [&](auto done) { progress(done, bytes); });
  return finish(options, std::move(manifest), spool, folder);
}

}  // namespace

Manifest prepare(const PrepareOptions& options, const Progress& progress) {
  check(options);
  const fs::path output = plain_output(options);
  const SizeLimitGuard guard;
  const OpenTokens open = token_format(options.input_format, options.inputs);
  const Progress report = progress ? progress : [](std::int64_t, std::int64_t) {};
  return open != nullptr ? prepare_tokens(options, open, output, report)
                         : prepare_text(options, output, report);
}

}  // namespace trireme::data
