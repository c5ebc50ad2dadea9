#include <algorithm>
#include <csetjmp>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <ucontext.h>

#include "trireme/core/error.hpp"

#include "language.cuh"

namespace trireme::emulator {
namespace {

constexpr std::size_t stack_bytes = 128U << 10;
constexpr int lanes = 32;

/// Threads that wait for each other. Finished threads count as arrived.
struct Barrier {
  int expected = 0, arrived = 0;
  std::uint64_t generation = 0;
  bool settle() {
    if (arrived < expected || expected == 0) return false;
    arrived = 0;
    ++generation;
    return true;
  }
};

struct Warp {
  Barrier barrier;
  std::uint64_t exchanges[lanes] = {};  // per lane, to find its buffer
  std::uint32_t words[2][lanes][16] = {};
};

struct Fiber {
  ucontext_t context{};  // only for its start: swapping contexts costs a system call
  std::jmp_buf place;
  bool started = false;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
  dim3 index;
  int number = 0;
  bool ended = false;
};

struct Machine {
  Order order = Order::forwards;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  Barrier block;
  std::vector<uint4> shared;
  std::jmp_buf scheduler;
  Fiber* current = nullptr;
  const std::function<void()>* body = nullptr;
  std::uint64_t progress = 0;
  std::uint32_t random = 12345;
  std::string failure;
  int launches = 0;
};

Machine& machine() {
  static Machine all;
  return all;
}

void to_scheduler() {
  if (_setjmp(machine().current->place) == 0) _longjmp(machine().scheduler, 1);
}

/// Runs a fiber until it waits. A separate function: nothing in it changes between the two jumps.
[[gnu::noinline]] void resume(Fiber& fiber) {
  if (_setjmp(machine().scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

void wait(Barrier& barrier) {
  const std::uint64_t generation = barrier.generation;
  ++barrier.arrived;
  if (barrier.settle()) {
    ++machine().progress;
    return;
  }
  while (barrier.generation == generation) to_scheduler();
}

Warp& warp_of(const Fiber& fiber) {
  return machine().warps[static_cast<std::size_t>(fiber.number / lanes)];
}

void end_fiber() {
  Machine& m = machine();
  Fiber& fiber = *m.current;
  fiber.ended = true;
  ++m.progress;
  for (Barrier* barrier : {&m.block, &warp_of(fiber).barrier}) {
    --barrier->expected;
    barrier->settle();
  }
}

void fiber_main() {
  (*machine().body)();
  end_fiber();
  to_scheduler();
}

void start_fibers(dim3 block) {
  Machine& m = machine();
  const int threads = static_cast<int>(block.x * block.y * block.z);
  while (m.fibers.size() < static_cast<std::size_t>(threads)) {
    m.fibers.push_back(std::make_unique<Fiber>());
  }
  m.warps.assign(static_cast<std::size_t>((threads + lanes - 1) / lanes), Warp{});
  m.block = Barrier{threads};
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = *m.fibers[static_cast<std::size_t>(i)];
    const auto u = static_cast<unsigned>(i);
    fiber.index = {u % block.x, u / block.x % block.y, u / block.x / block.y};
    fiber.number = i;
    fiber.ended = fiber.started = false;
    ++warp_of(fiber).barrier.expected;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
  }
}

void arrange(std::vector<int>& numbers) {
  Machine& m = machine();
  std::iota(numbers.begin(), numbers.end(), 0);
  if (m.order == Order::backwards) std::reverse(numbers.begin(), numbers.end());
  if (m.order != Order::shuffled) return;
  for (std::size_t i = numbers.size(); i > 1; --i) {
    m.random = m.random * 1664525U + 1013904223U;
    std::swap(numbers[i - 1], numbers[(m.random >> 8) % i]);
  }
}

void run_fiber(Fiber& fiber) {
  if (fiber.ended) return;
  machine().current = &fiber;
  threadIdx = fiber.index;
  resume(fiber);
}

void run_block(const char* name, dim3 block) {
  Machine& m = machine();
  // Unwritten memory is NaN in every type.
  std::memset(static_cast<void*>(m.shared.data()), 0xff, m.shared.size() * sizeof(uint4));
  start_fibers(block);
  std::vector<int> numbers(block.x * block.y * block.z);
  for (bool alive = true; alive;) {
    const std::uint64_t before = m.progress;
    alive = false;
    arrange(numbers);
    for (std::size_t first = 0; first < numbers.size(); first += lanes) {
      // A warp runs as far as it can before the next one.
      for (std::uint64_t last = m.progress + 1; last != m.progress;) {
        last = m.progress;
        for (std::size_t i = first; i < first + lanes && i < numbers.size(); ++i) {
          run_fiber(*m.fibers[static_cast<std::size_t>(numbers[i])]);
        }
        if (m.order == Order::shuffled) break;
      }
    }
    for (const int i : numbers) alive |= !m.fibers[static_cast<std::size_t>(i)]->ended;
    if (!m.failure.empty()) throw Error("{}: {}", name, m.failure);
    if (alive && m.progress == before) {
      throw Error("{}: threads of block {} wait for one another", name, blockIdx.x);
    }
  }
}

}  // namespace

void set_order(Order order) { machine().order = order; }

int launches() { return machine().launches; }

void run(const char* name, dim3 grid, dim3 block, std::size_t shared,
         const std::function<void()>& body) {
  Machine& m = machine();
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  const unsigned threads = block.x * block.y * block.z;
  // Launches that CUDA refuses.
  if (blocks == 0 || grid.x > 0x7fffffffU || grid.y > 65535 || grid.z > 65535 || threads == 0 ||
      threads > 1024 || block.z > 64 || shared > (227U << 10)) {
    throw Error("{}: grid {} {} {}, block {} {} {}, shared memory {}", name, grid.x, grid.y, grid.z,
                block.x, block.y, block.z, shared);
  }
  m.body = &body;
  ++m.launches;
  m.failure.clear();
  m.shared.resize(shared / sizeof(uint4) + 1);
  gridDim = grid;
  blockDim = block;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t at = m.order == Order::forwards ? i : blocks - 1 - i;
    blockIdx = {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                static_cast<unsigned>(at / grid.x / grid.y)};
    run_block(name, block);
  }
}

void block_barrier() { wait(machine().block); }

int lane() { return machine().current->number % lanes; }

const std::uint32_t (*exchange(const std::uint32_t (&words)[16]))[16] {
  Warp& warp = warp_of(*machine().current);
  const int own = lane();
  auto& buffer = warp.words[warp.exchanges[own]++ % 2];
  std::memcpy(buffer[own], words, sizeof(words));
  wait(warp.barrier);
  return buffer;
}

char* shared_memory() { return reinterpret_cast<char*>(machine().shared.data()); }

void fail(const char* what, long long a, long long b) {
  machine().failure = fmt::format("{}: {}, {}", what, a, b);
  end_fiber();
  to_scheduler();
}

}  // namespace trireme::emulator

namespace trireme::ops {
namespace {

using Half = std::uint16_t;

template <class Place>
void load(std::uint32_t (&word)[4], const void* row, const Place& place) {
  std::uint32_t words[16] = {};
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    emulator::fail("ldmatrix of an unaligned row", emulator::lane(), 0);
  }
  std::memcpy(words, row, 16);
  const auto* all = emulator::exchange(words);
  for (int matrix = 0; matrix < 4; ++matrix) {
    Half pair[2];
    for (int i = 0; i < 2; ++i) {
      const auto [r, c] = place(emulator::lane() / 4, 2 * (emulator::lane() % 4) + i);
      std::memcpy(&pair[i], reinterpret_cast<const char*>(all[8 * matrix + r]) + 2 * c, 2);
    }
    std::memcpy(&word[matrix], pair, sizeof(pair));
  }
}

template <class Widen>
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
              const Widen& widen) {
  const std::uint32_t words[16] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto* all = emulator::exchange(words);
  const auto half = [&](int lane, int word, int which) {
    return widen(static_cast<Half>(all[lane][word] >> (16 * which)));
  };
  const int g = emulator::lane() / 4, t = 2 * (emulator::lane() % 4);
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = t + i % 2;
    float sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;  // lane within its group of four
      const float left = half(4 * (row % 8) + pair, row / 8 + 2 * (k / 8), k % 2);
      sum += left * half(4 * column + pair, 4 + k / 8, k % 2);
    }
    c[i] = sum;
  }
}

}  // namespace

void load_matrices(std::uint32_t (&word)[4], const void* row) {
  load(word, row, [](int r, int c) { return std::pair(r, c); });
}
void load_matrices_transposed(std::uint32_t (&word)[4], const void* row) {
  load(word, row, [](int r, int c) { return std::pair(c, r); });
}
void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply(c, a, b0, b1, [](Half bits) { return bf16_to_float(bits); });
}
void multiply_fp16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply(c, a, b0, b1, [](Half bits) { return fp16_to_float(bits); });
}

}  // namespace trireme::ops
