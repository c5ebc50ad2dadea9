// Every file operation of a save, an export and a preparation fails once, in every way.
#include <functional>
#include <map>
#include <utility>

#include <mpi.h>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/prepare.hpp"

#include "checkpoint/layouts.hpp"
#include "checkpoint/support.hpp"
#include "support/file_faults.hpp"

// libhdf5 1.10.8 leaks memory if one of its file operations fails.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): LeakSanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;
using trireme::test::Fault;

constexpr Fault faults[] = {Fault::no_space, Fault::io_error, Fault::short_write};

const char* reason_of(Fault fault) {
  return fault == Fault::no_space ? "No space left on device" : "Input/output error";
}

/// One readable line with the file and the system's reason.
void expect_told(const std::string& message, Fault fault, const fs::path& root) {
  EXPECT_THAT(message, HasSubstr(root.string()));
  EXPECT_THAT(message, HasSubstr(reason_of(fault)));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

/// Every file below `folder` with its content.
std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      content[fs::relative(entry.path(), folder).string()] = read_text(entry.path());
    }
  }
  return content;
}

class FileFaultsMpi : public testing::Test {
 protected:
  void SetUp() override {
    world_ = comm::make_mpi_communicator(MPI_COMM_WORLD, ledger_);
    std::string name = fmt::format("trireme_file_faults_{}_{}", size(), ::getpid());
    std::vector<std::uint8_t> bytes(name.begin(), name.end());
    world_->broadcast_bytes(bytes, 0);
    root_ = fs::absolute(testing::TempDir()) / std::string(bytes.begin(), bytes.end());
    if (rank() == 0) fs::create_directories(root_);
    world_->barrier();
  }
  void TearDown() override {
    world_->barrier();
    std::error_code ignored;
    if (rank() == 0) fs::remove_all(root_, ignored);
  }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }

  /// Its elements depend on the step.
  Whole weights(std::int64_t step) const {
    return make_whole("w", {size(), 3000}, DType::f32, static_cast<std::uint64_t>(step));
  }

  /// "" or the reason of the failure, the same on all ranks.
  std::string try_save(std::int64_t step, bool background, bool by_node = false) {
    FileLayout layout;  // two simulated nodes, a folder each
    if (by_node) layout = {.nodes = {}, .per_folder = 1};
    for (int r = 0; by_node && r < size(); ++r)
      layout.nodes.push_back(r < size() / 2 ? 0 : size() / 2);
    Whole whole = weights(step);
    const std::vector<Piece> pieces = {piece_of(whole, rank(), rank() + 1)};
    try {
      if (background) {
        Save save(root_, {.step = step}, pieces, device::host_device(), *world_, ledger_, layout);
        std::fill(whole.bytes.begin(), whole.bytes.end(), std::byte{0});  // training continues
        save.finish();
      } else {
        save(root_, {.step = step}, pieces, *world_, layout);
      }
    } catch (const AgreedError& error) {
      return error.what();
    }
    return "";
  }

  struct Way {
    bool background, by_node;
    bool replaces;  // the step is there already
    int culprit;
    Fault fault;
  };

  /// Saves with operation 1, 2, 3, … of the culprit failing, until none is left. Returns their
  /// number.
  std::int64_t sweep(const Way& way, std::int64_t& step, int& failed) {
    for (std::int64_t at = 1;; ++at) {
      const std::int64_t before = step;
      const std::int64_t next = way.replaces ? step : step + 1;
      if (rank() == way.culprit) {
        trireme_file_faults_arm(root_.c_str(), at, static_cast<int>(way.fault));
      }
      const std::string message = try_save(next, way.background, way.by_node);
      std::int64_t counted = 0;
      if (rank() == way.culprit) counted = trireme_file_faults_disarm();
      counted = world_->all_reduce(counted, comm::Reduction::max);
      if (rank() == 0) check(way, before, next, message);
      world_->barrier();
      if (message.empty()) step = next;
      failed += message.empty() ? 0 : 1;
      if (counted < at) {
        EXPECT_EQ(message, "");
        return counted;
      }
    }
  }

  /// Rank 0, while the others wait.
  void check(const Way& way, std::int64_t before, std::int64_t next, const std::string& message) {
    const std::string struck = trireme_file_faults_struck();
    SCOPED_TRACE(fmt::format("{} {} {} culprit {} {} {}: '{}'", way.background ? "background" : "",
                             way.by_node ? "by node" : "", way.replaces ? "replacing" : "",
                             way.culprit, reason_of(way.fault), struck, message));
    const fs::path old = root_ / fmt::format("step-{:08}", before);
    const fs::path fresh = root_ / fmt::format("step-{:08}", next);
    std::vector<std::string> passed_over;
    const auto found = newest(root_, &passed_over);
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(passed_over.empty()) << "half-written under a final name";
    if (message.empty()) {
      EXPECT_EQ(*found, fresh);
    } else {
      EXPECT_EQ(*found, old);
      expect_told(message, way.fault, root_);
      EXPECT_THAT(message,
                  testing::StartsWith(fmt::format("checkpoint not saved: rank {}: ", way.culprit)));
      EXPECT_NE(way.fault, Fault::short_write) << "must be continued";
      EXPECT_TRUE(way.replaces || !fs::exists(fresh));
    }
    expect_all_right(Reader(*found), {weights(message.empty() ? next : before)});
    expect_all_right(Reader(old), {weights(before)});  // the previous one, in any case
    std::vector<fs::path> aside;  // replaced ones that could not be verified are kept
    for (const auto& entry : fs::directory_iterator(root_)) {
      const std::string kind = entry.path().extension();
      if (kind.starts_with(".damaged")) aside.push_back(entry.path());
      EXPECT_TRUE(entry.path() == old || entry.path() == fresh || kind == ".tmp" ||
                  kind == ".old" || (way.replaces && message.empty() && kind == ".damaged"))
          << entry.path();
    }
    for (const fs::path& path : aside) fs::remove_all(path);
    prune(root_, 1);
    EXPECT_EQ(entries_below(root_), 1U) << "left behind by prune";
  }

  device::MemoryLedger ledger_;
  std::unique_ptr<comm::Communicator> world_;
  fs::path root_;
};

