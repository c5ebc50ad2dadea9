// Checkpoints of logical tensors: a folder step-00001000/ with manifest.json and one HDF5 file per
// writing rank or node. Any layout can load one, because names, shapes and offsets are logical.
// Written as step-….tmp, every file fsynced, manifest last, then renamed, and the parent folder
// fsynced: a crash at any point leaves the previous checkpoint whole.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::checkpoint {

/// Where in a tensor: one number for each of its dimensions, the others 0.
using Index = std::array<std::int64_t, Shape::max_dimensions>;

/// A box of a logical tensor that this rank holds: the elements from `begin` on, as many in each
/// dimension as `data` has. A tensor may have any number of boxes on any number of ranks.
struct Piece {
  std::string name;  // "parameters/blocks.0.attention.qkv.weight", "adamw.moment1/…"
  Shape shape;       // of the whole logical tensor
  Index begin{};
  Tensor data;          // as many dimensions as `shape`; may be strided
  bool write = true;    // this rank writes it (of several that hold it, one does)
  bool finite = false;  // a save that finds NaN or an infinity in it fails
};

/// What is not a tensor: step, sample cursor, seed, configuration, versions. Numbers in the three
/// JSON values that are not finite come back as the strings "nan", "inf" and "-inf".
struct State {
  std::int64_t step = 0;
  std::int64_t samples = 0;  // the cursor: samples consumed
  std::uint64_t seed = 0;
  nlohmann::json config;
  nlohmann::json versions;
  nlohmann::json extra;  // anything else to keep, by name
  struct Attachment {
    std::string name, content;  // a plain file name, and bytes
  };
  /// Small files beside the manifest. Their readers check them.
  std::vector<Attachment> attachments;
};

/// Which files a checkpoint consists of.
struct FileLayout {
  /// By rank of `world`, the first rank of its node (comm::Session::nodes): the ranks of a node
  /// write into one file. Empty: each rank into its own.
  std::vector<int> nodes;
  /// Files in a folder; more are spread over sub-folders part-000, part-001, …
  std::int64_t per_folder = 1000;
  /// Called on the first rank before files are made or removed, and before the checkpoint gets its
  /// name; an Error prevents that.
  std::function<void()> before_publish = [] {};
};

/// Collective over `world`. Writes data in host memory as root/step-%08d, in place of one that
/// is there already, and returns its path; `root` is the same on every rank, on a file system that
/// all share. `state` is rank 0's. Throws AgreedError (the same on every rank, naming rank, file
/// and the system's reason) when any rank failed or the pieces that are written do not cover each
/// tensor exactly once; then nothing new is left and an older folder of this step is untouched.
std::filesystem::path save(const std::filesystem::path& root, const State& state,
                           const std::vector<Piece>& pieces, comm::Communicator& world,
                           const FileLayout& layout = {});

/// The same in two parts, so that training can continue while a background thread writes: the
/// constructor agrees on what is to be written and copies it from `device` to memory of its own, on
/// the host, entered in `ledger`; finish() makes the checkpoint exist. Both are collective and
/// throw what save throws; written() is asked in between.
class Save {
 public:
  Save(const std::filesystem::path& root, const State& state, const std::vector<Piece>& pieces,
       device::Device& device, comm::Communicator& world, device::MemoryLedger& ledger,
       const FileLayout& layout = {});
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;
  /// Waits for this rank's thread; what is not finished stays a step-….tmp, which prune removes.
  ~Save();
  std::int64_t step() const;
  /// This rank has written its data, or failed. Never waits.
  bool written() const;
  /// Waits for the files of all ranks.
  std::filesystem::path finish();

 private:
  struct Writing;
  std::unique_ptr<Writing> writing_;
};

/// Bytes of the copy that a Save of these pieces makes.
std::int64_t snapshot_bytes(const std::vector<Piece>& pieces);

/// A checkpoint opened for reading. The manifest is checked at once, and that its files are there
/// in full length; HDF5 files are opened when first read from. Nothing in a folder is trusted:
/// every fault is an Error that names the file and, where it concerns one, the tensor and the
/// element. May be used by several threads. Keeps up to 64 MiB of what it verified last, so that
/// reading neighboring parts one by one reads each block once.
class Reader {
 public:
  /// `folder` is a step-… folder. Throws Error that names the file and what is wrong.
  explicit Reader(const std::filesystem::path& folder);
  const State& state() const;
  const std::filesystem::path& folder() const { return folder_; }
  /// A logical tensor.
  struct Entry {
    std::string name;
    Shape shape;
    DType type = DType::f32;
  };
  /// Every one, sorted by name.
  const std::vector<Entry>& tensors() const;
  /// The entry of that name, or null.
  const Entry* find(const std::string& name) const;
  struct File {
    std::string name;  // "rank-00000.h5", or "part-000/rank-00000.h5"
    std::int64_t bytes = 0;
  };
  std::vector<File> files() const;
  /// Fills `data` (of the tensor's type and number of dimensions; may be strided) with the elements
  /// from `begin` on of tensor `name`, from whichever pieces hold them; verifies the xxh3 of every
  /// block it touches and reads no other. After an Error the content of `data` is undefined.
  void read(const std::string& name, const Index& begin, const Tensor& data) const;
  /// `report` gets the bytes of `data` after each read, by the thread that read them.
  void report_reads(std::function<void(std::int64_t bytes)> report) { read_ = std::move(report); }
  /// Re-reads everything. Throws the first fault; with `finite` also where an element is NaN or
  /// infinite.
  void verify(bool finite = false) const;

 private:
  struct Stored;
  std::filesystem::path folder_;
  std::shared_ptr<Stored> stored_;  // shared by copies of this reader
  std::function<void(std::int64_t bytes)> read_;
};

/// Makes the tokenizer of a model's text part of what is saved, so that a checkpoint needs no
/// dataset. One of kind "none" is left out.
void keep_tokenizer(State& state, const data::StoredTokenizer& tokenizer);

/// The tokenizer kept in a checkpoint, or nothing: for data::load_tokenizer and
/// data::stored_tokenizer, with reader.folder(). Throws Error naming the checkpoint.
std::optional<data::Manifest> kept_tokenizer(const Reader& reader);

/// Past every step.
inline constexpr std::int64_t any_step = std::numeric_limits<std::int64_t>::max();

/// The newest step-… folder below `root` whose manifest is whole, or nothing; `passed_over`
/// receives a line for each newer one that is broken.
std::optional<std::filesystem::path> newest(const std::filesystem::path& root,
                                            std::vector<std::string>* passed_over = nullptr,
                                            std::int64_t last = any_step);

/// Removes all but the newest `keep` checkpoints below `root` that are not of a later step than
/// `last`, and leftovers of failed saves. Those of later steps stay and do not count. Broken
/// folders do not count as kept: those newer than the oldest kept one stay, for a person to look
/// at. Not collective: one rank calls it, while none saves.
void prune(const std::filesystem::path& root, std::int64_t keep, std::int64_t last = any_step);

}  // namespace trireme::checkpoint
