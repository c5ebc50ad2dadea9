#!/usr/bin/env bash
# A file operation of one rank fails in the middle of a save: it is reported, and training continues to the same result
# or stops, as checkpoint.on_failure says; with a file per rank or per node, in the foreground or background.
set -euo pipefail
if grep -q 'lib[at]san' <(ldd "$TRIREME"); then
  echo "skipped: a sanitizer must be the only preloaded library"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
work=$(pwd -P)
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
fail() {
  echo "FAILED: $*"
  cat out err
  exit 1
}
# run FAULT FOLDER FLAGS…: FAULT is "KIND AT STEP RANK" or "". The exit code in $code.
run() {
  local fault=$1 folder=$2 preload= kind at step rank
  shift 2
  if [ -n "$fault" ]; then
    read -r kind at step rank <<<"$fault"
    fault="$kind $at $work/$folder/step-0000000$step $rank"
    preload=$PROGRAMS/libtrireme_file_faults.so
  fi
  code=0
  LD_PRELOAD=$preload TRIREME_FILE_FAULT=$fault timeout 100 "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data \
    --train.output "$folder" --model.layers 2 --model.width 48 --model.heads 4 --model.sequence 33 --train.batch 8 \
    --train.micro_batch 2 --train.peak none --train.evaluate_at_end=false --train.steps 6 --checkpoint.every 2 \
    --parallel.zero 1 "$@" >out 2>err </dev/null || code=$?
}
unset TRIREME_FILE_FAULT
same() { for file in "$1"/step-00000006/*.h5; do cmp "$file" "$2/step-00000006/${file##*/}" || return 1; done; }

for files in rank node; do
  run "" "sound-$files" --checkpoint.files $files
  [ "$code" -eq 0 ] || fail "sound run, $files: exit code $code"
  expected=2
  [ $files = rank ] || expected=1
  [ "$(ls "sound-$files/step-00000006" | grep -c h5)" -eq $expected ] || fail "$files: $(ls "sound-$files/step-00000006")"
done
while read -r files async fault; do
  name="run-$files-$async-${fault// /-}"
  run "$fault" "$name" --checkpoint.files "$files" --checkpoint.async="$async"
  [ "$code" -eq 0 ] || fail "$name: exit code $code"
  same "sound-$files" "$name" || fail "$name: its result differs"
  "$TRIREME" inspect "$name/step-00000006" --verify >/dev/null || fail "$name: the last checkpoint is damaged"
  [ -z "$(ls "$name" | grep tmp)" ] || fail "$name: leftovers"
  case $fault in
    short*) ! grep -q warning out err || fail "$name: a short write must be continued" ;;
    *)
      reason="No space left on device"
      [ "${fault%% *}" = no_space ] || reason="Input/output error"
      grep -q "warning: checkpoint not saved: rank ${fault##* }: .*$name/step-00000004.tmp.*$reason" out err ||
        fail "$name: not reported"
      grep -q '"save failed"' "$name"/attempts/0001/metrics.jsonl || fail "$name: not recorded"
      [ -d "$name/step-00000002" ] && [ ! -e "$name/step-00000004" ] || fail "$name: $(ls "$name")"
      ;;
  esac
done <<'END'
rank false no_space 3 4 1
rank true no_space 3 4 1
rank false io_error 4 4 0
rank true short_write 2 4 1
node false no_space 3 4 1
node true io_error 3 4 1
END

run "io_error 4 4 1" stopped --checkpoint.on_failure stop
[ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] || fail "stop: exit code $code"
grep -q 'error: checkpoint not saved: rank 1: .*step-00000004.tmp.*Input/output error' err || fail "stop: message"
grep -q '^step  *2$' <("$TRIREME" inspect stopped --verify) || fail "stop: the previous checkpoint"
run "" stopped
[ "$code" -eq 0 ] && same sound-rank stopped || fail "stop: resuming"

# A full disk under the record alone ends nothing: the run warns, and its report is of what there is.
while read -r file at reported; do
  name=record-${file%%.*}
  code=0
  LD_PRELOAD=$PROGRAMS/libtrireme_file_faults.so TRIREME_FILE_FAULT="no_space $at $work/$name/attempts/0001/$file 0" timeout 100 \
    "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output "$name" --model.layers 2 --model.width 48 \
    --model.heads 4 --model.sequence 33 --train.batch 8 --train.micro_batch 2 --train.peak none --train.steps 6 \
    --checkpoint.every 2 --parallel.zero 1 >out 2>err </dev/null || code=$?
  [ "$code" -eq 0 ] || fail "no space for $file: exit code $code"
  [ "$(grep -c "warning: .*$file.*No space left on device" err)" -eq 1 ] || fail "no space for $file: not reported once"
  grep -q '^Figure of Merit (FOM): [0-9]' out || fail "no space for $file: no figure of merit"
  "$TRIREME" report "$name" --shared-cores >out 2>err || code=$?
  grep -q "$reported" out || fail "no space for $file: report"
done <<'END'
trace.json 1 ^INCOMPLETE .*record-trace
metrics.jsonl 7 could not be written to the end: .*metrics.jsonl
summary.json 1 there is no summary.json
mllog.txt 20 ^INCOMPLETE .*record-mllog
run.json 1 there is no run.json
END
