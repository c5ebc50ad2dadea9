// Groups for testing collectives, and typed access to their elements.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/shared.hpp"
#include "trireme/core/half.hpp"

namespace trireme::comm::testing {

/// A communicator and an MPI communicator (the reference) of the same ranks in the same order.
struct TestGroup {
  std::string name;
  std::unique_ptr<Communicator> communicator;
  MPI_Comm oracle = MPI_COMM_NULL;

  Communicator& operator*() const { return *communicator; }
  Communicator* operator->() const { return communicator.get(); }
};

/// A group with its own shared-memory window, over all ranks of `comm` on one node.
inline std::unique_ptr<Communicator> make_shared_group(
    MPI_Comm comm, device::MemoryLedger& ledger,
    std::vector<std::unique_ptr<SharedWindow>>& windows) {
  auto messages = make_mpi_communicator(comm, ledger);
  std::string why;
  auto window = SharedWindow::make(comm, shared_area_bytes(messages->size()), ledger, why);
  if (window == nullptr) {
    ADD_FAILURE() << why;
    return messages;
  }
  std::vector<std::byte*> areas;
  for (int rank = 0; rank < messages->size(); ++rank) areas.push_back(window->segment(rank));
  windows.push_back(std::move(window));
  return make_shared_communicator(std::move(messages), areas);
}

/// This rank alone; the world; in a world of four also groups of three and one. Larger groups by
/// messages and through shared memory.
class Groups {
 public:
  Groups() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    // MPICH reports errors in sets of requests to the world; a Session sets this too.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    groups_.push_back({"self", make_self_communicator(), MPI_COMM_SELF});
    groups_.push_back({"world", make_mpi_communicator(MPI_COMM_WORLD, ledger), MPI_COMM_WORLD});
    if (size_ >= 4) {
      // In reverse order of world ranks, so that group and world ranks differ.
      MPI_Comm_split(MPI_COMM_WORLD, rank_ == 1 ? 1 : 0, -rank_, &split_);
      groups_.push_back({"split", make_mpi_communicator(split_, ledger), split_});
      groups_.push_back({"shared split", make_shared_group(split_, ledger, windows_), split_});
    }
    if (size_ > 1) {
      groups_.push_back(
          {"shared world", make_shared_group(MPI_COMM_WORLD, ledger, windows_), MPI_COMM_WORLD});
    }
  }
  ~Groups() {
    groups_.clear();
    windows_.clear();
    if (split_ != MPI_COMM_NULL) MPI_Comm_free(&split_);
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  const std::vector<TestGroup>& all() const { return groups_; }
  const TestGroup& world() const { return groups_[1]; }

  device::MemoryLedger ledger;

 private:
  int rank_ = 0, size_ = 1;
  MPI_Comm split_ = MPI_COMM_NULL;
  std::vector<std::unique_ptr<SharedWindow>> windows_;
  std::vector<TestGroup> groups_;
};

/// Contiguous elements of any type, with one guard element at the end.
class Elements {
 public:
  Elements(DType type, std::int64_t count)
      : type_(type),
        count_(count),
        bytes_(static_cast<std::size_t>(count + 1) * size_of(type), std::byte{0xa5}) {}
  Tensor tensor() { return {bytes_.data(), type_, {count_}}; }
  Tensor tensor(std::int64_t begin, std::int64_t count) {
    return tensor().slice(0, begin, begin + count);
  }
  /// Including the guard element.
  Tensor whole() { return {bytes_.data(), type_, {count_ + 1}}; }
  bool same_bytes(const Elements& other) const { return bytes_ == other.bytes_; }
  std::int64_t count() const { return count_; }
  bool spare_untouched() const {
    for (std::size_t i = bytes_.size() - size_of(type_); i < bytes_.size(); ++i) {
      if (bytes_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }
  double get(std::int64_t i) const {
    switch (type_) {
      case DType::f32:
        return at<float>(i);
      case DType::f64:
        return at<double>(i);
      case DType::bf16:
        return bf16_to_float(at<std::uint16_t>(i));
      case DType::f16:
        return fp16_to_float(at<std::uint16_t>(i));
      case DType::i32:
        return at<std::int32_t>(i);
      case DType::i64:
        return static_cast<double>(at<std::int64_t>(i));
      case DType::u16:
        return at<std::uint16_t>(i);
      case DType::u8:
        return at<std::uint8_t>(i);
    }
    return 0;
  }
  void set(std::int64_t i, double value) {
    switch (type_) {
      case DType::f32:
        at<float>(i) = static_cast<float>(value);
        break;
      case DType::f64:
        at<double>(i) = value;
        break;
      case DType::bf16:
        at<std::uint16_t>(i) = float_to_bf16(static_cast<float>(value));
        break;
      case DType::f16:
        at<std::uint16_t>(i) = float_to_fp16(static_cast<float>(value));
        break;
      case DType::i32:
        at<std::int32_t>(i) = static_cast<std::int32_t>(value);
        break;
      case DType::i64:
        at<std::int64_t>(i) = static_cast<std::int64_t>(value);
        break;
      case DType::u16:
        at<std::uint16_t>(i) = static_cast<std::uint16_t>(value);
        break;
      case DType::u8:
        at<std::uint8_t>(i) = static_cast<std::uint8_t>(value);
        break;
    }
  }

 private:
  template <class T>
  T& at(std::int64_t i) {
    return reinterpret_cast<T*>(bytes_.data())[i];
  }
  template <class T>
  T at(std::int64_t i) const {
    return reinterpret_cast<const T*>(bytes_.data())[i];
  }
  DType type_;
  std::int64_t count_;
  std::vector<std::byte> bytes_;
};

/// Initial element i of rank r: whole numbers that every type holds, whose sums over some ranks
/// bf16 holds too (below 256), with a period that divides no slice or piece.
inline double pattern(int rank, std::int64_t i, bool is_signed = true) {
  const auto at = static_cast<std::uint32_t>(i);
  const auto value =
      static_cast<double>((at * 7 + static_cast<std::uint32_t>(rank) * 5 + at / 41) % 19);
  return is_signed ? value - 9 : value;
}

/// The first of elements [begin, end) that is not `expected(i)`, or −1.
template <class Expected>
std::int64_t first_wrong(const Elements& elements, std::int64_t begin, std::int64_t end,
                         const Expected& expected) {
  for (std::int64_t i = begin; i < end; ++i) {
    if (elements.get(i) != expected(i)) return i;
  }
  return -1;
}
template <class Expected>
std::int64_t first_wrong(const Elements& elements, const Expected& expected) {
  return first_wrong(elements, 0, elements.count(), expected);
}

inline constexpr DType reducible_types[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                            DType::i64};
inline constexpr DType all_types[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                      DType::i32, DType::i64,  DType::u16, DType::u8};
inline bool has_sign(DType type) { return type != DType::u16 && type != DType::u8; }

}  // namespace trireme::comm::testing
