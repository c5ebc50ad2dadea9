#!/usr/bin/env bash
# The default corpus: 4.4 MB of English prose, a verse per line, from Debian's bible-kjv. bible-kjv.sh OUTPUT.txt
set -euo pipefail
output=${1:?usage: bible-kjv.sh OUTPUT.txt}
if ! command -v bible >/dev/null; then
  echo "bible-kjv.sh: the program bible is not installed (Debian: apt-get install bible-kjv)" >&2
  exit 1
fi
trap 'rm -f "$output.part"' EXIT
bible -f 'Gen1:1-Rev22:21' >"$output.part"
if [ "$(wc -l <"$output.part")" -ne 31102 ]; then
  echo "bible-kjv.sh: expected 31102 verses, got $(wc -l <"$output.part")" >&2
  exit 1
fi
mv "$output.part" "$output"
