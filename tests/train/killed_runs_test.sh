#!/usr/bin/env bash
# kill -9 of a rank or of mpirun at random moments of whole runs, KILLS times (default 6), in twelve layouts in turn. Each
# start goes on from the newest checkpoint in the next layout. Every run that reaches its end has the losses and, moved to
# one rank, the files of a run on one rank that nothing stopped.
set -euo pipefail
kills=${KILLS:-6}
seed=${SEED:-$RANDOM}
RANDOM=$seed
echo "seed $seed"
work=$(realpath "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
  echo "FAILED: $*"
  tail -n 20 out err
  exit 1
}
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
steps=40
arguments=(--data.path data --model.layers 4 --model.width 32 --model.heads 4 --model.sequence 32 --model.dropout 0.1
  --train.batch 8 --train.steps $steps --train.peak none --train.evaluate_at_end=false --numerics.reproducible true
  --train.progress log --train.log_every 1 --checkpoint.every 2 --checkpoint.keep 3)
start() { # ranks, run folder, further flags
  local ranks=$1 folder=$2
  shift 2
  timeout 100 "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train "${arguments[@]}" --train.output "$folder" "$@" >out 2>err
}
# The last record of each step: steps after the last checkpoint are made again.
losses() {
  cat "$1"/attempts/*/metrics.jsonl | sed -nE 's/^.*"gradient_norm": ?([^,]*),.*"loss": ?([^,]*),.*"step": ?([0-9]+),.*$/\3 \2 \1/p' |
    awk '{ line[$1] = $0 } END { for (i = 1; i <= '$steps'; ++i) print line[i] }'
}
# A rank's process, once it is there and until it has ended.
rank_of_ours() {
  while kill -0 "$job" 2>/dev/null; do
    for p in $(pgrep -f "$TRIREME train .*--train.output killed"); do
      [ "$(readlink "/proc/$p/cwd")" = "$work" ] &&
        grep -qzE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1\$" "/proc/$p/environ" 2>/dev/null && echo "$p" && return
    done
    sleep 0.01
  done
}
newest() { { ls -d killed/step-????????/manifest.json 2>/dev/null || true; } | sed -E 's/.*step-0*([0-9]+).*/\1/' | sort -n | tail -n 1; }

layouts=(
  "1"
  "2 --train.micro_batch 1"
  "4 --parallel.zero 1 --train.micro_batch 2"
  "2 --parallel.zero 2 --train.micro_batch 2"
  "4 --parallel.zero 3 --zero.group 2 --train.micro_batch 2"
  "2 --parallel.tensor 2"
  "4 --parallel.tensor 4 --parallel.sequence true"
  "2 --parallel.pipeline 2 --train.micro_batch 2"
  "4 --parallel.pipeline 4 --parallel.schedule zero-bubble --train.micro_batch 1"
  "4 --parallel.pipeline 2 --parallel.schedule interleaved --parallel.virtual_stages 2 --train.micro_batch 2 --checkpoint.async true"
  "4 --parallel.tensor 2 --parallel.zero 3 --train.micro_batch 2 --checkpoint.async true"
  "4 --parallel.tensor 2 --parallel.pipeline 2 --train.micro_batch 2 --parallel.recompute full"
)
start 1 straight
losses straight >straight.losses
[ "$(grep -c ' ' straight.losses)" -eq $steps ] || fail "straight: losses of $(grep -c ' ' straight.losses) steps"
began=$(date +%s%N)
start 4 timed --parallel.pipeline 2 --parallel.tensor 2 --train.micro_batch 2
milliseconds=$((($(date +%s%N) - began) / 1000000))

landed=0 finished=0 launch=0
while [ "$landed" -lt "$kills" ] || [ -e killed ] || [ "$finished" -eq 0 ]; do
  read -r ranks flags <<<"${layouts[launch++ % ${#layouts[@]}]}"
  before=$(newest)
  # At once, or after a second in which the other ranks see SIGTERM and begin to save.
  export OMPI_MCA_odls_base_sigkill_timeout=$((RANDOM % 2))
  # shellcheck disable=SC2086
  start "$ranks" killed $flags &
  job=$!
  victim=
  if [ "$landed" -lt "$kills" ]; then
    victim=$(rank_of_ours $((RANDOM % ranks)))
    wait=$((RANDOM % milliseconds))
    sleep "$((wait / 1000)).$(printf '%03d' $((wait % 1000)))"
    # mpirun is the child of timeout. A rank may have ended meanwhile.
    if [ $((RANDOM % 5)) -eq 0 ]; then
      launcher=$(pgrep -P $job -x timeout || true)
      victim=
      [ -z "$launcher" ] || victim=$(pgrep -P "$launcher" || true)
    elif [ "$(readlink "/proc/$victim/cwd" || true)" != "$work" ]; then
      victim=
    fi
  fi
  hit=no
  if [ -n "$victim" ] && kill -9 $victim 2>/dev/null; then hit=yes; fi
  code=0
  wait $job || code=$?
  if [ "$code" -ne 0 ]; then
    [ $hit = yes ] || fail "launch $launch ($ranks $flags): exit code $code, and nothing was killed"
    [ "$code" -ne 124 ] || fail "launch $launch ($ranks $flags): it hangs after a kill"
    landed=$((landed + 1))
  fi
  # Ranks whose mpirun was killed may have saved once more.
  if grep -q '^step ' out && [ -n "$before" ]; then
    from=$(sed -nE 's/^resumed from killed.step-0*([0-9]+): step \1$/\1/p' out)
    [ "${from:-0}" -ge "$before" ] || fail "launch $launch ($ranks $flags): resumed from step ${from:-none}, not $before"
  fi
  if [ "$code" -eq 0 ]; then
    losses killed | diff straight.losses - >difference || { cat difference; fail "after launch $launch the losses differ"; }
    start 1 moved --resume "killed/$(printf 'step-%08d' $steps)" || fail "launch $launch: cannot be moved to one rank"
    for file in straight/"$(printf 'step-%08d' $steps)"/*.h5; do
      cmp "$file" "moved/$(printf 'step-%08d' $steps)/$(basename "$file")" || fail "after launch $launch the files differ"
    done
    finished=$((finished + 1))
    rm -rf killed moved
  fi
done
echo "$landed kills in $launch starts; $finished runs reached the end with the losses and files of the one that nothing stopped"
[ "$finished" -ge $((kills / 20)) ] || fail "too few runs reached the end"
