#!/usr/bin/env bash
# Plants each bug of tests/planted/bugs.txt in a scratch copy of the tree and checks that the test named
# for it fails: planted-bugs.sh [NAME...]; all without names. Exits 1 if one is not caught. WORKERS copies
# (one per core, at most 4) are tried side by side, each with the bugs of one test after another; JOBS compilers each.
# A test that exceeds its time limit has failed too, and is marked.
# planted-bugs.sh --check only checks that every edit still fits the sources.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
source jobs/common.sh
list=tests/planted/bugs.txt
scratch=build/planted

# One line per bug: name, title, test, what the test needs of the machine (or "none"), then file, find and plant of every
# edit; fields end in \x1f.
entries() {
  awk '
    function value() { return substr($0, index($0, ": ") + 2) }
    function finish() { if (name != "") printf "%s\x1f%s\x1f%s\x1f%s\x1f%s\n", name, title, test, needs, edits }
    /^#/ || /^$/ { next }
    /^bug: / {
      finish()
      split(value(), part, ": ")
      name = part[1]; title = substr(value(), length(name) + 3); edits = ""; test = ""; needs = "none"; next
    }
    /^(file|find): / || /^plant:/ { edits = edits (/^plant: *$/ ? "" : value()) "\x1f"; next }
    /^test: / { test = value(); next }
    /^needs: / { needs = value(); next }
    { print "line " FNR " of the list is not understood: " $0 > "/dev/stderr"; exit 1 }
    END { finish() }' "$list"
}

# Replaces the one occurrence of $2 in file $1 by $3; without $3, only counts.
edit() {
  FIND=$2 PLANT=${3-} COUNT=${3+no} awk '
    BEGIN { find = ENVIRON["FIND"]; plant = ENVIRON["PLANT"]; change = ENVIRON["COUNT"] == "no" }
    {
      at = index($0, find)
      if (at > 0) {
        ++found
        rest = substr($0, at + length(find))
        if (index(rest, find) > 0) ++found
        if (change) $0 = substr($0, 1, at - 1) plant rest
      }
      if (change) print
    }
    END { if (found != 1) { print FILENAME ": found " found + 0 " times: " find > "/dev/stderr"; exit 1 } }' "$1"
}

# The build target that a test needs.
target() {
  case $1 in
    parallel.layout_matrix.*|parallel.context_matrix.*) f=${1#parallel.}; echo "${f%%.*}" ;;
    train.reshard_grid) echo reshard_grid ;;
    comm.watchdog_test) echo watchdog_program ;;
    cuda.cublas_products) echo cublas_products_test ;;
    train.hugging_face_test) echo trireme logits_program ;;
    *.mpi[0-9]*) echo "${1%%.*}_mpi" ;;
    *_test) echo trireme trireme_file_faults ;;
    *) echo "${1%%.*}_test" ;;
  esac
}

