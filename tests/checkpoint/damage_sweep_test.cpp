// One flipped bit or a truncation, anywhere in a file: refused with the file's name, or all data
// read are unchanged. DAMAGES of them (default 1,000) are divided among the kinds of file and drawn
// from SEED. Loads run in child processes, so that a crash or a hang is reported with its seed.
#include <functional>
#include <random>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/prepare.hpp"
#include "trireme/data/tokenizer.hpp"

#include "checkpoint/support.hpp"

namespace trireme::checkpoint::test {
namespace {

/// A kind of file: `make` fills a folder and returns the file to damage; `load` reads all that the
/// program would, and throws Error or returns what differs.
struct Kind {
  const char* name;
  std::function<fs::path(const fs::path&)> make;
  std::function<std::string(const fs::path&)> load;
};

std::vector<Whole> tensors() {
  return {make_whole("m/v", {900}, DType::i64, 2), make_whole("m/w", {40, 60}, DType::f32, 1),
          make_whole("n", {50}, DType::bf16, 3)};
}

fs::path save_checkpoint(const fs::path& folder) {
  std::vector<Whole> wholes = tensors();
  const auto world = comm::make_self_communicator();
  const State state{.step = 5,
                    .samples = 77,
                    .seed = 3,
                    .config = {{"layers", 2}},
                    .versions = {{"trireme", "0"}},
                    .extra = {{"note", "text"}}};
  return save(folder, state,
              {piece_of(wholes[0]), piece_of(wholes[1], {{}, {40, 20}}),
               piece_of(wholes[1], {{0, 20}, {40, 40}}), piece_of(wholes[2])},
              *world);
}

std::string load_checkpoint(const fs::path& folder) {
  const Reader reader(folder / "step-00000005");
  const State& state = reader.state();
  if (state.step != 5 || state.samples != 77 || state.seed != 3 || state.config["layers"] != 2 ||
      state.extra["note"] != "text" || state.versions["trireme"] != "0") {
    return "the state";
  }
  const std::vector<Whole> wholes = tensors();
  if (reader.tensors().size() != wholes.size()) return "the number of tensors";
  for (const Whole& whole : wholes) {
    if (reader.find(whole.name) == nullptr) return whole.name + " is missing";
    if (!slice_is_right(reader, whole, region_of(whole.shape))) return whole.name;
  }
  return "";
}

std::string prose_of(int documents) {
  std::string text;
  for (int i = 0; i < documents; ++i) text += fmt::format("{} oars and {} waves\n", i, i * i);
  return text;
}

/// `documents` lines as characters; with 20,000 the shards have an index of several chunks.
fs::path prepare_dataset(const fs::path& folder, int documents) {
  trireme::test::write_text(folder / "text", prose_of(documents));
  data::PrepareOptions options;
  options.inputs = {folder / "text"};
  options.output = folder / "set";
  options.documents = "line";
  options.tokenizer = "characters";
  options.valid_fraction = 0.25;
  data::prepare(options, {});
  return options.output;
}

std::string load_dataset(const fs::path& folder, int documents) {
  const data::Dataset dataset = data::Dataset::open(folder / "set");
  const data::Manifest& manifest = dataset.manifest();
  if (manifest.name != "set" || !manifest.end_of_document) return "the manifest";
  const auto tokenizer = data::load_tokenizer(dataset);
  std::string text;
  for (const data::SplitName split : {data::SplitName::train, data::SplitName::valid}) {
    const auto reader = dataset.reader(split);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(reader->tokens()));
    reader->read(0, tokens);
    std::int64_t begin = 0;
    for (const std::int64_t end : reader->document_ends(0, reader->tokens())) {
      if (tokens[static_cast<std::size_t>(end - 1)] != *manifest.end_of_document) {
        return "an end of document";
      }
      const std::vector<std::int32_t> line(tokens.begin() + begin, tokens.begin() + end - 1);
      text += tokenizer->decode(line) + "\n";
      begin = end;
    }
  }
  return text == prose_of(documents) ? "" : "the text";
}

std::vector<float> safetensors_values() {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5F;
  return values;
}

fs::path write_safetensors(const fs::path& folder) {
  fs::path path = folder / "model.safetensors";
  SafeTensorsWriter writer(
      path, {{"a", "F32", {10, 20}}, {"b", "F32", {700}}, {"c", "BF16", {100}}}, {{"k", "v"}});
  writer.write(safetensors_values().data(), 1000);
  writer.finish();
  return path;
}

std::string load_safetensors(const fs::path& folder) {
  const SafeTensorsFile file(folder / "model.safetensors");
  file.verify();
  std::vector<float> all;
  for (const char* name : {"a", "b", "c"}) {
    const SafeTensor* tensor = file.find(name);
    if (tensor == nullptr) throw Error("{}: lacks tensor {}", file.path().string(), name);
    std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
    file.read(*tensor, 0, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  std::vector<float> expected = safetensors_values();
  expected.resize(900);  // those of c are rounded
  all.resize(900);
  return all == expected ? "" : "the values";
}

const Kind kinds[] = {
    {"checkpoint file", [](const fs::path& at) { return save_checkpoint(at) / "rank-00000.h5"; },
     load_checkpoint},
    {"checkpoint manifest",
     [](const fs::path& at) { return save_checkpoint(at) / "manifest.json"; }, load_checkpoint},
    {"shard", [](const fs::path& at) { return prepare_dataset(at, 100) / "train-00000.h5"; },
     [](const fs::path& at) { return load_dataset(at, 100); }},
    {"shard of several chunks",
     [](const fs::path& at) { return prepare_dataset(at, 9000) / "train-00000.h5"; },
     [](const fs::path& at) { return load_dataset(at, 9000); }},
    {"dataset manifest",
     [](const fs::path& at) { return prepare_dataset(at, 100) / "dataset.json"; },
     [](const fs::path& at) { return load_dataset(at, 100); }},
    {"safetensors", write_safetensors, load_safetensors}};

/// A flipped bit, half of the time in a nonzero byte; every fifth a truncation.
std::string damaged(const std::string& sound, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes = sound;
  std::size_t at = random() % bytes.size();
  if (seed % 5 == 0) {
    bytes.resize(at);
    return bytes;
  }
  if (random() % 2 == 0) {
    while (bytes[at] == 0) at = random() % bytes.size();
  }
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
  return bytes;
}

/// Shared with the child, however it ends.
struct Outcome {
  std::uint64_t seed = 0;  // the last one started
  std::int64_t refused = 0, equal = 0;
  char fault[1024] = {};
};

/// The child's loop: `count` damages from `seed` on.
void try_all(const Kind& kind, const fs::path& folder, const fs::path& file,
             const std::string& sound, std::uint64_t seed, std::int64_t count, Outcome& outcome) {
  for (std::int64_t i = 0; i < count && outcome.fault[0] == '\0'; ++i) {
    outcome.seed = seed + static_cast<std::uint64_t>(i);
    ::alarm(60);
    spill(file, damaged(sound, outcome.seed));
    std::string fault;
    try {
      fault = kind.load(folder);
      if (!fault.empty()) fault.insert(0, "read without an error, and differs: ");
      ++outcome.equal;
    } catch (const Error& error) {
      const std::string message = error.what();
      if (message.find(file.string()) == std::string::npos) fault = "does not name it: " + message;
      if (message.find('\n') != std::string::npos) fault = "is not one line: " + message;
      ++outcome.refused;
    } catch (const std::exception& error) {
      fault = std::string("is no Error: ") + error.what();
    }
    std::snprintf(outcome.fault, sizeof outcome.fault, "%s", fault.c_str());
  }
}

std::int64_t number(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

class DamageSweep : public testing::TestWithParam<int> {};

TEST_P(DamageSweep, IsRefusedOrHarmless) {
  const Kind& kind = kinds[GetParam()];
  const std::int64_t all = (number("DAMAGES", 1000) + std::ssize(kinds) - 1) / std::ssize(kinds);
  const auto first =
      static_cast<std::uint64_t>(number("SEED", static_cast<std::int64_t>(std::random_device{}())));
  const Scratch scratch;
  const fs::path file = kind.make(scratch.path());
  const std::string sound = read_text(file);
  ASSERT_EQ(kind.load(scratch.path()), "");
  void* shared =
      ::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& outcome = *new (shared) Outcome;
  constexpr std::int64_t batch = 100;
  long most_memory = 0;  // KiB
  for (std::int64_t done = 0; done < all; done += batch) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try_all(kind, scratch.path(), file, sound, first + static_cast<std::uint64_t>(done),
              std::min(batch, all - done), outcome);
      ::_exit(0);
    }
    int status = 0;
    rusage usage{};
    ASSERT_EQ(::wait4(child, &status, 0, &usage), child);
    most_memory = std::max(most_memory, usage.ru_maxrss);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << kind.name << ", SEED=" << outcome.seed << " DAMAGES=1: "
        << (WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "ended by itself");
    ASSERT_STREQ(outcome.fault, "") << kind.name << ", SEED=" << outcome.seed << " DAMAGES=1";
  }
  printf("%s: SEED=%llu: %lld refused, %lld read equal, at most %ld MiB\n", kind.name,
         static_cast<unsigned long long>(first), static_cast<long long>(outcome.refused),
         static_cast<long long>(outcome.equal), most_memory / 1024);
  EXPECT_EQ(outcome.refused + outcome.equal, all);
  if (all >= 50) {
    EXPECT_GT(outcome.refused, all / 5) << "truncations alone are that many";
  }
  EXPECT_LT(most_memory, 2L << 20) << "a size was used before it was checked";
  ::munmap(shared, sizeof(Outcome));
}

INSTANTIATE_TEST_SUITE_P(Files, DamageSweep, testing::Range(0, 6));

}  // namespace
}  // namespace trireme::checkpoint::test
