#!/usr/bin/env bash
# The API reference builds without a warning, and a wrong comment fails. Skipped (77) where doxygen is not installed.
set -euo pipefail
command -v doxygen >/dev/null || { echo "doxygen is not installed: scripts/deps.sh docs"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$SOURCE"
reference() { { cat Doxyfile; printf '%s\n' "OUTPUT_DIRECTORY = $work" "$@"; } | doxygen -; }
reference >"$work/log" 2>&1 || { echo "make docs fails:"; cat "$work/log"; exit 1; }
[ -s "$work/html/index.html" ] || { echo "no page was written"; exit 1; }
printf '/// See \\ref nothing_of_this_name.\nint twice(int number);\n' >"$work/wrong.hpp"
if reference "INPUT = $work/wrong.hpp" >"$work/log" 2>&1; then echo "a wrong comment builds"; exit 1; fi
