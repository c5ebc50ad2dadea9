// make_seeds FOLDER: writes the seed file of piece_file_fuzz.
#include <cstring>

#include "checkpoint/piece_file.hpp"
#include "fuzz.hpp"

int main(int argc, char** argv) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  if (argc != 2) return 2;
  std::vector<std::byte> memory(1024);
  const auto data = [&](DType type, const Shape& shape) {
    return Tensor(memory.data(), type, shape);
  };
  std::vector<Piece> pieces{{"a/v", {9}, {}, data(DType::i64, {9}), true},
                            {"a/w", {4, 6}, {0, 2}, data(DType::f32, {4, 4}), true},
                            {"a/w", {4, 6}, {0, 0}, data(DType::f32, {4, 2}), true},
                            {"n", {5}, {}, data(DType::bf16, {5}), true},
                            {"h", {3}, {}, data(DType::f16, {3}), true}};
  for (int i = 0; i < 12; ++i) {
    pieces.push_back({fmt::format("many/t{}", i), {2}, {}, data(DType::f32, {2}), true});
  }
  std::vector<PlannedPiece> planned;
  std::vector<const Piece*> all;
  for (const Piece& piece : pieces) {
    planned.push_back(
        {piece.name, piece.data.type(), piece.shape, {piece.begin, piece.data.shape()}});
    all.push_back(&piece);
  }
  const std::filesystem::path path = std::filesystem::path(argv[1]) / "sound";
  std::filesystem::remove(path);
  const auto [bytes, places] = make_piece_file(path, planned, 2);
  write_pieces(path, all, places);
  std::printf("%s: %lld bytes\n", path.c_str(), static_cast<long long>(bytes));
  return 0;
}
