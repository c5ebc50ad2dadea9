#!/usr/bin/env python3
"""Runs layouts and compares their steps with what a machine file predicts.

run.py --machine FILE --data FOLDER [--cases steps.csv] [--launch "mpirun -n {ranks}"] [--output steps.csv] TRIREME [FLAGS...]

Each row of the cases has `ranks` and configuration keys; its `step_s` is replaced. It becomes --passes runs of --steps
steps with train.predict = FILE, where {ranks} stands for the row's, one in each pass over all rows. The measured step
is the median of the fastest quarter of all, since other programs on the machine seldom disturb all passes. Prints each
with its parts in the fastest pass: what ranks compute, and what they wait for. `--output` gets the rows with `step_s`,
for `plan --measured`."""

import argparse
import csv
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--machine", required=True)
parser.add_argument("--data", required=True, help="made by trireme prepare with a vocabulary of bytes")
parser.add_argument("--cases", default=Path(__file__).parent / "steps.csv")
parser.add_argument("--launch", default="mpirun -n {ranks} --bind-to core")
parser.add_argument("--folder", help="of the runs, on a file system that all nodes see; default: a temporary one")
parser.add_argument("--steps", type=int, default=11)
parser.add_argument("--passes", type=int, default=3)
parser.add_argument("--output", type=Path)
parser.add_argument("trireme")
parser.add_argument("flags", nargs=argparse.REMAINDER)
options = parser.parse_args()


def run(case, folder):
    """{"predicted": {"seconds", "parts"}, "measured": ...} of the case's step, and the seconds of each step but the first."""
    flags = [f"--{key}={value}" for key, value in case.items() if key != "ranks"]
    command = [*shlex.split(options.launch.format(ranks=case["ranks"])), options.trireme, "train", *flags,
               f"--data.path={options.data}", f"--train.output={folder}", f"--train.predict={options.machine.format(ranks=case['ranks'])}",
               f"--train.steps={options.steps}", "--train.peak=none", "--train.evaluate_at_end=false", "--parallel.threads=1",
               "--checkpoint.at_end=false", "--checkpoint.every_minutes=0", *options.flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{case}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    attempt = Path(folder) / "attempts" / "0001"
    lines = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [line["seconds"] for line in lines if line["type"] == "step"]
    return json.loads((attempt / "summary.json").read_text(encoding="utf-8"))["step_time"], seconds[1:]


def name_of(case):
    """What the case sets apart from the usual."""
    usual = {"parallel.tensor": "1", "parallel.pipeline": "1", "parallel.zero": "0", "parallel.sequence": "false",
             "parallel.recompute": "none"}
    short = [f"{case['model.layers']}x{case['model.width']}", f"s{case['model.sequence']}", case["precision.compute"],
             f"batch {case['train.batch']}/{case['train.micro_batch']}"]
    short += [f"{key.split('.')[1]} {value}" for key, value in case.items() if key in usual and value != usual[key]]
    return f"{case['ranks']} | " + " ".join(short)


with open(options.cases, encoding="utf-8", newline="") as file:
    cases = [{key: value for key, value in row.items() if key != "step_s"} for row in csv.DictReader(file)]
steps, seconds = [None] * len(cases), [[] for _ in cases]
for number in range(options.passes):
    for i, case in enumerate(cases):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            step, each = run(case, Path(folder) / "run")
        seconds[i] += each
        if steps[i] is None or step["measured"]["seconds"] < steps[i]["measured"]["seconds"]:
            steps[i] = step
        print(f"pass {number + 1}: {min(each):9.4f} to {max(each):9.4f} s  {name_of(case)}", file=sys.stderr, flush=True)
rows, errors = [], []
print(f"{'ranks | case':<66} {'measured':>9} {'predicted':>9} {'error':>7}   predicted / measured parts, s")
for case, step, all_seconds in zip(cases, steps, seconds, strict=True):
    predicted, measured = step["predicted"], step["measured"]
    found = statistics.median(sorted(all_seconds)[:max(1, len(all_seconds) // 4)])
    error = predicted["seconds"] / found - 1
    errors.append(abs(error))
    names = sorted(set(predicted["parts"]) | set(measured["parts"]))
    parts = {name: (predicted["parts"].get(name, 0), measured["parts"].get(name, 0)) for name in names}
    large = [f"{name} {a:.3f}/{b:.3f}" for name, (a, b) in parts.items() if max(a, b) > 0.01 * measured["seconds"]]
    print(f"{name_of(case):<66} {found:>9.4f} {predicted['seconds']:>9.4f} {100 * error:>6.1f}%   "
          + ", ".join(large), flush=True)
    rows.append(dict(case, step_s=f"{found:.4g}"))
print(f"{len(errors)} steps: mean error {100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %")
if options.output:
    with open(options.output, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
