#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <system_error>
#include <thread>

#include "trireme/core/json.hpp"

#include "files.hpp"
#include "manifest.hpp"
#include "piece_file.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Whether this rank wants what `work` returned on that rank.
using Wants = std::function<bool(int)>;

/// Runs `work` on this rank and shares the outcome with every rank. Returns, by rank, what
/// `work` returned where that is wanted; when any threw, runs `undo` (on every rank) and throws the
/// same AgreedError on all. Collective.
std::vector<json> together(comm::Communicator& world, const std::function<json()>& work,
                           const std::function<void()>& undo, const Wants& wants) {
  std::string mine;  // '+' and a value, or '-' and the reason
  try {
    mine = "+" + json_text(work());
  } catch (const std::exception& error) {
    mine = std::string("-") + error.what();
  }
  std::vector<json> values(static_cast<std::size_t>(world.size()));
  std::string first;
  int failed = 0, rank = -1;
  for (const std::string& theirs : world.all_gather_texts(mine)) {
    ++rank;
    if (theirs[0] == '-') {
      if (++failed > 1) continue;
      first = fmt::format("rank {}: {}", rank, theirs.substr(1));
    } else if (failed == 0 && wants(rank)) {
      values[static_cast<std::size_t>(rank)] = json::parse(theirs.begin() + 1, theirs.end());
    }
  }
  if (failed == 0) return values;
  undo();
  world.barrier();  // no rank continues while leftovers are being removed
  const std::string others =
      failed == 1 ? ""
                  : fmt::format(" (and {} other {})", failed - 1, failed == 2 ? "rank" : "ranks");
  throw AgreedError("checkpoint not saved: {}{}", first, others);
}

std::vector<const Piece*> written_of(const std::vector<Piece>& pieces) {
  std::vector<const Piece*> own;
  for (const Piece& piece : pieces) {
    if (piece.write && piece.data.elements() > 0) own.push_back(&piece);
  }
  return own;
}

/// What a rank has written, for the manifest.
json report_of(const FileRecord& file, const MadeFile& made,
               const std::vector<const Piece*>& pieces,
               const std::vector<std::vector<std::uint64_t>>& blocks) {
  json list = json::array();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    list.push_back({pieces[i]->name,
                    list_of(pieces[i]->begin, pieces[i]->data.shape().dimensions()),
                    list_of(pieces[i]->data.shape()), made.places[i].dataset, blocks[i]});
  }
  return {{"name", file.name}, {"folder", file.folder}, {"bytes", made.bytes}, {"pieces", list}};
}

/// What a rank reports of its file. Throws Error unless it is there in full.
FileRecord checked_file(const fs::path& temporary, const json& report) {
  FileRecord file{report["name"], report["folder"], report["bytes"]};
  std::error_code error;
  const auto bytes = fs::file_size(file.below(temporary), error);
  if (error || static_cast<std::int64_t>(bytes) != file.bytes) {
    throw Error(
        "{}: is not what its writer wrote as rank 0 sees it; save to a file system that all "
        "ranks share",
        file.below(temporary).string());
  }
  return file;
}

/// Rank 0: the manifest, last, and the rename that makes the checkpoint exist.
void finish(const fs::path& temporary, const fs::path& final, Manifest manifest,
            const FilePlan& plan, const std::vector<json>& written) {
  std::map<std::string, std::size_t> index, files;
  for (const Reader::Entry& tensor : manifest.tensors) index.emplace(tensor.name, index.size());
  for (const json& rank : written) {
    if (rank.is_null()) continue;
    const auto [file, is_new] = files.emplace(rank["name"], manifest.files.size());
    if (is_new) manifest.files.push_back(checked_file(temporary, rank));
    for (const json& piece : rank["pieces"]) {
      manifest.pieces.push_back({index.at(piece[0]),
                                 {make_index(piece[1]), make_shape(piece[2])},
                                 file->second,
                                 piece[3],
                                 piece[4].get<std::vector<std::uint64_t>>()});
    }
  }
  const std::string where = (temporary / "manifest.json").string();
  sort_and_check_cover(where, manifest.tensors, manifest.pieces);
  for (const State::Attachment& each : manifest.state.attachments) {
    write_file(temporary / each.name, each.content);
  }
  for (const std::string& folder : plan.folders()) sync_path(temporary / folder);
  write_file(temporary / "manifest.json", to_text(manifest));
  sync_path(temporary);
  commit(temporary, final);
}

void make_empty_folder(const fs::path& root, const fs::path& temporary, const FilePlan& plan) {
  std::error_code error;
  fs::create_directories(root, error);
  if (!error) fs::remove_all(temporary, error);
  if (!error) fs::create_directory(temporary, error);
  for (const std::string& folder : plan.folders()) {
    if (!error) fs::create_directory(temporary / folder, error);
  }
  if (error) throw_file_error(temporary, "create", error.value());
}

/// What every save does, in three parts; all but write() are collective.
class Steps {
 public:
  Steps(const fs::path& root, const State& state, const std::vector<Piece>& pieces,
        comm::Communicator& world, const FileLayout& layout)
      : world_(world),
        state_(state),
        final_(root / step_name(state.step)),
        temporary_(final_),
        before_publish_(layout.before_publish),
        plan_(layout, world.size()) {
    temporary_ += ".tmp";
    const std::vector<json> described = agree_on_cover(pieces);
    agreed([&] {
      if (!first()) return;
      before_publish_();
      make_empty_folder(root, temporary_, plan_);
    });
    if (plan_.shared()) make_shared_files(described);
  }
  const State& state() const { return state_; }
  /// `work` on every rank; collective, and throws for what any rank's threw.
  void agreed(const std::function<void()>& work) {
    together(
        world_,
        [&] {
          work();
          return json();
        },
        [&] { remove_leftovers(); }, [](int) { return false; });
  }