mapfile -t bugs < <(entries)
[ "${#bugs[@]}" -gt 0 ]
if [ "${1-}" = --check ]; then
  wrong=0
  for bug in "${bugs[@]}"; do
    IFS=$'\x1f' read -r -a field <<< "$bug"
    [ "$(( (${#field[@]} - 4 + 2) / 3 ))" -gt 0 ] && [ -n "${field[2]}" ] || { echo "${field[0]}: no edit or no test"; wrong=1; }
    for ((i = 4; i + 1 < ${#field[@]}; i += 3)); do
      edit "${field[i]}" "${field[i + 1]}" || { echo "planted bug ${field[0]} does not fit its source"; wrong=1; }
    done
  done
  [ $wrong -eq 0 ] && echo "${#bugs[@]} planted bugs fit their sources"
  exit $wrong
fi

has() { case $1 in none) ;; cuda) command -v nvcc > /dev/null ;; *) grep -qw "$1" /proc/cpuinfo ;; esac; }
wanted() { [ $# -eq 1 ] && return 0; local name=$1 each; shift; for each in "$@"; do [ "$each" = "$name" ] && return 0; done; return 1; }

# CTest adds "  # GetParam() = …" to the names of parameterized tests. A program ends at its first failure.
run_test() { GTEST_FAIL_FAST=1 ctest --test-dir "$copy/build" -R "^${1//./\\.}( |\$)" --no-tests=error --timeout 150 > "$copy/log" 2>&1; }
build() { CCACHE_BASEDIR=$PWD/$copy CCACHE_NOHASHDIR=1 cmake --build "$copy/build" --parallel "${JOBS:-2}" --target "$@" > "$copy/build.log" 2>&1; }

# Files get new times, so that objects of an interrupted edit are rebuilt. What one copy compiled, the others take
# from ccache, where paths inside a copy count as relative.
prepare() {
  local copy=$scratch/$1
  rm -rf "$copy/source"
  mkdir -p "$copy/source"
  git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from=- --ignore-failed-read -cf - | tar -xmf - -C "$copy/source"
  # Compiling takes longer than testing: -O1, whose false warnings of GCC 12 are not errors.
  cmake -S "$copy/source" -B "$copy/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DTRIREME_WERROR=OFF -DTRIREME_BENCH=OFF > "$copy/log" 2>&1 || { tail -3 "$copy/log" >&2; return 1; }
}

# Plants one bug, given by its fields, and prints what became of it.
try_bug() {
  local field=("$@") name=$1 test=$3 file i verdict=caught how=
  for ((i = 4; i + 1 < ${#field[@]}; i += 3)); do
    file=$copy/source/${field[i]}
    [ -e "$file.sound" ] || cp -p "$file" "$file.sound"
    edit "$file" "${field[i + 1]}" "${field[i + 2]-}" > "$file.bug"
    cp "$file.bug" "$file"
  done
  # shellcheck disable=SC2046
  build $(target "$test") || verdict="does not compile"
  if [ "$verdict" = caught ]; then
    if run_test "$test"; then verdict=MISSED; fi
    if grep -q '\*\*\*Timeout' "$copy/log"; then how=", by its time limit"; fi
  fi
  for ((i = 4; i + 1 < ${#field[@]}; i += 3)); do
    file=$copy/source/${field[i]}
    if [ -e "$file.sound" ]; then cp "$file.sound" "$file"; rm -f "$file.sound" "$file.bug"; fi
  done
  printf '%-24s %-8s %s\n' "$name" "$verdict" "$test$how"
}

# Takes tests from the list at descriptor 9, which the workers share, and tries the bugs of each.
work() {
  local copy=$scratch/$1 test bug field
  shift
  while flock 8; read -r test <&9 || { flock -u 8; false; }; do
    flock -u 8
    local tried=no
    for bug in "${bugs[@]}"; do
      IFS=$'\x1f' read -r -a field <<< "$bug"
      if [ "${field[2]}" != "$test" ] || ! wanted "${field[0]}" "$@" || ! has "${field[3]}"; then continue; fi
      if [ $tried = no ]; then
        # shellcheck disable=SC2046
        build $(target "$test") || { echo "the tree does not build: $copy/build.log" >&2; return 1; }
        run_test "$test" || { echo "$test fails without any planted bug: $copy/log" >&2; return 1; }
        tried=yes
      fi
      try_bug "${field[@]}"
    done
  done
}

cores=$(trireme_nproc)
workers=${WORKERS:-$((cores < 4 ? cores : 4))}
for name in "$@"; do
  printf '%s\n' "${bugs[@]}" | grep -q "^$name"$'\x1f' || { echo "there is no planted bug $name in $list"; exit 1; }
done
mkdir -p $scratch
rm -f $scratch/results.*
for bug in "${bugs[@]}"; do
  IFS=$'\x1f' read -r -a field <<< "$bug"
  wanted "${field[0]}" "$@" || continue
  if has "${field[3]}"; then echo "${field[2]}"; continue; fi
  printf '%-24s %-8s %s\n' "${field[0]}" untried "${field[2]} is not run on a machine without ${field[3]}" |
    tee -a $scratch/results.0 >&2
done | sort | uniq -c | sort -rn | awk '{ print $2 }' > $scratch/tests
if [ ! -s $scratch/tests ]; then echo "no bug can be shown on this machine"; exit 0; fi
for ((worker = 1; worker <= workers; ++worker)); do prepare $worker; done
mapfile -t targets < <(while read -r test; do target "$test"; done < $scratch/tests | tr ' ' '\n' | sort -u)
copy=$scratch/1 JOBS=${JOBS:-$cores} build "${targets[@]}" || { echo "the tree does not build: $scratch/1/build.log"; exit 1; }

exec 9< $scratch/tests
trap 'trap - INT TERM; kill 0' INT TERM
running=() failed=0
for ((worker = 1; worker <= workers; ++worker)); do
  { work $worker "$@" 8> $scratch/lock | tee $scratch/results.$worker; } &
  running+=($!)
done
for worker in "${running[@]}"; do wait "$worker" || failed=1; done
awk -v failed=$failed '{ ++count[$2] } END {
  missed = NR - count["caught"] - count["untried"]
  print count["caught"] + 0 " caught, " missed " not, " count["untried"] + 0 " untried"
  exit missed > 0 || failed }' $scratch/results.*
