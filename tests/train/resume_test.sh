#!/usr/bin/env bash
# A resumed run matches an uninterrupted one byte for byte: losses, gradient norms, weights, optimizer state, sample
# cursor; on 1 and 2 ranks, with dropout, micro-batches, AdamW and SGD.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1

run() {  # ranks, run folder, further flags
  local ranks=$1 out=$2
  shift 2
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --data.path data --train.output "$out" --model.layers 2 \
    --model.width 48 --model.heads 4 --model.sequence 33 --model.dropout 0.1 --model.attention_dropout 0.1 \
    --train.batch 8 --train.micro_batch 2 --train.steps 20 --train.peak none --train.evaluate_at_end=false \
    --train.quiet "$@"
}
steps() { cat "$1"/attempts/*/metrics.jsonl | grep '"type": *"step"' | sed -E 's/"(seconds|tokens_per_second|seal)": ?[^,}]*,?//g'; }

# Every optimizer that there is.
optimizers=$("$TRIREME" train --help | sed -nE 's/.*--optim\.name=.*\[(.*)\].*/\1/p' | tr -d ,)
grep -qw adamw <<< "$optimizers" && grep -qw sgd <<< "$optimizers"
for method in $optimizers; do
  for ranks in 1 2; do
    rm -rf straight halves
    run "$ranks" straight --optim.name "$method" --optim.learning_rate 0.02
    run "$ranks" halves --optim.name "$method" --optim.learning_rate 0.02 --train.stop_after 10
    [ "$(steps halves | wc -l)" -eq 10 ]
    run "$ranks" halves --optim.name "$method" --optim.learning_rate 0.02
    [ "$(steps straight | wc -l)" -eq 20 ]
    diff <(steps straight) <(steps halves)
    for file in straight/step-00000020/*.h5; do
      cmp "$file" "halves/step-00000020/$(basename "$file")"
    done
    grep -o '"samples": *160' halves/step-00000020/manifest.json
    echo "$method on $ranks ranks: identical"
  done
done

# In every layout, from a checkpoint written in the background; the run that wrote it trained two steps more and was
# then lost.
for layout in "--parallel.zero 0" "--parallel.zero 1" "--parallel.zero 2" "--parallel.zero 3" "--parallel.tensor 2" \
  "--parallel.tensor 2 --parallel.sequence true" "--parallel.pipeline 2" "--parallel.pipeline 2 --parallel.schedule zero-bubble"; do
  rm -rf straight halves
  run 2 straight $layout
  run 2 halves $layout --train.stop_after 12 --checkpoint.every 10 --checkpoint.async true --checkpoint.at_end=false
  [ -d halves/step-00000010 ] && [ ! -e halves/step-00000012 ]
  # The copies took the predicted memory, and `plan` predicts the same.
  snapshot=$(tr -d ' \n' <halves/attempts/0001/summary.json | grep -o '"snapshot":{"measured":[0-9]*,"predicted":[0-9]*}')
  read -r measured predicted < <(echo "$snapshot" | tr -c '0-9\n' ' ')
  [ "$measured" -gt 100000 ] && [ "$measured" -eq "$predicted" ] || { echo "$layout: $snapshot"; exit 1; }
  planned=$("$TRIREME" plan --ranks 2 --data.path data --model.layers 2 --model.width 48 --model.heads 4 --model.sequence 33 \
    --train.batch 8 --train.micro_batch 2 --checkpoint.every 10 --checkpoint.async true $layout | grep '^snapshot' | tr -d '|')
  # A row shows the rank of each stage with the most total memory; the fullest stage is the measured one.
  echo "$planned" | awk -v bytes="$measured" '{
    for (i = 2; i <= NF; ++i) if ($i > most) most = $i
    d = most - bytes / 1048576; exit !(d < 0.051 && d > -0.051)
  }' || { echo "$layout: planned $planned MiB, measured $measured bytes"; exit 1; }
  rm -rf halves/attempts
  run 2 halves $layout
  [ "$(steps halves | wc -l)" -eq 10 ]
  diff <(steps straight | tail -n 10) <(steps halves)
  for file in straight/step-00000020/*.h5; do
    cmp "$file" "halves/step-00000020/$(basename "$file")"
  done
  echo "$layout: identical"
done

# Another batch size continues at the next sample: with weights that do not change, the losses of ten steps of 4 after
# five of 8 are those of steps 11 to 20 of 4.
still="--optim.name sgd --optim.learning_rate 1e-30 --optim.weight_decay 0"
rm -rf small other
run 1 small $still --train.batch 4
run 1 other $still --train.stop_after 5
run 1 other $still --train.batch 4 --train.steps 15 --train.quiet=false >notes
grep -q 'note: 40 samples in 5 steps so far, train.batch = 4 from the next one on' notes
figures() { steps "$1" | grep -o '"gradient_norm": *[0-9.e-]*\|"loss": *[0-9.]*\|"tokens": *[0-9]*'; }
diff <(figures small | tail -n 30) <(figures other | tail -n 30)
[ "$(figures other | tail -n 30 | sort -u | wc -l)" -eq 30 ]
grep -o '"samples": *80' other/step-00000015/manifest.json
# Another seed is allowed, and reported.
run 1 other $still --train.batch 4 --train.steps 16 --train.seed 9 --train.quiet=false >notes
grep -q 'note: train.seed = 9, and 1 before' notes

# A checkpoint of another run folder, with no step left, is saved in the layout of this start.
rm -rf copy
run 1 copy $still --train.batch 4 --train.steps 15 --checkpoint.resume other/step-00000015
[ -d copy/step-00000015 ]

# A checkpoint of 2 ranks resumes on 1 and on 4: other sums, the same run within 1e-5.
losses() { steps "$1" | grep -o '"loss": *[0-9.]*' | tr -dc '0-9.\n'; }
rm -rf straight
run 2 straight
for ranks in 1 4; do
  rm -rf moved
  run 2 moved --train.stop_after 10
  run "$ranks" moved
  paste <(losses straight) <(losses moved) | awk -v ranks="$ranks" '{
    e = ($1 - $2) / $1; if (e < 0) e = -e; if (e > worst) worst = e
  } END { printf "2 ranks, then %d: largest relative difference %.2g\n", ranks, worst; exit !(NR == 20 && worst <= 1e-5) }'
done

# The comparison can fail: another seed gives another run.
rm -rf other
run 1 other --train.seed 2
if cmp -s other/step-00000020/rank-00000.h5 straight/step-00000020/rank-00000.h5; then exit 1; fi
if diff -q <(steps other) <(steps straight) >/dev/null; then exit 1; fi

# Resuming an earlier step inside a run folder would mix two runs: refused. Repeating the same command continues.
fails() {  # text of the one line, then run's arguments
  local words=$1
  shift
  if run "$@" >out 2>&1; then echo "not refused: $words"; exit 1; fi
  [ "$(grep -c '^trireme: error: ' out)" -eq 1 ] && grep -q "$words" out || { cat out; exit 1; }
}
rm -rf first second
run 1 first --train.stop_after 4
run 1 first --train.stop_after 4
fails 'checkpoint.resume = never: first/step-00000008 is there already; name another train.output' 1 first --checkpoint.resume never
fails 'checkpoint.resume = first/step-00000004: first/step-00000008 is newer; name another' 1 first --checkpoint.resume first/step-00000004
run 1 second --checkpoint.resume first/step-00000004 --train.stop_after 2
run 1 second --checkpoint.resume first/step-00000004 --train.stop_after 2 --train.quiet=false >out
grep -q '^resumed from second/step-00000006: step 6' out || { cat out; exit 1; }

# Damaged data under a complete manifest are passed over too, and stay; the next save goes beside them.
file=$(ls first/step-00000008/*.h5)
at=$(($(stat -c %s "$file") / 2))
byte=$(od -An -tu1 -j"$at" -N1 "$file")
printf "$(printf '\\%03o' $((byte ^ 255)))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none
run 1 first --train.stop_after 2 --checkpoint.keep 1 --train.quiet=false >out 2>err
grep -q "^trireme: warning: passed over: $file" err && grep -q '^resumed from first/step-00000004: step 4' out || { cat out; exit 1; }
[ -d first/step-00000006 ] && [ -d first/step-00000008 ] && [ ! -e first/step-00000004 ] || { ls first; exit 1; }
echo "damaged data: passed over"
