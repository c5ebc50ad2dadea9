#include "trireme/device/memory.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::device {
namespace {

TEST(MemoryLedger, RecordsHeldAndPeakBytesByUse) {
  MemoryLedger ledger;
  ledger.add(Use::stash, 100);
  ledger.add(Use::stash, 50);
  ledger.add(Use::stash, -120);
  ledger.add(Use::batch, 7);
  EXPECT_EQ(ledger.held(Use::stash), 30);
  EXPECT_EQ(ledger.peak(Use::stash), 150);
  EXPECT_EQ(ledger.peak(Use::batch), 7);
  EXPECT_EQ(ledger.held(Use::parameters), 0);
  EXPECT_THROW(ledger.add(Use::batch, -8), std::logic_error);
}

TEST(MemoryLedger, NamesEveryUse) {
  std::vector<std::string_view> names;
  for (int use = 0; use < static_cast<int>(Use::count); ++use) {
    names.push_back(name_of(static_cast<Use>(use)));
    EXPECT_EQ(std::count(names.begin(), names.end(), names.back()), 1);
  }
  EXPECT_EQ(name_of(Use::communication), "communication");
}

TEST(MemoryLedger, CountsFromManyThreads) {
  MemoryLedger ledger;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        ledger.add(Use::workspace, 3);
        ledger.add(Use::workspace, -2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.held(Use::workspace), 40'000);
  EXPECT_GE(ledger.peak(Use::workspace), 40'000);
}

TEST(Buffer, IsAlignedZeroedAndEnteredInTheLedger) {
  MemoryLedger ledger;
  {
    const Buffer buffer(ledger, Use::gradients, 1001);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + 1001,
                            [](std::byte each) { return each == std::byte{0}; }));
    EXPECT_EQ(ledger.held(Use::gradients), 1001);
  }
  EXPECT_EQ(ledger.held(Use::gradients), 0);
  EXPECT_EQ(ledger.peak(Use::gradients), 1001);
}

TEST(Buffer, MovesItsEntry) {
  MemoryLedger ledger;
  Buffer first(ledger, Use::stash, 64);
  first.data()[5] = std::byte{9};
  Buffer second(std::move(first));
  EXPECT_EQ(second.data()[5], std::byte{9});
  // The state after a move is part of the contract.
  // NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(first.data(), nullptr);
  // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(ledger.held(Use::stash), 64);
  second = Buffer(ledger, Use::batch, 32);
  EXPECT_EQ(ledger.held(Use::stash), 0);
  EXPECT_EQ(ledger.held(Use::batch), 32);
  second = Buffer();
  EXPECT_EQ(ledger.held(Use::batch), 0);
}

TEST(Buffer, ViewsStayInside) {
  MemoryLedger ledger;
  const Buffer buffer(ledger, Use::stash, 96);
  const Tensor view = buffer.view(DType::f32, {2, 4}, 64);
  EXPECT_EQ(view.data(), buffer.data() + 64);
  EXPECT_EQ(view.type(), DType::f32);
  EXPECT_THROW(buffer.view(DType::f32, {2, 5}, 64), std::logic_error);
  EXPECT_THROW(buffer.view(DType::f32, {0}, 100), std::logic_error);
  EXPECT_THROW(buffer.view(DType::f32, {1}, 2), std::logic_error);
}

TEST(Buffer, AnEmptyOneGivesPresentTensors) {
  MemoryLedger ledger;
  const Buffer buffer(ledger, Use::stash, 0);
  EXPECT_TRUE(buffer.view(DType::f32, {0}));
  EXPECT_EQ(ledger.held(Use::stash), 0);
}

TEST(Buffer, ReportsWhenTheSystemHasNotEnough) {
  MemoryLedger ledger;
  EXPECT_THROW(Buffer(ledger, Use::optimizer, ~std::size_t{0}), Error);
  EXPECT_EQ(ledger.held(Use::optimizer), 0);
}

}  // namespace
}  // namespace trireme::device
