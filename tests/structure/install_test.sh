#!/usr/bin/env bash
# The files of `make install`: the folders, a program that runs from there without build folders, a manual page and a
# completion with every flag of the program's help, and a modulefile with the right prefix.
set -uo pipefail
build=$(dirname "$TRIREME")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  printf 'FAILED: %s\n' "$1"
  failures=$((failures + 1))
}

DESTDIR=$work/stage cmake --install "$build" --prefix /opt/trireme >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
root=$work/stage/opt/trireme
cd "$root" || exit 1
version=$("$root/bin/trireme" --version | sed 's/^trireme //')
for file in bin/trireme share/man/man1/trireme.1 share/bash-completion/completions/trireme \
  "share/modulefiles/trireme/$version" share/doc/trireme/README.md share/doc/trireme/LICENSE \
  share/doc/trireme/docs/reproducibility.md share/trireme/data/README.md share/trireme/jobs/study/index.py; do
  [ -s "$file" ] || fail "$file is not there"
done
others=$(find . -type f | grep -vE '^\./(bin/trireme$|share/(man/man1|bash-completion/completions|modulefiles/trireme|doc/trireme|trireme/(jobs|data))/)')
[ -z "$others" ] || fail "files in strange places: $others"
[ -x bin/trireme ] || fail "bin/trireme cannot be run"
if command -v readelf >/dev/null; then
  # Build folders and world-writable folders must not be in the library search path.
  path=$(readelf -d bin/trireme | grep -E 'RPATH|RUNPATH' || true)
  case $path in
    *"$build"* | *"$SOURCE"* | */tmp/* | *'[]'* | *::*) fail "RPATH: $path" ;;
  esac
fi

# The manual: no warnings of its formatter, and every flag.
page=share/man/man1/trireme.1
if command -v groff >/dev/null; then
  LC_ALL=C.UTF-8 groff -man -Tutf8 -ww "$page" >"$work/shown" 2>"$work/complaints" || fail "the manual is not formatted"
  [ ! -s "$work/complaints" ] || { head -n 5 "$work/complaints"; fail "complaints about the manual"; }
fi
sed 's/\\-/-/g; s/\\&//g' "$page" >"$work/page"
. share/bash-completion/completions/trireme
# offers WORD COMMAND...: completion after COMMAND, of what WORD begins with, offers WORD.
offers() {
  local word=$1
  shift
  COMP_WORDS=("$@" "$word")
  COMP_CWORD=$(($# + 0))
  COMPREPLY=()
  _trireme
  printf '%s\n' "${COMPREPLY[@]}" | awk -v word="$word" '$0 == word { found = 1 } END { exit !found }' ||
    fail "completion of '$*' does not offer $word"
}
parts=$("$TRIREME" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$parts")" -ge 11 ] || fail "subcommands of --help: $parts"
for part in $parts; do
  offers "$part" trireme
  grep -q "^\.SS trireme $part\$" "$work/page" || fail "the manual has no $part"
done
parts="$parts $("$TRIREME" bench --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/bench:\1/p')"
count=0
for part in $parts; do
  words=${part//:/ }
  flags=$("$TRIREME" $words --help | sed -n '/^Options:/,/^$/s/^  \(-h,\)\{0,1\}\(--[a-z0-9-]*\).*/\2/p')
  for flag in $flags; do
    count=$((count + 1))
    offers "$flag" trireme $words
    sed -n "/^\.SS trireme $words\$/,/^\.S[SH]/p" "$work/page" >"$work/section"
    grep -qE -- "^\.TP|$flag" "$work/section" && grep -qF -- "$flag" "$work/section" || fail "the manual's $words has no $flag"
  done
done
[ "$count" -gt 80 ] || fail "only $count flags were seen"
keys=$("$TRIREME" train --help | grep -oE '^  --[a-z]+\.[a-z0-9_]+' | tr -d ' ')
[ "$(wc -w <<<"$keys")" -ge 60 ] || fail "fields of train --help: $keys"
for key in $keys; do
  offers "$key" trireme bench gemm
  grep -qF -- "$key=" "$work/page" || fail "the manual has no $key"
done
COMP_WORDS=(trireme train --device.type c) COMP_CWORD=3 COMPREPLY=()
_trireme
[ "${COMPREPLY[*]}" = 'cpu cuda' ] || fail "choices of --device.type: ${COMPREPLY[*]}"
COMP_WORDS=(trireme ge) COMP_CWORD=1 COMPREPLY=()
_trireme
[ "${COMPREPLY[*]}" = generate ] || fail "completion of ge: ${COMPREPLY[*]}"

# The modulefile, read like Environment Modules and Lmod.
if command -v tclsh >/dev/null; then
  cat >"$work/read.tcl" <<'END'
proc module-whatis {text} {}
proc conflict {name} {}
proc setenv {name value} { puts "$name=$value" }
proc prepend-path {name value} { puts "$name:$value" }
source [lindex $argv 0]
END
  module() { # VARIABLE=VALUE...
    env -u MANPATH -u XDG_DATA_DIRS "$@" tclsh "$work/read.tcl" "share/modulefiles/trireme/$version" >"$work/module" ||
      fail "the modulefile is not read"
  }
  module MANPATH=/a XDG_DATA_DIRS=/b
  diff - "$work/module" <<'END' || fail "the modulefile differs"
TRIREME_ROOT=/opt/trireme
PATH:/opt/trireme/bin
MANPATH:/opt/trireme/share/man
XDG_DATA_DIRS:/opt/trireme/share
END
  # Unset variables mean defaults, which must stay.
  module
  diff - "$work/module" <<'END' || fail "the modulefile differs if MANPATH and XDG_DATA_DIRS are unset"
TRIREME_ROOT=/opt/trireme
PATH:/opt/trireme/bin
XDG_DATA_DIRS:/usr/share
XDG_DATA_DIRS:/usr/local/share
XDG_DATA_DIRS:/opt/trireme/share
END
fi
grep -rqF "$work" share && fail "the folder of staging is in an installed file"

# Recipes for other tools are at least well-formed, and name existing files.
if command -v python3 >/dev/null; then
  for file in packaging/spack/package.py bench/reframe/{settings,trireme_checks}.py bench/ramble/applications/trireme/application.py; do
    python3 -B -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$SOURCE/$file" || fail "$file"
  done
fi
for name in $(sed -n '/^%files/,/^%post/s/^    \([^ ]*\) .*/\1/p' "$SOURCE/packaging/apptainer/trireme.def"); do
  [ -e "$SOURCE/$name" ] || fail "trireme.def: $name is not there"
done
# Files installed from the source tree must be in the container's copy of it.
for name in jobs data docs; do
  grep -q "^    $name /opt/source/\$" "$SOURCE/packaging/apptainer/trireme.def" || fail "trireme.def: lacks $name"
done

[ "$failures" -eq 0 ] && echo "installed files are as expected ($count flags)"
exit "$((failures > 0))"
