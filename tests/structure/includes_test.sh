#!/usr/bin/env bash
# Holds the source tree to the rules that a compiler cannot see:
#   - a module includes its own headers and those of lower levels, never a peer's or a higher one's;
#   - no include of src/ or include/ climbs out of its folder ("../");
#   - every header has #pragma once, or Highway's guard where it is compiled once per instruction set;
#   - nothing ends the process with exit() but main, and Session::abort where MPI_Abort came back;
#   - a file of src/ or include/ above 400 lines says why in its first 12 lines: "Long because ...".
# The rules are first tried on a small tree that breaks each of them once.
set -euo pipefail
source_tree=${SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}

levels="core 0 device 1 comm 2 params 2 schedule 2 ops 3 data 3 report 3 model 4 optim 4
        state 5 parallel 6 checkpoint 6 plan 7 train 8 data_parallel 9 bench 10 cli 11 main 12"

# Prints one line per violation in the tree $1.
violations() {
  (cd "$1" && find include src tests bench -type f |
    grep -E '\.(hpp|cpp|cuh|cu)$' | LC_ALL=C sort | xargs -r awk -v levels="$levels" '
    BEGIN {
      n = split(levels, word)
      for (i = 1; i < n; i += 2) level[word[i]] = word[i + 1]
    }
    function finish() {
      if (file == "") return
      if (file ~ /\.(hpp|cuh)$/ && !pragma) print file ": no #pragma once"
      if (product && lines > 400 && !excuse)
        print file ": " lines " lines and no \"Long because\" in the first 12"
    }
    FNR == 1 {
      finish()
      file = FILENAME; pragma = 0; excuse = 0
      product = file ~ /^(src|include)\//
      split(file, part, "/")
      owner = ""
      if (file ~ /^include\/trireme\//) owner = part[3]
      if (file ~ /^src\//) owner = file == "src/main.cpp" ? "main" : part[2]
      if (product && !(owner in level)) print file ": module " owner " is not in the table of levels"
    }
    { lines = FNR }
    /^#pragma once/ || /HWY_TARGET_TOGGLE/ { pragma = 1 }
    FNR <= 12 && /\/\/.*Long because/ { excuse = 1 }
    /^[ \t]*#[ \t]*include/ {
      if (product && ($0 ~ /["<]\.\.\// || $0 ~ /\/\.\.\//)) print file ":" FNR ": include climbs out of its folder"
      if (product && match($0, /["<]trireme\/[a-z]+\//)) {
        used = substr($0, RSTART + 9, RLENGTH - 10)
        if (!(used in level)) print file ":" FNR ": module " used " is not in the table of levels"
        else if (used != owner && level[used] + 0 >= level[owner] + 0)
          print file ":" FNR ": " owner " (level " level[owner] ") includes " used " (level " level[used] ")"
      }
    }
    product && owner != "main" && file != "src/comm/session.cpp" {
      code = $0
      sub(/\/\/.*/, "", code)
      gsub(/"([^"\\]|\\.)*"/, "", code)
      if (code ~ /(^|[^A-Za-z0-9_.>])(_exit|_Exit|quick_exit|exit)[ \t]*\(/)
        print file ":" FNR ": exit() outside main; throw instead"
    }
    END { finish() }')
}

bad=$(mktemp -d)
trap 'rm -rf "$bad"' EXIT
mkdir -p "$bad"/include/trireme/{core,ops} "$bad"/src/{ops,state,extra} "$bad"/{tests,bench}
printf '#pragma once\n#include "trireme/ops/a.hpp"\n' >"$bad/include/trireme/core/up.hpp"
printf '#include <vector>\n' >"$bad/include/trireme/ops/once.hpp"
printf '#include "trireme/report/a.hpp"\n' >"$bad/src/ops/peer.cpp"
printf '#include "../ops/a.hpp"\n' >"$bad/src/state/climb.cpp"
printf 'void f() { std::exit(1); }\n' >"$bad/src/state/exit.cpp"
printf 'int x;\n' >"$bad/src/extra/unknown.cpp"
lines_401() { for _ in {1..401}; do echo 'int x;'; done; }
lines_401 >"$bad/src/state/long.cpp"
# Allowed: lower levels, own module, exit() in a comment, a string, main or a member; a long file with a reason.
{ printf '// Long because it is a fixture.\n'; lines_401; } >"$bad/src/state/reason.cpp"
printf '#include "trireme/model/a.hpp"\n#include "trireme/state/a.hpp"\n// exit()\nint f() { app.exit(1); at_exit("exit(1)"); }\n' \
  >"$bad/src/state/good.cpp"
printf '#include "trireme/cli/a.hpp"\nint main() { exit(1); }\n' >"$bad/src/main.cpp"
expected='include/trireme/core/up.hpp:2: core (level 0) includes ops (level 3)
include/trireme/ops/once.hpp: no #pragma once
src/extra/unknown.cpp: module extra is not in the table of levels
src/ops/peer.cpp:1: ops (level 3) includes report (level 3)
src/state/climb.cpp:1: include climbs out of its folder
src/state/exit.cpp:1: exit() outside main; throw instead
src/state/long.cpp: 401 lines and no "Long because" in the first 12'
if ! diff <(printf '%s\n' "$expected") <(violations "$bad"); then
  echo "the rules did not find what was planted (< expected, > found)"
  exit 1
fi

found=$(violations "$source_tree")
if [ -n "$found" ]; then
  printf '%s\n' "$found"
  exit 1
fi
echo "module levels, include guards, exit() and file lengths are in order"
