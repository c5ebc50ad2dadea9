#!/usr/bin/env bash
# Prepares a dataset, trains on two ranks, evaluates, resumes from the checkpoint and generates text.
# demo.sh TRIREME, with CORPUS=file.txt or Debian's bible-kjv. Writes to demo/. Environment: RANKS (2),
# STEPS, MPIRUN (mpirun), DEMO (demo).
set -euo pipefail
trireme=$(realpath "$1")
cd "$(dirname "$0")/.."
ranks=${RANKS:-2}
steps=${STEPS:-350}
warmup=$((steps / 10))
resumed=$((steps + 10))
mpirun=${MPIRUN:-mpirun}
demo=${DEMO:-demo}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# shellcheck source=jobs/common.sh
source jobs/common.sh
trireme_allow_local "$ranks"

title() { printf '\n== %s\n' "$*"; }
show() { printf '$ %s\n' "${*/#$trireme/trireme}"; "$@"; }

mkdir -p "$demo"
corpus=${CORPUS:-}
if [ -z "$corpus" ]; then
  corpus=$demo/bible.txt
  if [ ! -s "$corpus" ]; then
    data/bible-kjv.sh "$corpus" || {
      echo "demo: no corpus: run make demo CORPUS=file.txt with a text of your own" >&2
      exit 1
    }
  fi
elif [ ! -r "$corpus" ]; then
  echo "demo: cannot read CORPUS=$corpus" >&2
  exit 1
fi

# The dataset is kept; it is prepared again if the text has changed or this binary cannot read it.
dataset=$demo/dataset
stamp=$(realpath "$corpus"):$(stat -c '%s %Y' "$corpus")
if [ "$(cat "$demo/corpus.stamp" 2>/dev/null)" != "$stamp" ] || ! "$trireme" inspect "$dataset" >/dev/null 2>&1; then
  title "Text to dataset"
  rm -rf "$dataset" "$demo/corpus.stamp"
  show "$trireme" prepare --input "$corpus" --output "$dataset"
  printf '%s\n' "$stamp" >"$demo/corpus.stamp"
fi
title "Dataset"
show "$trireme" inspect "$dataset"

run=$demo/run
rm -rf "$run"
train=("$trireme" train --model.preset tiny --data.path "$dataset" --train.output "$run" --train.batch 16 --train.evaluate_samples 512
  --optim.warmup_steps $warmup --optim.decay_steps $((steps - warmup)))
# Under a launcher, ranks cannot see whether the output is a terminal.
if [ -t 1 ]; then train+=(--train.progress live); else train+=(--train.log_every 25); fi

title "Training on $ranks ranks"
show "$mpirun" -n "$ranks" "${train[@]}" --train.steps "$steps"
title "Evaluation of the checkpoint"
show "$mpirun" -n "$ranks" "$trireme" evaluate --checkpoint "$run"
title "Resuming from the checkpoint for $((resumed - steps)) steps"
show "$mpirun" -n "$ranks" "${train[@]}" --train.steps "$resumed"
title "Generated text"
show "$trireme" generate --checkpoint "$run" --prompt "And it came to pass" --tokens 300
title "Done. The record of the run is in $run/attempts, the checkpoints in $run"