TEST_F(FileFaultsMpi, ASaveIsAtomic) {
  std::int64_t step = 1;
  ASSERT_EQ(try_save(step, false), "");
  int failed = 0;
  std::int64_t operations = 0;
  for (int way = 0; way < 8; ++way) {
    const bool background = (way & 1) != 0, replaces = (way & 2) != 0, by_node = (way & 4) != 0;
    if (by_node && (size() == 1 || replaces)) continue;
    for (const Fault fault : faults) {
      for (const int culprit : {0, size() - 1}) {
        operations += sweep({background, by_node, replaces, culprit, fault}, step, failed);
        if (size() == 1) break;
      }
    }
  }
  EXPECT_GT(operations, 100);
  EXPECT_GT(failed, operations / 4) << "most failures must be reported";
  if (rank() == 0) {
    printf("%d ranks: %lld file operations failed once, %d saves were reported as failed\n", size(),
           static_cast<long long>(operations), failed);
  }
}

/// Work of one rank.
class FileFaultsAlone : public FileFaultsMpi {
 protected:
  /// Runs `work` with operation 1, 2, 3, … below the root failing, until none is left. `before` and
  /// `check` run around it; `check` gets the message ("" on success).
  void sweep(const std::function<void()>& before, const std::function<void()>& work,
             const std::function<void(const std::string&)>& check) {
    for (const Fault fault : faults) {
      int failed = 0;
      std::int64_t at = 0, counted = 0;
      for (at = 1; counted >= at - 1; ++at) {
        before();
        trireme_file_faults_arm(root_.c_str(), at, static_cast<int>(fault));
        const std::string message = error_of(work);
        counted = trireme_file_faults_disarm();
        SCOPED_TRACE(fmt::format("{} at {}: {}: '{}'", reason_of(fault), at,
                                 trireme_file_faults_struck(), message));
        if (!message.empty()) expect_told(message, fault, root_);
        if (fault == Fault::short_write || counted < at) {
          EXPECT_EQ(message, "");
        }
        check(message);
        failed += message.empty() ? 0 : 1;
        if (HasFailure()) return;
      }
      printf("%s: %lld operations, %d failures reported\n",
             fault == Fault::short_write ? "short writes" : reason_of(fault),
             static_cast<long long>(counted), failed);
      EXPECT_TRUE(fault == Fault::short_write || failed > 1);
    }
  }
  /// The same for work that creates `folder`: it is absent, or equals `expected`.
  void sweep_folder(const fs::path& folder, const std::function<void()>& work) {
    work();
    const auto expected = content_of(folder);
    ASSERT_GT(expected.size(), 1U);
    sweep([&] { fs::remove_all(folder); }, work,
          [&](const std::string& message) {
            EXPECT_EQ(fs::exists(folder), message.empty());
            if (message.empty()) {
              EXPECT_TRUE(content_of(folder) == expected);
            }
          });
  }
};

