// Queue::reduce on CUDA. Without headers of the project that nvcc cannot read.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace trireme::device {

/// The types that are reduced, by number: f32, bf16, f16, f64, i64.
enum class ReducedType : int { f32, bf16, f16, f64, i64 };

/// Queues the reduction on `stream`; `contributions`, a list in host memory of `ranks` ≥ 1 places
/// in the device's, has been read when it returns. A cudaError_t: cudaErrorInvalidValue for more
/// than 64 contributions that are not at even distances but for one.
int queue_reduce(ReducedType type, bool maximum, const std::byte* const* contributions, int ranks,
                 void* out, std::int64_t elements, CUstream_st* stream);

}  // namespace trireme::device
