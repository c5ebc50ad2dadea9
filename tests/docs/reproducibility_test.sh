#!/usr/bin/env bash
# docs/reproducibility.md covers every configuration key: by name, or by section.*. The check is first tried on keys
# that the page lacks.
set -euo pipefail
page=$SOURCE/docs/reproducibility.md
# shellcheck disable=SC2016
keys=$(sed -n 's/^| `\([a-z_]*[.][a-z0-9_]*\)` |.*/\1/p' "$SOURCE/docs/configuration.md")

# The keys of standard input that no row of the page names.
missing() {
  rows=$(grep '^|' "$page")
  while read -r key; do
    name=${key#*.}
    grep -qE "\`(${key//./[.]}|${key%%.*}[.]\*)[\` ]|\`[.]$name\`" <<<"$rows" || echo "$key"
  done
}

[ "$(printf 'train.seed\ntrain.sead\noptimal.name\n' | missing)" = $'train.sead\noptimal.name' ] ||
  { echo "keys that the page lacks were not found"; exit 1; }
[ "$(wc -l <<<"$keys")" -gt 90 ] || { echo "only $(wc -l <<<"$keys") keys in docs/configuration.md"; exit 1; }
unnamed=$(missing <<<"$keys")
if [ -n "$unnamed" ]; then
  echo "docs/reproducibility.md does not say whether these keys change bits:"
  echo "$unnamed"
  exit 1
fi
echo "$(wc -l <<<"$keys") keys"