TEST_F(FileFaultsAlone, PruningAndReading) {
  if (size() > 1) GTEST_SKIP() << "one rank's work";
  const auto save_all = [&] {
    for (int step = 1; step < 5; ++step) {
      if (!fs::exists(root_ / fmt::format("step-{:08}", step))) {
        ASSERT_EQ(try_save(step, false), "");
      }
    }
    fs::create_directory(root_ / "step-00000003.tmp");
  };
  const fs::path last = root_ / "step-00000004";
  sweep(
      save_all, [&] { prune(root_, 2); },
      [&](const std::string& message) {
        // A checkpoint that cannot be read counts as broken, and stays beside those kept.
        EXPECT_TRUE(!message.empty() || entries_below(root_) <= 3U);
        std::vector<std::string> passed_over;
        EXPECT_EQ(newest(root_, &passed_over), last);
        EXPECT_TRUE(passed_over.empty());
        for (const auto& entry : fs::directory_iterator(root_)) {
          if (entry.path().extension().empty()) Reader(entry.path()).verify();
        }
        prune(root_, 2);
        EXPECT_EQ(entries_below(root_), 2U);
      });
  sweep([] {},
        [&] {
          const Reader reader(last);
          expect_all_right(reader, {weights(4)});
          reader.verify();
        },
        [](const std::string&) {});
}

TEST_F(FileFaultsAlone, Export) {
  if (size() > 1) GTEST_SKIP() << "one rank's work";
  model::ModelConfig config;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.vocabulary = 31;
  config.sequence = 8;
  config.resolve();
  const model::Transformer model(config);
  Rank holder(model.table(), {}, 0);
  holder.set_expected(1);
  holder.fill();
  std::vector<Piece> pieces;
  holder.append(pieces);
  const Reader reader(save(root_, {.step = 1}, pieces, *world_));
  const fs::path output = root_ / "exported";
  sweep_folder(output, [&] {
    export_safetensors(reader, config, {.output = output, .file_bytes = 20'000});
  });
}

TEST_F(FileFaultsAlone, Prepare) {
  if (size() > 1) GTEST_SKIP() << "one rank's work";
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format("{} rowers\n", i * i);
  trireme::test::write_text(root_ / "text", text);
  data::PrepareOptions options;
  options.inputs = {root_ / "text"};
  options.output = root_ / "made" / "dataset";  // and its parent folder
  options.documents = "line";
  options.shard_tokens = 20'000;
  sweep_folder(options.output, [&] { data::prepare(options, {}); });
  data::Dataset::open(options.output).verify();
}

}  // namespace
}  // namespace trireme::checkpoint::test
