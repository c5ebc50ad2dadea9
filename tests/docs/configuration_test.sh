#!/usr/bin/env bash
# docs/configuration.md is the program's output; `make docs` rewrites it.
set -euo pipefail
writer=$(dirname "$TRIREME")/write_manual
[ -x "$writer" ] || { echo "$writer is not built"; exit 1; }
page=$SOURCE/docs/configuration.md
"$writer" configuration | diff "$page" - || { echo "docs/configuration.md is not what the program prints: run 'make docs'"; exit 1; }
echo "$(grep -c '^| .[a-z_]*[.][a-z0-9_]*. |' "$page") keys as the program declares them"
