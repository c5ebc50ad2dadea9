#!/usr/bin/env bash
# bf16 products and attention with every instruction set of this processor: the tests choose the best one, and
# ONEDNN_MAX_CPU_ISA disables AMX, then AVX512_BF16. `trireme info` reports the one in use.
set -euo pipefail
used() { "$TRIREME" info | sed -n 's/^ *bf16 products *//p'; }
seen=
for most in DEFAULT AVX512_CORE_BF16 AVX512_CORE; do
  export ONEDNN_MAX_CPU_ISA=$most
  now=$(used)
  echo "$most: $now"
  case $most,$now in
    DEFAULT,* | AVX512_CORE_BF16,AVX512_BF16 | *,widened*) ;;
    *)
      echo "$most allows no $now"
      exit 1
      ;;
  esac
  if [ "$now" = "$seen" ]; then continue; fi
  seen=$now
  [ "$most" = DEFAULT ] && continue # what ctest runs anyway
  "$PROGRAMS/ops_test" --gtest_brief=1 --gtest_filter='NarrowWorkspace*:*NarrowProductTest*AVX3*:*NarrowAttentionTest*AVX3*'
done
