#!/usr/bin/env bash
# Benchmark cases: one command runs a small one five times and prints its line; what makes a result INVALID; the cases
# of jobs/benchmarks are legal in the layouts that they name, and fit.
# shellcheck disable=SC2015  # what follows || ends the script
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export TRIREME TRIREME_MPIRUN=$TRIREME_MPIEXEC PYTHONDONTWRITEBYTECODE=1
unset SLURM_JOB_ID PBS_JOBID LSB_JOBID FLUX_URI
export TRIREME_CORES=0  # ranks of two tests must not be bound to the same cores
fail() {
  echo "FAILED: $*"
  cat out err 2>/dev/null
  exit 1
}
has() { grep -cE -- "$1" "${2:-out}" >/dev/null || fail "no '$1' in ${2:-out}"; }
report() { # the expected exit code, arguments
  local expected=$1 code=0
  shift
  "$TRIREME" report --shared-cores "$@" >out 2>err || code=$?
  [ "$code" -eq "$expected" ] || fail "report $*: exit code $code, not $expected"
}

# --- the cases of jobs/benchmarks ---
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >out 2>err || fail prepare
cases=("$SOURCE"/jobs/benchmarks/*.toml)
[ "${#cases[@]}" -ge 5 ] || fail "cases: ${cases[*]}"
for case in "${cases[@]}"; do
  name=$(basename "$case" .toml)
  # The command in its first lines, which must name this file and may span lines.
  sed -n 's/^# *//;/^jobs\/scaling-study/,/[^\\]$/p' "$case" | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' >start
  read -r -a words <start
  [ "${words[0]}" = jobs/scaling-study ] && [ "${words[2]}" = "jobs/benchmarks/$name.toml" ] || fail "$name: its command: $(cat start)"
  (cd "$SOURCE" && jobs/scaling-study --dry-run --launcher slurm "${words[@]:1}") >out 2>err </dev/null || fail "$name: its command"
  [ "$(grep -c '^# [0-9]*: strong-' out)" -eq 5 ] || fail "$name: not five runs"
  flags=() ranks=0 machine=h100-sxm type=cuda
  [ "$name" != small-cpu-v1 ] || { machine=cpu-epyc-zen4 type=cpu; }
  for ((i = 3; i < ${#words[@]}; ++i)); do
    [ "${words[i]}" != --ranks ] || ranks=${words[i + 1]}
    [ "${words[i]}" != -- ] || { flags=("${words[@]:i+1}") && break; }
  done
  flags+=(--config "$case" --device.type "$type")
  "$TRIREME" train --dry-run --ranks "$ranks" --data.path data "${flags[@]}" >out 2>err || fail "$name: train --dry-run"
  has "^# programs: of $ranks ranks .*every message has its receiver"
  "$TRIREME" plan --ranks "$ranks" --machine "$SOURCE/data/machines/$machine.toml" "${flags[@]}" >out 2>err || fail "$name: plan"
  [ "$name" = small-cpu-v1 ] || has '^fits: yes'
  # A key without a value here would be free.
  [ "$(grep -c '^\(layers\|width\|heads\|kv_heads\|hidden\|vocabulary\|sequence\|batch\|steps\|compute\|method\) = ' "$case")" -eq 11 ] ||
    fail "$name: it does not fix its workload"
done

# --- one small case, five times ---
if ! "$TRIREME_MPIEXEC" --version 2>&1 | grep -c 'Open MPI\|OpenRTE\|HYDRA' >/dev/null; then
  echo "skipped: no launcher that jobs/common.sh knows"
  exit 0
fi
cat >toy-v1.toml <<'EOF2'
# A case of this test.
[model]
layers = 1
width = 16
heads = 2
vocabulary = 300
sequence = 16
[train]
batch = 4
steps = 8
[optim]
learning_rate = 2e-3
EOF2
study() { # the expected exit code, arguments
  local expected=$1 code=0
  shift
  "$SOURCE/jobs/scaling-study" --shared-cores "$@" >out 2>err </dev/null || code=$?
  [ "$code" -eq "$expected" ] || fail "scaling-study $*: exit code $code, not $expected"
}
line='^benchmark toy-v1 \(xxh3 [0-9a-f]{16}\): '
study 0 --benchmark toy-v1.toml --ranks 2 --output bench -- --parallel.zero 1 --train.peak 1000
has "$line"'[0-9.e+]+ \([0-9.e+]+ to [0-9.e+]+\) n 5 tokens/s; [0-9.e+]+ tokens/s a rank; .* n 5 s a step; MFU [0-9.e-]+ .* % of the nominal peak; 2 ranks, 1 node(, ranks share cores)?; .*; fp32; tensor 1 × pipeline 1 × data 2, zero 1, 1f1b, micro-batch [0-9]+, recompute auto; .*trireme [0-9.]+'
has '^hardware  *\|'
python3 - bench/report.json <<'END' || fail "the figure"
import json, statistics, sys
all = json.load(open(sys.argv[1]))
line, runs = all["benchmark"], all["runs"]
medians = [run["figures"]["tokens_per_second"]["median"] for run in runs]
assert line["valid"] and line["case"] == "toy-v1" and len(line["runs"]) == len(runs) == 5
assert line["tokens_per_second"] == {"n": 5, "median": statistics.median(medians), "least": min(medians), "greatest": max(medians)}
assert line["tokens_per_second_per_rank"] == statistics.median(medians) / 2
assert line["ranks"] == 2 and line["nodes"] == 1 and line["versions"]["trireme"] == line["trireme"]
# 6·N + 6·L·C·T: of a block 12·C², of the head V·C.
operations = {name: of["per_token"] for name, of in line["operations"].items()}
assert operations["model"] == 6 * (12 * 16 * 16 + 300 * 16) + 6 * 16 * 16, operations
assert operations["full_attention"] == operations["hardware"] == operations["model"] + 6 * 16 * 16, operations
END
# The same command runs nothing again.
find bench/runs -name summary.json -exec stat -c '%n %i' {} + | sort >before
study 0 --benchmark toy-v1.toml --ranks 2 --output bench -- --parallel.zero 1 --train.peak 1000
find bench/runs -name summary.json -exec stat -c '%n %i' {} + | sort | cmp - before || fail "a run was repeated"
report 0 bench/runs --benchmark toy-v1.toml --google-benchmark google.json
has "$line.* n 5 tokens/s; "
has '"items_per_second"' google.json

# --- INVALID, with the reason ---
runs=(bench/runs/*)
report 1 "${runs[@]:0:4}" --benchmark toy-v1.toml --json four.json
has "$line"'INVALID$'
has '^ +4 valid repeats; a case takes 5 at least$'
has '"valid": false' four.json
[ "$(cat err)" = "trireme: error: report: these runs are no valid result of toy-v1.toml; the reasons are above" ] || fail "another error"
sed 's/2e-3/1e-3/' toy-v1.toml >toy-v2.toml
report 1 bench/runs --benchmark toy-v2.toml
has '^benchmark toy-v2 .*: INVALID$'
[ "$(grep -cE '^ +bench/runs/strong-r00002-toy-v1-[1-5]: optim.learning_rate: 0.001 in the case → 0.002$' out)" -eq 5 ] || fail "a changed key"
cp -r bench/runs damaged
metrics=(damaged/*/attempts/0001/metrics.jsonl)
sed -i '5s/"seconds":[0-9]/"seconds":1/' "${metrics[0]}"
report 1 damaged --benchmark toy-v1.toml
has "$line"'INVALID$'
has '^ +damaged/strong-r00002-toy-v1-1: attempt 0001: .*metrics.jsonl:5 is not as it was written'
cp -r bench/runs mixed
rm -r mixed/*-5
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --config toy-v1.toml --data.path bench/dataset --train.output mixed/other --train.peak 1000 \
  >out 2>err || fail "train"
report 1 mixed --benchmark toy-v1.toml
has '^ +mixed/strong.*: differs from mixed/other in parallel.zero$'
# A study whose runs are no result ends with exit code 1.
study 1 --benchmark toy-v1.toml --ranks 2 --repeats 4 --output few -- --train.peak 1000
has '^ +4 valid repeats; a case takes 5 at least$'

# --- mistakes ---
mistake() { # line, arguments
  local expected=$1
  shift
  report 2 "$@"
  [ "$(cat err)" = "trireme: error: $expected" ] || fail "report $*: another error"
}
mistake "report: --benchmark b.json: takes a benchmark case in TOML; write Google Benchmark's JSON with --google-benchmark b.json" \
  bench/runs --benchmark b.json
# shellcheck disable=SC2016
mistake 'report: --benchmark excludes --warm-up; see `trireme report --help`' bench/runs --benchmark toy-v1.toml --warm-up 1
printf '# nothing\n' >nothing.toml
report 1 bench/runs --benchmark nothing.toml
has '^trireme: error: report: --benchmark nothing.toml: sets no key; name a case as in jobs/benchmarks$' err
printf 'train.batchs = 4\n' >wrong.toml
report 1 bench/runs --benchmark wrong.toml
has '^trireme: error: wrong.toml:1: train.batchs: ' err
study 2 --benchmark toy-v1.toml --ranks 2 --batch 8 --output none
has 'error: --batch: a benchmark case has one number of ranks, and sets mode, batch, steps and layout' err
study 2 --ranks 2 --output none
has 'error: --mode and --batch are needed, or --benchmark' err
study 1 --benchmark missing.toml --ranks 2 --output none
has '^scaling-study: error: --benchmark missing.toml: ' err
[ ! -e none ] || fail "a refused study wrote"
