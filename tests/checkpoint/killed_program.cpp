// Ranks that save until one of them is killed with SIGKILL: killed_program ROOT SEED. First rank 0
// checks what the previous launch left in ROOT. It prints in which part of a save that launch ended
// ("landed: …"). The newest checkpoint must be intact, hold the values of its step and not be older
// than the last completed save; nothing broken may have a final name; prune must remove leftovers.
// A violation prints "FAILED: …" and exits with 3. Then all ranks save, in the foreground or
// background, by rank or by simulated node, and one rank dies at a random time or before a random
// file operation, all drawn from SEED. With SEED 0 it ends after the check.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"

#include "support/file_faults.hpp"

namespace {

namespace fs = std::filesystem;
using trireme::Error;
using trireme::Shape;
using trireme::Tensor;
using trireme::checkpoint::Piece;
using trireme::checkpoint::Reader;

constexpr std::int64_t columns = 30'000;
constexpr int keep = 2;
constexpr const char* names[] = {"adamw.moment1/w", "parameters/w"};

/// What a rank was doing when it died, in a memory-mapped file.
struct Note {
  std::int64_t saving = 0;     // the step, or 0
  std::int64_t committed = 0;  // the last step whose save has returned
  std::int64_t pruning = 0;    // 1 while pruning
};

Note* map_note(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0 || ::ftruncate(file, sizeof(Note)) != 0) throw Error("{}: no note", path.string());
  void* at = ::mmap(nullptr, sizeof(Note), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (at == MAP_FAILED) throw Error("{}: no note", path.string());
  return static_cast<Note*>(at);
}

/// Element `i` of tensor `t` after `step`: a hash (the finalizer of MurmurHash3).
std::int64_t value(std::int64_t step, std::int64_t t, std::int64_t i) {
  auto x = static_cast<std::uint64_t>((step * 2 + t) * 1'000'003 + i);
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<std::int64_t>(x ^ (x >> 33));
}

[[noreturn]] void fail(const std::string& why) {
  std::printf("FAILED: %s\n", why.c_str());
  std::fflush(stdout);
  std::_Exit(3);
}

void expect_right(const Reader& reader) {
  for (std::int64_t t = 0; t < 2; ++t) {
    const auto* entry = reader.find(names[t]);
    if (entry == nullptr) fail(reader.folder().string() + ": a tensor is missing");
    std::vector<std::int64_t> data(static_cast<std::size_t>(entry->shape.elements()));
    reader.read(names[t], {}, Tensor(data.data(), trireme::DType::i64, entry->shape));
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (data[i] != value(reader.state().step, t, static_cast<std::int64_t>(i))) {
        fail(fmt::format("{}: element {} is not of its step", reader.folder().string(), i));
      }
    }
  }
}

/// Where in a save the previous launch ended, from its files.
std::string place(const fs::path& root, const Note& note, std::int64_t newest) {
  const fs::path temporary = root / fmt::format("step-{:08}.tmp", note.saving);
  if (note.pruning != 0) return "pruning";
  if (note.saving == 0) return "between saves";
  if (fs::exists(temporary)) {
    if (newest == note.saving) return "the replaced one being removed";
    return fs::exists(temporary / "manifest.json") ? "manifest and rename" : "files";
  }
  return newest == note.saving ? "renamed, not yet reported" : "before the first file";
}

/// The newest step, after checking all guarantees; 0 in an empty folder.
std::int64_t look(const fs::path& root, Note& note) {
  std::vector<std::string> passed_over;
  const auto found = fs::exists(root) ? trireme::checkpoint::newest(root, &passed_over)
                                      : std::optional<fs::path>();
  if (!passed_over.empty()) fail("broken under a final name: " + passed_over.front());
  if (!found) {
    if (note.committed != 0) fail("no checkpoint is left");
    std::printf("landed: before the first checkpoint\n");
    return 0;
  }
  const Reader reader(*found);
  const std::int64_t step = reader.state().step;
  std::printf("landed: %s\n", place(root, note, step).c_str());
  if (step < note.committed) {
    fail(fmt::format("step {} was saved, {} is the newest", note.committed, step));
  }
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!entry.path().has_extension()) expect_right(Reader(entry.path()));
  }
  trireme::checkpoint::prune(root, keep);
  int left = 0;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().has_extension()) fail(entry.path().string() + ": left by prune");
    ++left;
  }
  if (left > keep) fail("prune keeps more than configured");
  return step;
}