  /// This rank's data; not collective. Throws Error.
  json write(const std::vector<Piece>& pieces) const {
    const std::vector<const Piece*> own = written_of(pieces);
    if (own.empty()) return {};
    const FileRecord file = plan_.file_of(world_.rank());
    const fs::path path = file.below(temporary_);
    const MadeFile made =
        plan_.shared() ? shared_ : make_piece_file(path, planned_of(describe(pieces)), state_.step);
    return report_of(file, made, own, write_pieces(path, own, made.places));
  }
  /// `own` gives what write returned, or throws what it threw.
  fs::path finish(const std::function<json()>& own) {
    const auto written = together(
        world_, own, [&] { remove_leftovers(); }, [&](int) { return first(); });
    agreed([&] {
      if (!first()) return;
      before_publish_();
      Manifest manifest;
      manifest.tensors = std::move(tensors_);
      manifest.state = state_;
      checkpoint::finish(temporary_, final_, std::move(manifest), plan_, written);
    });
    return final_;
  }

 private:
  bool first() const { return world_.rank() == 0; }
  bool leads(int rank) const { return plan_.shared() && plan_.leader(rank) == world_.rank(); }
  void remove_leftovers() const {
    if (!first()) return;
    try {
      before_publish_();
    } catch (const Error&) {
      return;  // it is another run's by now
    }
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }

  /// Returns the descriptions that this rank has a use for, by rank.
  std::vector<json> agree_on_cover(const std::vector<Piece>& pieces) {
    std::vector<json> described = together(
        world_, [&] { return describe(pieces); }, [] {},
        [&](int rank) { return first() || leads(rank); });
    // Rank 0 alone looks at them: at scale they are many, and its neighbors share its memory.
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
    return described;
  }

  /// A node's first rank creates the shared file and sends each rank the place of its pieces:
  /// [bytes, [dataset, address], …]. That is little beside the data, which each rank writes itself.
  void make_shared_files(const std::vector<json>& described) {
    const auto make = [&] {
      std::vector<PlannedPiece> pieces;
      std::vector<std::size_t> ends;
      for (int rank = 0; rank < world_.size(); ++rank) {
        if (leads(rank)) {
          const auto theirs = planned_of(described[static_cast<std::size_t>(rank)]);
          pieces.insert(pieces.end(), theirs.begin(), theirs.end());
        }
        ends.push_back(pieces.size());
      }
      json by_rank = json::array();
      if (pieces.empty()) return by_rank;
      const auto [bytes, places] =
          make_piece_file(plan_.file_of(world_.rank()).below(temporary_), pieces, state_.step);
      std::size_t at = 0;
      for (const std::size_t end : ends) {
        json list = json::array({bytes});
        for (; at < end; ++at) list.push_back({places[at].dataset, places[at].address});
        by_rank.push_back(list);
      }
      return by_rank;
    };
    const auto made = together(
        world_, make, [&] { remove_leftovers(); },
        [&](int rank) { return rank == plan_.leader(world_.rank()); });
    const json& theirs = made[static_cast<std::size_t>(plan_.leader(world_.rank()))];
    if (theirs.empty()) return;
    const json& mine = theirs[static_cast<std::size_t>(world_.rank())];
    shared_.bytes = mine[0];
    for (std::size_t i = 1; i < mine.size(); ++i) {
      shared_.places.push_back({mine[i][0], mine[i][1]});
    }
  }

  comm::Communicator& world_;
  State state_;
  fs::path final_, temporary_;
  std::function<void()> before_publish_;
  FilePlan plan_;
  MadeFile shared_;  // with the places of this rank's pieces, if others write there too
  std::vector<Reader::Entry> tensors_;  // rank 0
};

}  // namespace

fs::path save(const fs::path& root, const State& state, const std::vector<Piece>& pieces,
              comm::Communicator& world, const FileLayout& layout) {
  Steps steps(root, state, pieces, world, layout);
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
          device::Device& device, comm::Communicator& world, device::MemoryLedger& ledger,
          const FileLayout& layout)
      : steps(root, state, pieces, world, layout) {
    steps.agreed([&] {
      const auto bytes = static_cast<std::size_t>(snapshot_bytes(pieces));
      copy = device::Buffer(ledger, device::Use::snapshot, bytes, device::host_device());
    });
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
                         device.copy(to, from + bytes_of(at, type), bytes);
                         to += bytes;
                       });
    }
    device.synchronize();
    try {
      thread = std::thread([this] { write(); });
    } catch (const std::system_error&) {  // no thread is left: then here
      write();
    }
  }
  ~Writing() { wait(); }
  void write() {
    try {
      result = steps.write(copied);
    } catch (...) {
      error = std::current_exception();
    }
    done.store(true, std::memory_order_release);
  }
  void wait() {
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
           device::Device& device, comm::Communicator& world, device::MemoryLedger& ledger,
           const FileLayout& layout)
    : writing_(std::make_unique<Writing>(root, state, pieces, device, world, ledger, layout)) {}

Save::~Save() = default;

std::int64_t Save::step() const { return writing_->steps.state().step; }

bool Save::written() const { return writing_->done.load(std::memory_order_acquire); }

fs::path Save::finish() {
  return writing_->steps.finish([&] {
    writing_->wait();
    if (writing_->error) std::rethrow_exception(writing_->error);
    return writing_->result;
  });
}

}  // namespace trireme::checkpoint
