#!/usr/bin/env bash
# trireme bench: every part on 1, 2 and 3 ranks with small sizes: columns, checks, JSON, errors, no leftover files.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpiexec=${TRIREME_MPIEXEC:-mpirun}
cd "$work" || exit 1
failures=0
fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 60 out | sed 's/^/    out: /'
  head -n 10 err | sed 's/^/    err: /'
  failures=$((failures + 1))
}
# bench RANKS PART...: output in out and err; all results correct, and as many cells as titles in each row.
bench() {
  local ranks=$1
  shift
  "$mpiexec" -n "$ranks" "$TRIREME" bench "$@" --iterations 2 --warmup 1 >out 2>err || fail "exit code $?: $*"
  [ "$(tail -n 1 out)" = '# wrong results: 0' ] || fail "wrong results: $*"
  awk '
    /^#  / && !/^# *\(/ { titles = NF - 1; gsub(/all ranks/, "all_ranks"); gsub(/a rank/, "a_rank"); titles = NF - 1; next }
    /^#/ { next }
    { rows++; if (NF != titles) bad = bad "\n" NF " cells for " titles " titles: " $0 }
    END { if (rows == 0) print "no rows"; if (bad != "") print bad; exit rows == 0 || bad != "" }
  ' out >shape || { cat shape; fail "table: $*"; }
}
# refuses CODE LINE PART...
refuses() {
  local expected=$1 line=$2
  shift 2
  "$TRIREME" bench "$@" >out 2>err
  local code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, not $expected: $*"
  [ "$(cat err)" = "trireme: error: $line" ] || { echo "  wanted: $line"; fail "other error: $*"; }
}

for ranks in 1 2 3; do
  bench "$ranks" collectives --begin 8 --end 6144 --factor 16 --types fp32,bf16,int64 --json "$ranks.json"
  # Seventeen columns for several kinds of operation; the first eight have a fixed form.
  [ "$(grep -c '^# operation: ' out)" -eq 6 ] || fail "six collectives on $ranks ranks"
  bench "$ranks" collectives --begin 96 --end 96 --operations all_reduce --reduction max --types fp64,fp16
  bench "$ranks" gemm --shapes 5x7x3,16x33x24 --types fp32,bf16 --json "gemm$ranks.json" --peak 100
  bench "$ranks" copy --begin 4 --end 4096 --factor 1024 --threads 1,2 --json "copy$ranks.json"
  bench "$ranks" attention --shapes 2x3x20x8,1x4x33x16x2 --types fp32,bf16 --json "attention$ranks.json"
  mkdir -p files
  bench "$ranks" io --folder files --bytes 100000 --json "io$ranks.json"
  [ -z "$(ls -A files)" ] || fail "io left files behind"
done
bench 3 pipeline --begin 8 --end 4096 --factor 64 --types fp32,bf16 --json pipeline3.json
bench 2 pipeline --begin 8 --end 8
# Two groups of two ranks at once; an embedding group leaves out the rank between.
bench 4 collectives --axis data --parallel.tensor 2 --begin 64 --end 64
grep -q '^# groups: 2 data, 2 ranks, at once$' out || fail "groups along an axis"
grep -q '^# backend: shared$' out || fail "groups inside a node share memory"
bench 2 collectives --axis data --begin 64 --end 64 --operations all_reduce --comm.data mpi
grep -q '^# backend: mpi$' out || fail "the configured backend"
bench 2 collectives --axis pipeline --parallel.pipeline 2 --begin 64 --end 64 --operations all_reduce
grep -q '^# backend: mpi$' out || fail "the backend of a pipeline"
bench 1 collectives --begin 64 --end 64 --operations all_reduce
grep -q '^# backend: none$' out || fail "one rank has no backend"
bench 3 collectives --axis embedding --parallel.pipeline 3 --begin 64 --end 64 --operations all_reduce,broadcast
# The configured model's products: each matrix in three forms.
bench 1 gemm --model.layers 1 --model.width 16 --model.heads 2 --rows 8 --peak 100
[ "$(grep -cE ' (NN|NT|TN) ' out)" -eq 15 ] || fail "products of a model"
yes 'In the beginning was the word, and the word was with the machine.' | head -n 300 >text
"$TRIREME" prepare --input text --output dataset >out 2>err || fail "prepare"
bench 2 io --data.path dataset --length 16 --sequences 3
grep -qE '^ +dataset +96 .* 0$' out || fail "a dataset is read"

if command -v python3 >/dev/null; then
  python3 -B - <<'END' || { failures=$((failures + 1)); echo 'FAILED: JSON'; }
import json
for part in "1 2 3 gemm1 gemm2 gemm3 copy1 copy2 copy3 attention1 attention2 attention3 io1 io2 io3 pipeline3".split():
    all_ = json.load(open(part + ".json"))
    assert all_["context"]["num_cpus"] >= 1 and all_["context"]["trireme"].startswith("bench "), part
    assert all_["benchmarks"], part
    for one in all_["benchmarks"]:
        assert one["time_unit"] == "us" and one["run_type"] == "iteration" and one["iterations"] == 2, one
        assert one["time_min"] <= one["real_time"] * 1.000001 and one["real_time"] <= one["time_max"] * 1.000001, one
        assert one["wrong"] == 0, one
# The bus bandwidth matches the bytes that ranks send, if slices are even.
for n in 2, 3:
    factors = {"all_reduce": 2 * (n - 1) / n, "reduce_scatter": (n - 1) / n, "all_gather": (n - 1) / n, "all_to_all": (n - 1) / n}
    seen = 0
    for one in json.load(open(f"{n}.json"))["benchmarks"]:
        name, _, type_, size, _ = one["name"].split("/")
        if name in factors:
            assert abs(one["busbw"] - one["algbw"] * factors[name]) < 1e-6 * one["algbw"], one
            if type_ == "fp32" and int(size) == (2048 if n == 2 else 2040):
                seen += 1
                even = one["size"] / 4 % n == 0
                assert not even or one["sent_bytes"] == one["size"] * factors[name], one
    assert seen > 0, n
END
fi

refuses 2 'bench: name a part: gemm, copy, attention, collectives, pipeline, io, machine or step'
refuses 2 'bench: gem: is not a subcommand; did you mean gemm?' gem
refuses 2 'bench gemm: --shape: is not a flag; did you mean --shapes?' gemm --shape 1x1x1
refuses 1 '--shapes = 4x4: is not MxNxK; write for example 1024x768x768' gemm --shapes 4x4
refuses 1 '--types = fp16: is not computed in on a CPU; use fp32 or bf16' gemm --types fp16
refuses 1 '--shapes = 1x3x4x4x2: its heads must be a multiple of G; use another G' attention --shapes 1x3x4x4x2
refuses 1 '--optim.beta1: bench gemm does not use it; it uses the sections model, parallel, device' gemm --optim.beta1 0.5
refuses 1 'bench io: nothing to read or write; name --folder, --data.path or both' io
refuses 1 '--begin = 9: is above --end = 8; use a smaller one, or name a larger --end' collectives --begin 9 --end 8
refuses 1 '--root = 3: a group has 1 ranks; use 0 to 0' collectives --root 3
refuses 1 'bench pipeline: one stage has no neighbors; use more ranks, or a parallel.pipeline of 2 or more' pipeline

[ "$failures" -eq 0 ] && echo "trireme bench: all as expected"
exit "$((failures > 0))"
