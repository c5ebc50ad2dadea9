// Counter-based random numbers: a value is a pure function of (seed, purpose, stream, logical
// index), never of a rank or of how many numbers were drawn before. Philox4x32-10: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3" (SC11).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace trireme {

/// What a stream of numbers is for. Values are part of a seed's meaning: append, never renumber.
enum class Purpose : std::uint32_t {
  initialization = 1,
  dropout = 2,
  sample_order = 3,
  window_offset = 4,
  generation = 5,
  fault = 6,
  rounding = 7,
  packing = 8,
};

/// One stream of numbers. `stream` distinguishes users of one purpose: for initialization a hash of
/// the parameter's name; of dropout 0 for the embedding, and in block l 3l + 1 for attention,
/// 3l + 2 and 3l + 3 for what the branches of attention and MLP add.
struct RandomKey {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::initialization;
  std::uint32_t stream = 0;
};

/// Ten rounds of Philox4x32 on `counter` under `key`.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);

/// The 32-bit word of `index` in the stream of `key`: word index % 4 of the block with counter
/// {index / 4 low, index / 4 high, purpose, stream} under key {seed low, seed high}.
std::uint32_t random_bits(const RandomKey& key, std::uint64_t index);

/// The whole block that holds indices 4·block … 4·block + 3.
std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block);

/// In the open interval (0, 1): (w + 1/2) / 2^32, rounded to fp32 below 1.
float uniform(const RandomKey& key, std::uint64_t index);

/// Standard normal by Box–Muller from words 2·index and 2·index + 1 of the stream. log, sin and cos
/// are fixed polynomials in fp64 without contraction: the same bits on every machine.
double normal(const RandomKey& key, std::uint64_t index);

/// out[i] = normal(key, first + i), the same bits several times as fast.
void normals(const RandomKey& key, std::uint64_t first, std::span<double> out);

/// A keyed bijection of [0, size): the image of `index`. An eight-round balanced Feistel network
/// over the smallest even number of bits that holds size, with cycle walking; with four rounds the
/// orders of fewer than a dozen items are visibly not equally likely.
std::uint64_t permute(const RandomKey& key, std::uint64_t index, std::uint64_t size);

}  // namespace trireme
