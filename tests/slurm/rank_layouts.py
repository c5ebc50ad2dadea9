#!/usr/bin/env python3
"""Runs the layouts that `plan --search` ranks first, and random others, by `trireme bench step`.

rank_layouts.py --launch "srun ..." --machine FILE --ranks N [--first 10] [--others 10] [--seed 1] TRIREME FLAGS...

Computation takes as long as the machine file says, messages take their real time. Prints predicted and measured
steps of all of them, and fails unless they have a rank correlation (Spearman) of at least 0.9 and the layout ranked
first is within 3 % of the fastest measured."""

import argparse
import json
import random
import shlex
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--launch", required=True)
parser.add_argument("--machine", required=True)
parser.add_argument("--ranks", type=int, required=True)
parser.add_argument("--first", type=int, default=10)
parser.add_argument("--others", type=int, default=10)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("trireme")
parser.add_argument("flags", nargs=argparse.REMAINDER)
options = parser.parse_args()


def flags_of(layout):
    tensor, pipeline, micro, zero, sequence, recompute, schedule, chunks = layout
    return [f"--parallel.tensor={tensor}", f"--parallel.pipeline={pipeline}", f"--train.micro_batch={micro}",
            f"--parallel.zero={zero}", f"--parallel.sequence={sequence}", f"--parallel.recompute={recompute}",
            f"--parallel.schedule={schedule}", f"--parallel.virtual_stages={chunks}"]


def plan(*flags):
    return subprocess.run([options.trireme, "plan", "--ranks", str(options.ranks), "--machine", options.machine,
                           *options.flags, *flags], capture_output=True, text=True, check=False)


def ranked():
    """The table of --search: tensor pipeline data micro zero sequence recompute schedule [xN] step GiB ..."""
    found = plan("--search")
    if found.returncode != 0:
        sys.exit(f"no search: {found.stderr}")
    rows = found.stdout.partition("most beside products\n")[2].split("\n\n")[0].splitlines()
    if len(rows) < options.first:
        sys.exit(f"not {options.first} layouts:\n{found.stdout}")
    for row in rows[:options.first]:
        cells = row.split()
        schedule = "1f1b" if cells[7] == "-" else cells[7]
        chunks = int(cells[8][1:]) if cells[8].startswith("x") else 1
        yield tuple(cells[i] for i in (0, 1, 3, 4)) + ("true" if cells[5] == "yes" else "false", cells[6], schedule, chunks)


def drawn(known):
    """Random layouts that a plan accepts, other than those known."""
    draw = random.Random(options.seed)
    powers = [2**i for i in range(options.ranks.bit_length()) if 2**i <= options.ranks]
    layouts = []
    for _ in range(100 * options.others):
        if len(layouts) == options.others:
            return layouts
        tensor, pipeline = draw.choice(powers), draw.choice(powers)
        schedule = draw.choice(["1f1b", "gpipe", "interleaved", "zero-bubble"]) if pipeline > 1 else "1f1b"
        layout = (str(tensor), str(pipeline), str(draw.choice([1, 2, 4, 8])), str(draw.choice([0, 1, 2, 3])),
                  draw.choice(["true", "false"]) if tensor > 1 else "false", draw.choice(["none", "selective", "full"]),
                  schedule, 2 if schedule == "interleaved" else 1)
        if layout in known or layout in layouts or plan(*flags_of(layout)).returncode != 0:
            continue
        layouts.append(layout)
    sys.exit(f"not {options.others} other layouts")


def measured(layout):
    command = [*shlex.split(options.launch), options.trireme, "bench", "step", "--machine", options.machine,
               "--warmup", "1", "--iterations", "3", "--json", "step.json", *options.flags, *flags_of(layout)]
    for _ in range(3):  # Open MPI's own start fails at times, as jobs/common.sh knows
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 or done.stdout.strip():
            break
    if done.returncode != 0 or "# wrong results: 0" not in done.stdout:
        sys.exit(f"{layout}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    with open("step.json", encoding="utf-8") as file:
        step = json.load(file)["benchmarks"][0]
    return step["predicted_us"] / 1e6, step["median_us"] / 1e6


def places(values):
    """Of each value, its place in ascending order; equal ones share the mean of theirs."""
    return [sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values]


def spearman(a, b):
    a, b = places(a), places(b)
    mean = (len(a) - 1) / 2
    spread = [sum((x - mean) ** 2 for x in each) for each in (a, b)]
    return sum((x - mean) * (y - mean) for x, y in zip(a, b)) / (spread[0] * spread[1]) ** 0.5


first = list(ranked())
layouts = first + drawn(first)
times = []
print(f"{'tensor':>6} {'pipeline':>8} {'micro':>5} {'zero':>4} {'sequence':>8} {'recompute':<9} {'schedule':<14}"
      f"{'predicted':>10} {'measured':>9} {'error':>8}")
for layout in layouts:
    tensor, pipeline, micro, zero, sequence, recompute, schedule, chunks = layout
    predicted, seconds = measured(layout)
    times.append((predicted, seconds))
    schedule += f" x{chunks}" if chunks > 1 else ""
    print(f"{tensor:>6} {pipeline:>8} {micro:>5} {zero:>4} {sequence:>8} {recompute:<9} {schedule:<14}"
          f"{predicted:>10.3f} {seconds:>9.3f} {100 * (predicted / seconds - 1):>7.1f}%", flush=True)
correlation = spearman([each[0] for each in times], [each[1] for each in times])
slower = times[0][1] / min(each[1] for each in times) - 1
error = sum(abs(predicted / seconds - 1) for predicted, seconds in times) / len(times)
print(f"Spearman {correlation:.3f}; the first is {100 * slower:.1f} % slower than the fastest; mean error {100 * error:.1f} %")
if correlation < 0.9 or slower > 0.03:
    sys.exit("the ranking is wrong")