void save(const fs::path& root, std::int64_t step, bool background, bool by_node,
          trireme::comm::Communicator& world, trireme::device::MemoryLedger& ledger) {
  trireme::checkpoint::FileLayout layout;
  for (int r = 0; by_node && r < world.size(); ++r) layout.nodes.push_back(r / 2 * 2);
  std::vector<std::int64_t> data[2];
  std::vector<Piece> pieces;
  const std::int64_t first = world.rank() * columns;
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t i = 0; i < columns; ++i) data[t].push_back(value(step, t, first + i));
    pieces.push_back({names[t],
                      Shape{world.size(), columns},
                      {world.rank()},
                      Tensor(data[t].data(), trireme::DType::i64, Shape{1, columns})});
  }
  if (!background) {
    trireme::checkpoint::save(root, {.step = step}, pieces, world, layout);
    return;
  }
  trireme::checkpoint::Save save(root, {.step = step}, pieces, trireme::device::host_device(),
                                 world, ledger, layout);
  for (auto& each : data) each.assign(each.size(), -1);  // training continues
  while (!world.all_agree(save.written())) std::this_thread::yield();
  save.finish();
}

int run(trireme::comm::Session& session, const fs::path& root, std::uint64_t seed) {
  trireme::device::MemoryLedger ledger;
  const auto world = trireme::comm::make_mpi_communicator(session.world(), ledger);
  Note& note = *map_note(root.string() + fmt::format(".note-{}", world->rank()));
  std::int64_t step = 0;
  if (world->rank() == 0) step = look(root, note);
  std::fflush(stdout);
  step = world->all_reduce(step, trireme::comm::Reduction::max);
  note.saving = note.pruning = 0;
  if (seed == 0) return 0;
  std::mt19937_64 random(seed);
  const bool background = random() % 2 == 0;
  const bool by_node = random() % 2 == 0;
  const bool by_operation = random() % 2 == 0;
  // Rank 0 does everything except the other ranks' files.
  const int culprit = by_operation && random() % 2 == 0 ? 0 : static_cast<int>(random() % 4);
  const std::uint64_t chance = random();
  std::thread killer;
  world->barrier();
  if (world->rank() == culprit && by_operation) {
    const auto at = static_cast<long>(1 + chance % (culprit == 0 ? 160 : 60));
    trireme_file_faults_arm(root.c_str(), at, static_cast<int>(trireme::test::Fault::kill));
  } else if (world->rank() == culprit) {
    killer = std::thread([chance] {
      std::this_thread::sleep_for(std::chrono::microseconds(chance % 60'000));
      ::kill(::getpid(), SIGKILL);
    });
  }
  for (int round = 0; round < 1000; ++round) {
    if (round % 4 != 3) ++step;  // else replaces the existing one
    note.saving = step;
    save(root, step, background, by_node, *world, ledger);
    note.committed = step;
    note.saving = 0;
    note.pruning = world->rank() == 0 ? 1 : 0;
    if (world->rank() == 0) trireme::checkpoint::prune(root, keep);
    note.pruning = 0;
    world->barrier();
  }
  fail("no rank died");
}

}  // namespace

int main(int argc, char** argv) {
  trireme::comm::Session session(&argc, &argv);
  if (argc != 3) {
    std::fputs("killed_program ROOT SEED\n", stderr);
    session.abort(2);
  }
  try {
    return run(session, fs::absolute(argv[1]), std::strtoull(argv[2], nullptr, 10));
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    std::fflush(stdout);
    session.abort(3);
  }
}
