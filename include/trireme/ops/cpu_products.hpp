// What the CPU backend multiplies bf16 with.
#pragma once

#include <string>

namespace trireme::ops {

/// Whether this processor multiplies bf16 itself (AVX512_BF16, which AMX processors have too), and
/// ONEDNN_MAX_CPU_ISA does not forbid it. Where it does not, products of bf16 are made of widened
/// elements: right, but no faster than fp32.
bool cpu_multiplies_bf16();

/// In words, for people: how products of bf16 are made here.
std::string cpu_bf16_products();

}  // namespace trireme::ops
