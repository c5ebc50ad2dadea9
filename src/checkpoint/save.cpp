#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "trireme/report/json.hpp"

#include "files.hpp"
#include "folders.hpp"
#include "manifest.hpp"
#include "piece_file.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Runs `work` on this rank, then tells every rank how all of them fared. Rank 0 gets what each
/// rank's `work` returned, the others nothing; when any threw, runs `undo` (on every rank) and
/// throws the same AgreedError on all. Collective.
std::vector<json> together(comm::Communicator& world, const std::function<json()>& work,
                           const std::function<void()>& undo) {
  std::string mine;  // '+' and a value, or '-' and the reason
  try {
    mine = "+" + report::to_text(work());
  } catch (const std::exception& error) {
    mine = std::string("-") + error.what();
  }
  std::vector<json> values;
  std::string first;
  int failed = 0, rank = -1;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(mine.data());
  for (const auto& theirs : world.all_gather_bytes({bytes, mine.size()})) {
    ++rank;
    if (theirs[0] == '-') {
      if (++failed > 1) continue;
      first = fmt::format("rank {}: {}", rank, std::string(theirs.begin() + 1, theirs.end()));
    } else if (world.rank() == 0 && failed == 0) {
      values.push_back(json::parse(theirs.begin() + 1, theirs.end()));
    }
  }
  if (failed == 0) return values;
  undo();
  world.barrier();  // no rank goes on while leftovers are being removed
  const std::string others =
      failed == 1 ? ""
                  : fmt::format(" (and {} other {})", failed - 1, failed == 2 ? "rank" : "ranks");
  throw AgreedError("checkpoint not saved: {}{}", first, others);
}

Box box_of(const json& begin, const json& extent) {
  return {make_index(begin), make_shape(extent)};
}

/// What this rank holds, for the others to check. Throws Error for what is wrong in itself.
json describe(const std::vector<Piece>& pieces) {
  json list = json::array();
  for (const Piece& piece : pieces) {
    if (const std::string fault = fault_of_name(piece.name); !fault.empty()) {
      throw Error("tensor '{}': its name {}", piece.name, fault);
    }
    std::int64_t whole = 0;
    if (!checked_elements(piece.shape, piece.data.type(), whole)) {
      throw Error("tensor {}: {} is no shape", piece.name, piece.shape.to_string());
    }
    const std::int64_t elements = piece.data.elements();
    TRIREME_ASSERT(piece.data.data() != nullptr || elements == 0, "piece of {}", piece.name);
    const Box box{piece.begin, piece.data.shape()};
    const auto begin = list_of(piece.begin, piece.data.shape().dimensions());
    if (!fits(box, piece.shape)) {
      throw Error("tensor {}: a piece {} from {} on does not fit into {}", piece.name,
                  box.extent.to_string(), to_string(piece.begin, box.extent.dimensions()),
                  piece.shape.to_string());
    }
    list.push_back({piece.name, name_of(piece.data.type()), list_of(piece.shape), begin,
                    list_of(box.extent), piece.write && elements > 0});
  }
  return list;
}

/// All ranks' descriptions, joined: the tensors, by name. Throws Error unless ranks agree on each
/// tensor and the pieces to be written cover it exactly once.
std::vector<Reader::Entry> join(const std::vector<json>& ranks) {
  std::map<std::string, Reader::Entry> by_name;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const json& piece : ranks[rank]) {
      Reader::Entry entry{piece[0], make_shape(piece[2]),
                          dtype_from_name(piece[1].get<std::string>())};
      const auto [known, is_new] = by_name.emplace(entry.name, entry);
      if (!is_new && (known->second.shape != entry.shape || known->second.type != entry.type)) {
        throw Error("rank {}: tensor {}: is {} {} here and {} {} on another rank", rank, entry.name,
                    name_of(entry.type), entry.shape.to_string(), name_of(known->second.type),
                    known->second.shape.to_string());
      }
    }
  }
  std::vector<Reader::Entry> tensors;
  std::map<std::string, std::size_t> index;
  for (const auto& [name, entry] : by_name) {
    // In HDF5 one name cannot be a group and a dataset.
    for (std::size_t slash = name.find('/'); slash != name.npos;
         slash = name.find('/', slash + 1)) {
      if (by_name.count(name.substr(0, slash)) != 0) {
        throw Error("tensor {}: a part of its name is a tensor too", name);
      }
    }
    index.emplace(name, tensors.size());
    tensors.push_back(entry);
  }
  std::vector<PieceRecord> pieces;
  for (const json& rank : ranks) {
    for (const json& piece : rank) {
      if (piece[5]) pieces.push_back({index[piece[0]], box_of(piece[3], piece[4]), 0, "", {}});
    }
  }
  sort_and_check_cover("pieces of all ranks", tensors, pieces);
  return tensors;
}

