// Instruction sets that vector sources are compiled for: AVX2, AVX-512 and the portable baseline.
// Include before any Highway header.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#include <hwy/targets.h>  // only after the line above
