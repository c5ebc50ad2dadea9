// Which instruction sets the vector sources are compiled for; include before any Highway header.
// AVX2 and AVX-512 on x86 and the portable baseline: SSE-only machines are too old to train on, and
// each further set costs compile time.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#include <hwy/targets.h>  // only after the line above