/// Writes this rank's file, if it has anything to write, and says what is in it.
json write_own(const fs::path& folder, const std::vector<Piece>& pieces, std::int64_t step,
               int rank) {
  std::vector<const Piece*> own;
  for (const Piece& piece : pieces) {
    if (piece.write && piece.data.elements() > 0) own.push_back(&piece);
  }
  if (own.empty()) return {};
  const std::string name = fmt::format("rank-{:05}.h5", rank);
  std::int64_t bytes = 0;
  const std::vector<PieceRecord> records = write_piece_file(folder / name, own, step, bytes);
  json list = json::array();
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Box& box = records[i].box;
    list.push_back({own[i]->name, list_of(box.begin, box.extent.dimensions()), list_of(box.extent),
                    records[i].dataset, records[i].blocks});
  }
  return {{"name", name}, {"bytes", bytes}, {"pieces", list}};
}

/// Rank 0: the manifest, last, and the rename that makes the checkpoint exist.
void finish(const fs::path& temporary, const fs::path& final, Manifest manifest,
            const std::vector<json>& written) {
  std::map<std::string, std::size_t> index;
  for (const Reader::Entry& tensor : manifest.tensors) index.emplace(tensor.name, index.size());
  for (const json& rank : written) {
    if (rank.is_null()) continue;
    const FileRecord file{rank["name"], rank["bytes"]};
    std::error_code error;
    const auto bytes = fs::file_size(temporary / file.name, error);
    if (error || static_cast<std::int64_t>(bytes) != file.bytes) {
      throw Error(
          "{}: is not what its writer wrote as rank 0 sees it; save to a file system that all "
          "ranks share",
          (temporary / file.name).string());
    }
    for (const json& piece : rank["pieces"]) {
      manifest.pieces.push_back({index.at(piece[0]), box_of(piece[1], piece[2]),
                                 manifest.files.size(), piece[3],
                                 piece[4].get<std::vector<std::uint64_t>>()});
    }
    manifest.files.push_back(file);
  }
  const std::string where = (temporary / "manifest.json").string();
  sort_and_check_cover(where, manifest.tensors, manifest.pieces);
  for (const State::Attachment& each : manifest.state.attachments) {
    write_file(temporary / each.name, each.content);
  }
  write_file(temporary / "manifest.json", to_text(manifest));
  sync_path(temporary);
  commit(temporary, final);
}

void make_empty_folder(const fs::path& root, const fs::path& temporary) {
  std::error_code error;
  fs::create_directories(root, error);
  if (!error) fs::remove_all(temporary, error);
  if (!error) fs::create_directory(temporary, error);
  if (error) throw_file_error(temporary, "create", error.value());
}

/// What every save does, in three parts; all but write() are collective.
class Steps {
 public:
  Steps(const fs::path& root, const State& state, const std::vector<Piece>& pieces,
        comm::Communicator& world)
      : world_(world), state_(state), final_(root / step_name(state.step)), temporary_(final_) {
    temporary_ += ".tmp";
    agree_on_cover(pieces);
    together(
        world_,
        [&] {
          if (first()) make_empty_folder(root, temporary_);
          return json();
        },
        [&] { remove_leftovers(); });
  }
  const State& state() const { return state_; }

