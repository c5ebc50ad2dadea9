#include "trireme/data/prepare.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/machine.hpp"
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
constexpr const char* owner_file = ".trireme-prepare";  // in a work folder, from its lock on

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

/// What the owner file holds: this host since its last boot. Other hosts may not see our locks.
std::string owner_text() { return fmt::format("{} {}\n", host_name(), boot_id()); }

/// The folder at `path`, open and locked until it is closed. No descriptor where another process
/// has the lock, the file system has no locks, or the path was removed meanwhile.
Descriptor lock_folder(const fs::path& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0 || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return Descriptor();
  struct stat locked = {}, now = {};
  const bool same = ::fstat(folder.get(), &locked) == 0 && ::lstat(path.c_str(), &now) == 0 &&
                    locked.st_dev == now.st_dev && locked.st_ino == now.st_ino;
  return same ? std::move(folder) : Descriptor();
}

/// Whether a `prepare` of this user on this host made the folder, which is open as `folder`.
bool is_ours(const Descriptor& folder, const fs::path& path) {
  struct stat status = {};
  if (::fstat(folder.get(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  try {
    return read_small_file(path / owner_file, 4096) == owner_text();
  } catch (const Error&) {
    return false;
  }
}

/// Removes work folders of `output` that no process has locked: their `prepare` was killed.
void remove_abandoned(const fs::path& output) {
  const std::string prefix = output.filename().string() + work_suffix;
  constexpr std::size_t most_digits = 7;
  std::error_code code;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent_of(output), code)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.starts_with(prefix) && name.size() > prefix.size() &&
                          name.size() <= prefix.size() + most_digits &&
                          name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (numbered) found.push_back(entry.path());
  }
  for (const fs::path& path : found) {
    const Descriptor lock = lock_folder(path);
    if (lock.get() >= 0 && is_ours(lock, path)) fs::remove_all(path, code);
  }
}

/// `output`.tmp-<pid>, or the next number that is free, locked: removed with all that it holds, and
/// with the parents that were made for it, unless committed.
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
    fs::create_directories(parent_of(output), code);
    if (code) fail(parent_of(output), code.value());
    for (int number = ::getpid(); path_.empty(); ++number) make(number);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    if (!committed_) discard();
  }
  const fs::path& path() const { return path_; }
  /// Fsyncs the folder and renames it to `output`; its files were fsynced by those who wrote them.
  void commit() {
    std::error_code code;
    fs::remove(path_ / owner_file, code);
    if (code) throw_file_error(path_ / owner_file, "remove", code.value());
    sync_path(path_);
    for (const fs::path& parent : made_parents_) sync_path(parent_of(parent));
    rename_for_good(path_, output_);
    committed_ = true;
  }

 private:
  [[noreturn]] void fail(const fs::path& path, int error) {
    discard();
    throw_file_error(path, "create", error);
  }
  /// Makes and locks the folder of that number, unless it exists or another process interferes.
  /// The owner file comes after the lock: others remove no folder without it.
  void make(int number) {
    fs::path path = output_;
    path += work_suffix + std::to_string(number);
    if (::mkdir(path.c_str(), 0777) != 0) {
      if (errno == EEXIST && number < ::getpid() + most_tries) return;
      fail(path, errno);
    }
    lock_ = lock_folder(path);
    if (lock_.get() < 0 && number < ::getpid() + most_tries) {
      ::rmdir(path.c_str());
      return;
    }
    path_ = path;
    if (lock_.get() < 0) return;  // a file system without locks
    try {
      write_file(path / owner_file, owner_text());
    } catch (const Error&) {  // no room for it: what a killed process leaves then stays
    }
  }
  void discard() {
    std::error_code code;
    if (!path_.empty()) fs::remove_all(path_, code);
    for (const fs::path& parent : made_parents_) fs::remove(parent, code);  // only if empty
  }

  static constexpr int most_tries = 100;
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
    if (piece.ends_document || piece.ends_prompt) {
      ids = chosen.tokenizer->encode(pending);
      pending.clear();
    } else {
      pending.erase(0, chosen.tokenizer->encode_stable(pending, ids));
    }
    spool.append(ids, piece.is_prompt ? 0 : 1);
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
  manifest.loss_weights = !options.prompt.empty();
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
  const DocumentKind kind = DocumentKind::parse(options.documents, options.prompt);
  const std::int64_t bytes = total_bytes(options.inputs);
  const bool ends = kind.unit != DocumentKind::Unit::file || options.inputs.size() > 1;
  WorkFolder folder(output);
  // Bytes of the passes before, and of all.
  const std::int64_t before = needs_first_pass(options.tokenizer) ? bytes : 0, all = before + bytes;
  const Chosen chosen = choose_tokenizer(options, ends, DocumentStream(options.inputs, kind),
                                         estimated_text_bytes(options.inputs), folder.path(),
                                         [&](auto read) { progress(read, all); });
  if (before > 0) progress(before, all);
  Manifest manifest = manifest_of(options, output, chosen);
  Spool spool(folder.path(), manifest.element_bytes, manifest.loss_weights);
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
  if (!options.prompt.empty()) {
    throw Error("--prompt {}: is for text; leave it out for token files", options.prompt);
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
