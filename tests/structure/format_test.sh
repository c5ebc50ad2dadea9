#!/usr/bin/env bash
# Every C++ file is formatted by clang-format. Skipped without clang-format.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"
if ! command -v clang-format >/dev/null; then
  echo "skipped: clang-format is not installed"
  exit 0
fi
find include src tests bench examples -name '*.[ch]pp' -print0 | xargs -0 -r -n 32 -P 2 clang-format --dry-run -Werror
echo "$(find include src tests bench examples -name '*.[ch]pp' | wc -l) files are formatted"
