// Manifests of very large runs: linear time, bounded memory.
#include "checkpoint/manifest.hpp"

#include <ctime>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/model/transformer.hpp"

#include "checkpoint/support.hpp"
#include "support/peak_memory.hpp"

namespace trireme::checkpoint::test {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr double slower = 20;  // than on an idle machine without sanitizers, at most
#else
constexpr double slower = 2;
#endif

/// Parses in 5 s a million pieces and in ten times the text's bytes, and compares.
void expect_parsed(const Manifest& manifest) {
  const std::string text = to_text(manifest);
  const trireme::test::PeakMemory peak;
  const std::clock_t begin = std::clock();  // of this process alone
  const Manifest parsed = parse_manifest(text, "manifest.json");
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const auto count = static_cast<double>(manifest.pieces.size());
  fmt::print("{} pieces, {} bytes: {:.2f} s, {:.0f} bytes more than before\n",
             manifest.pieces.size(), text.size(), seconds, peak.bytes());
  EXPECT_LT(seconds, slower * std::max(1.0, 5e-6 * count));
  EXPECT_LT(peak.bytes(), slower * 5 * static_cast<double>(text.size()));
  ASSERT_EQ(parsed.pieces.size(), manifest.pieces.size());
  for (std::size_t p = 0; p < parsed.pieces.size(); ++p) {
    const PieceRecord &a = parsed.pieces[p], &b = manifest.pieces[p];
    ASSERT_TRUE(a.tensor == b.tensor && a.file == b.file && a.dataset == b.dataset &&
                a.box.begin == b.box.begin && a.box.extent == b.box.extent && a.blocks == b.blocks)
        << p;
  }
}

TEST(Manifest, AMillionPiecesAreParsedInSeconds) {
  constexpr std::int64_t count = 1'000'000;
  Manifest manifest;
  manifest.tensors = {{"parameters/w", {count, 16}, DType::f32}};
  manifest.files = {{"rank-00000.h5", "", 64 * count}};
  for (std::int64_t row = 0; row < count; ++row) {
    manifest.pieces.push_back({0,
                               {{row, 0}, {1, 16}},
                               0,
                               fmt::format("parameters/w@{},0", row),
                               {static_cast<std::uint64_t>(row)}});
  }
  expect_parsed(manifest);
}

// What 10,000 ranks write that share the state of a model of 216 M parameters.
TEST(Manifest, OfTenThousandRanksWithShardedState) {
  constexpr int ranks = 10'000;
  model::ModelConfig config;
  config.layers = 2;
  config.width = 2048;
  config.heads = 16;
  config.hidden = 5632;
  config.vocabulary = 32'000;
  config.norm = "rmsnorm";
  config.position = "rotary";
  config.activation = "swiglu";
  config.bias = config.tied = false;
  config.resolve();
  const model::Transformer model(config);
  const params::Layout layout(model.table(), {{0, config.layers + 2}}, {});
  state::StateOptions options;
  options.zero = 3;
  options.serves = options.train = true;  // shards alone
  Manifest manifest;
  std::map<std::string, std::size_t> index;
  for (const char* prefix : {"adamw.moment1/", "adamw.moment2/", "parameters/"}) {
    for (const params::Parameter& row : model.table().rows()) index.emplace(prefix + row.name, 0);
  }
  for (auto& [name, number] : index) {
    number = manifest.tensors.size();
    const auto row = model.table().find(name.substr(name.find('/') + 1));
    manifest.tensors.push_back({name, model.table().row(*row).shape, DType::f32});
  }
  device::MemoryLedger ledger;
  for (int rank = 0; rank < ranks; ++rank) {
    const state::ModelState state(layout, state::ShardMap(layout, ranks, rank), options, ledger);
    std::vector<Piece> pieces;
    for (const char* prefix : {"parameters", "adamw.moment1", "adamw.moment2"}) {
      append_pieces(pieces, prefix, state, state.parameters(), true, {rank, ranks});
    }
    FileRecord file{fmt::format("rank-{:05}.h5", rank), fmt::format("part-{:03}", rank / 1000), 0};
    for (const Piece& piece : pieces) {
      const auto bytes = static_cast<std::int64_t>(piece.data.bytes());
      file.bytes += bytes;
      manifest.pieces.push_back(
          {index.at(piece.name),
           {piece.begin, piece.data.shape()},
           manifest.files.size(),
           fmt::format("{}@{}", piece.name, manifest.pieces.size()),
           std::vector<std::uint64_t>(static_cast<std::size_t>(block_count(bytes)), 7)});
    }
    if (file.bytes > 0) manifest.files.push_back(std::move(file));
  }
  EXPECT_EQ(manifest.files.size(), ranks);
  sort_and_check_cover("pieces", manifest.tensors, manifest.pieces);
  expect_parsed(manifest);
}

TEST(Manifest, PiecesMayPrecedeWhatTheyName) {
  Manifest manifest;
  manifest.tensors = {{"a", {2}, DType::f32}, {"b", {3}, DType::f32}};
  manifest.files = {{"x.h5", "", 8}, {"y.h5", "", 12}};
  manifest.pieces = {{0, {{0}, {2}}, 0, "a", {1}}, {1, {{0}, {3}}, 1, "b", {2}}};
  const std::string text = to_text(manifest);
  json values = json::parse(text.substr(text.find('\n') + 1).insert(0, "{"));
  const std::string rest = values.dump().substr(1) + "\n";  // keys in alphabetical order
  ASSERT_LT(rest.find("\"pieces\""), rest.find("\"tensors\""));
  const Manifest parsed = parse_manifest(
      "{\"manifest_xxh3\": \"" + data::hash_text(rest) + "\",\n" + rest, "manifest.json");
  ASSERT_EQ(parsed.pieces.size(), 2U);
  EXPECT_EQ(parsed.pieces[1].tensor, 1U);
  EXPECT_EQ(parsed.pieces[1].file, 1U);
}

}  // namespace
}  // namespace trireme::checkpoint::test
