#!/usr/bin/env bash
# docs/pictures/*.svg match the output of scripts/pictures/draw.py. The check is first tried on a copy with a changed
# table of levels.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"
export PYTHONDONTWRITEBYTECODE=1

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/tests" "$copy/docs" "$copy/scripts"
cp CMakeLists.txt "$copy"
cp -r tests/structure "$copy/tests"
cp -r docs/pictures "$copy/docs"
cp -r scripts/pictures "$copy/scripts"
sed -i 's/^levels="core 0 device 1/levels="core 0 device 0/' "$copy/tests/structure/includes_test.sh"
if out=$(python3 "$copy/scripts/pictures/draw.py" --check) ||
  [ "$out" != "docs/pictures/modules.svg is not what scripts/pictures/draw.py draws; run it and commit the result" ]; then
  echo "a changed table of levels was not found: $out"
  exit 1
fi

python3 scripts/pictures/draw.py --check
for picture in docs/pictures/*.svg; do
  python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$picture"
done
echo "docs/pictures is up to date"