  /// This rank's file; not collective. Throws Error.
  json write(const std::vector<Piece>& pieces) const {
    return write_own(temporary_, pieces, state_.step, world_.rank());
  }
  /// `own` gives what write returned, or throws what it threw.
  fs::path finish(const std::function<json()>& own) {
    const auto undo = [&] { remove_leftovers(); };
    const auto written = together(world_, own, undo);
    together(
        world_,
        [&] {
          if (!first()) return json();
          Manifest manifest;
          manifest.tensors = std::move(tensors_);
          manifest.state = state_;
          checkpoint::finish(temporary_, final_, std::move(manifest), written);
          return json();
        },
        undo);
    return final_;
  }

 private:
  bool first() const { return world_.rank() == 0; }
  void remove_leftovers() const {
    std::error_code ignored;
    if (first()) fs::remove_all(temporary_, ignored);
  }
  void agree_on_cover(const std::vector<Piece>& pieces) {
    const auto described = together(
        world_, [&] { return describe(pieces); }, [] {});
    // Rank 0 alone looks at them: at scale they are many, and its neighbours share its memory.
    std::string fault;
    try {
      if (first()) tensors_ = join(described);
    } catch (const Error& error) {
      fault = error.what();
    }
    std::vector<std::uint8_t> verdict(fault.begin(), fault.end());
    world_.broadcast_bytes(verdict, 0);
    if (!verdict.empty()) {
      throw AgreedError("checkpoint not saved: {}", std::string(verdict.begin(), verdict.end()));
    }
  }

  comm::Communicator& world_;
  State state_;
  fs::path final_, temporary_;
  std::vector<Reader::Entry> tensors_;  // rank 0
};

}  // namespace

fs::path save(const fs::path& root, const State& state, const std::vector<Piece>& pieces,
              comm::Communicator& world) {
  Steps steps(root, state, pieces, world);
  return steps.finish([&] { return steps.write(pieces); });
}

std::int64_t snapshot_bytes(const std::vector<Piece>& pieces) {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) {
    if (piece.write) bytes += bytes_of(piece.data.elements(), piece.data.type());
  }
  return bytes;
}

struct Save::Writing {
  Writing(const fs::path& root, const State& state, const std::vector<Piece>& pieces,
          comm::Communicator& world, device::MemoryLedger& ledger)
      : steps(root, state, pieces, world),
        copy(ledger, device::Use::snapshot, static_cast<std::size_t>(snapshot_bytes(pieces))) {
    std::byte* to = copy.data();
    for (const Piece& piece : pieces) {
      if (!piece.write || piece.data.elements() == 0) continue;
      copied.push_back(piece);
      copied.back().data = Tensor(to, piece.data.type(), piece.data.shape());
      const DType type = piece.data.type();
      const auto* from = static_cast<const std::byte*>(piece.data.data());
      const Box box{piece.begin, piece.data.shape()};
      for_each_stretch(box, box, box, piece.data,
                       [&](std::int64_t, std::int64_t at, std::int64_t elements) {
                         const auto bytes = static_cast<std::size_t>(bytes_of(elements, type));
                         std::memcpy(to, from + bytes_of(at, type), bytes);
                         to += bytes;
                       });
    }
    thread = std::thread([this] {
      try {
        result = steps.write(copied);
      } catch (...) {
        error = std::current_exception();
      }
      done.store(true, std::memory_order_release);
    });
  }
  ~Writing() {
    if (thread.joinable()) thread.join();
  }

  Steps steps;
  device::Buffer copy;
  std::vector<Piece> copied;
  json result;
  std::exception_ptr error;
  std::atomic<bool> done{false};
  std::thread thread;
};

Save::Save(const fs::path& root, const State& state, const std::vector<Piece>& pieces,
           comm::Communicator& world, device::MemoryLedger& ledger)
    : writing_(std::make_unique<Writing>(root, state, pieces, world, ledger)) {}

Save::~Save() = default;

std::int64_t Save::step() const { return writing_->steps.state().step; }

bool Save::written() const { return writing_->done.load(std::memory_order_acquire); }

fs::path Save::finish() {
  return writing_->steps.finish([&] {
    writing_->thread.join();
    if (writing_->error) std::rethrow_exception(writing_->error);
    return writing_->result;
  });
}

}  // namespace trireme::checkpoint
