#!/usr/bin/env bash
# Every edit of tests/planted/bugs.txt still fits the sources; whether the tests catch them is
# `make planted-bugs`.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"
scripts/planted-bugs.sh --check
