#!/usr/bin/env bash
# bench/gpu_proof.sh without a GPU: every step reports that there is no device. With stand-ins for its programs: it goes
# on after failures and hangs, repeats what failed, packs its logs, and its exit code and table are right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
proof=$SOURCE/bench/gpu_proof.sh
fail() { echo "$*"; exit 1; }
run() {  # expected exit code, stage
  local code=0
  bash "$proof" "$2" >"$OUT.log" 2>&1 || code=$?
  [ "$code" = "$1" ] || { cat "$OUT.log"; fail "$2 exits with $code, not $1"; }
  python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$OUT/steps.jsonl"
  [ "$(find "$OUT" -type f | wc -l)" = 3 ] || { find "$OUT" -type f; fail "other files than three"; }
}
outcomes() { sed -E 's/.*"outcome": "([^"]*)".*/\1/' "$OUT/steps.jsonl" | sort | uniq -c | sed 's/^ *//'; }
step() { grep "\"step\": \"$1\"" "$OUT/steps.jsonl" || fail "no step $1"; }

mkdir programs
program() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"programs/$1"; chmod +x "programs/$1"; }
for name in trireme nccl_cuda layouts_cuda trireme_bench_steps; do program $name 'echo "it was started"'; done
if [ -x "$PROGRAMS/trireme_test_cuda" ]; then cp "$PROGRAMS/trireme_test_cuda" programs/; else
  program trireme_test_cuda 'echo "no CUDA device (here)"; exit 77'
fi
export PATH=$work/programs:$PATH MPIRUN=$work/programs/launch
program launch 'while [ $# -gt 0 ]; do case $1 in -n) shift 2 ;; env) shift ;; *=*) shift ;; *) exec "$1" ;; esac; done'
[ "$(programs/trireme_test_cuda --gtest_filter=CudaDevice.RefusesInvalidIndices >/dev/null; echo $?)" = 77 ] ||
  { echo "this machine has a GPU: only stand-ins are tried"; gpu=yes; }
if [ -z "${gpu-}" ]; then
  for stage in correctness layouts speed profile; do
    export OUT=$work/absent-$stage
    SECONDS=0
    run 77 $stage
    [ "$SECONDS" -le 20 ] || fail "$stage took $SECONDS s without a device"
    [ -s "$OUT/steps.jsonl" ] && [ "$(outcomes | sed 's/^[0-9]* //')" = "no device" ] || { outcomes; fail "not only \"no device\""; }
    ! grep -q "it was started" "$OUT.log" || fail "a step was started"
  done
fi

# One suite fails unless GELU's epilogue is left out, one hangs, one fills its log, one fails once.
program trireme_test_cuda 'case $1 in
  *Norm*) [ "${TRIREME_CUDA_WITHOUT-}" = gelu ] || { echo "an error with \"quotes\""; exit 1; } ;;
  *Rotary*) sleep 60 ;;
  *Dropout*) if mkdir "$OUT/dropout-ran" 2>/dev/null; then exit 1; fi ;;
  *Loss*) head -c 30000000 /dev/urandom | base64 ;;
esac'
program compute-sanitizer 'exit 3'
export OUT=$work/some STEP_SECONDS=2
run 1 correctness
step suite.Norm | grep -q '"outcome": "failed"' || fail "$(step suite.Norm)"
step suite.Norm.without-cudnn | grep -q '"outcome": "failed (repeated)"' || fail "$(step suite.Norm.without-cudnn)"
step suite.Norm.without-gelu | grep -q '"outcome": "passed (repeated)"' || fail "$(step suite.Norm.without-gelu)"
! grep -q 'suite.Norm.without-bias' "$OUT/steps.jsonl" || fail "repeated after it had passed"
step suite.Norm.alone | grep -q '"outcome": "failed (repeated)"' || fail "$(step suite.Norm.alone)"
step suite.Dropout.alone | grep -q '"outcome": "passed (repeated)"' || fail "$(step suite.Dropout.alone)"
! grep -q 'suite.Dropout.without' "$OUT/steps.jsonl" || fail "a part is left out of what passes alone"
step suite.Norm.blocking | grep -q failed || fail "$(step suite.Norm.blocking)"
step suite.Norm.sanitizer | grep -q '"code": 3' || fail "$(step suite.Norm.sanitizer)"
step suite.Rotary | grep -q '"outcome": "time limit"' || fail "$(step suite.Rotary)"
! grep -q 'suite.Rotary.blocking' "$OUT/steps.jsonl" || fail "the second failure is looked into too"
first=$(grep -n '"step": "suite.Norm.without' "$OUT/steps.jsonl" | head -n 1 | cut -d: -f1)
[ "$first" -gt "$(grep -n '"step": "train.mpi"' "$OUT/steps.jsonl" | cut -d: -f1)" ] || fail "repeated before all steps had run"
step suite.Squares | grep -q '"outcome": "passed"' || fail "$(step suite.Squares)"
grep -qE '^suite.Norm +failed +[0-9]+$' "$OUT/table.txt" || { cat "$OUT/table.txt"; fail "the table"; }
[ "$(stat -c %s "$OUT/logs.tar.gz")" -lt $((16 << 20)) ] || fail "the archive is too large"
tar -xzf "$OUT/logs.tar.gz" -C "$work" logs/suite.Norm.log
grep -q 'an error with "quotes"' logs/suite.Norm.log || fail "the log of the failure"

# All passes; a step that may fail does not count. The program's own steps run, on CPUs and with 2 steps of 20.
program trireme_test_cuda 'exit 0'
program nccl_cuda '[ -z "${NCCL_HOSTID-}" ]'
program launch 'case " $* " in *HOSTID*) exit 1 ;; *nccl_cuda*) exit 0 ;; esac; exec "$TRIREME_MPIEXEC" "$@"'
program trireme 'args=("$@"); for i in "${!args[@]}"; do case ${args[i]} in cuda) args[i]=cpu ;; fp16) args[i]=bf16 ;; 20) args[i]=2 ;; esac; done
exec "$TRIREME" "${args[@]}"'
export OUT=$work/all STEP_SECONDS=60
run 0 correctness
for name in info prepare train.fp32 train.bf16 train.graphs train.fp16 train.mpi train.mpi-graphs; do
  step $name | grep -q '"outcome": "passed"' || fail "$(step $name)"
done
tar -xzf "$OUT/logs.tar.gz" -C "$work"
[ -s "$work/logs/train.mpi.run/0001/run.json" ] || { find "$work/logs"; fail "no record of a run in the archive"; }
step nccl.two-ranks-one-gpu | grep -q '"outcome": "failed (allowed)"' || fail "$(step nccl.two-ranks-one-gpu)"

# Without time nothing is started, and the rest is reported.
export OUT=$work/late SECONDS_IN_ALL=35
run 1 correctness
outcomes | grep -q 'no time left' || { outcomes; fail "no step was left out"; }
echo "no device, failures, limits, switches, table and archive: as they should be"
