#!/usr/bin/env python3
"""chart_steps.py RESULTS.json... CHART.svg: where the time of measured steps goes, operation by operation.

RESULTS are what `trireme_bench_steps --results` wrote; each of their cases becomes a panel. An operation's light bar
is its time in a step, the dark one the time it would take at the ceiling that bounds it (the best product, or a
copy). Operations under 0.5 % of the step share one bar. Needs gnuplot."""
import json
import subprocess
import sys

LEAST = 0.005


def bars(case):
    """[(name, milliseconds, milliseconds at the ceiling)], longest last, as gnuplot counts upwards."""
    rows, rest = [], [0.0, 0.0]
    for name, op in case["operations"].items():
        spent = 1e3 * op["seconds"]
        least = spent * min(1.0, op["achieved"])
        if op["seconds"] < LEAST * case["step_seconds"]:
            rest = [rest[0] + spent, rest[1] + least]
        else:
            rows.append((name.replace("_", " "), spent, least))
    rows.sort(key=lambda row: row[1])
    return [("all others", *rest)] + rows


def panel(number, case):
    rows = bars(case)
    step = 1e3 * case["step_seconds"]
    lines = [f"$case{number} << EOD"]
    lines += [f'{spent} {least} {row} "{name}"' for row, (name, spent, least) in enumerate(rows)]
    lines += [
        "EOD",
        f'set title "{case["preset"]}, {case["compute"]}, batch {case["batch"]} × {case["sequence"]}: '
        f'{step:.0f} ms a step, {case["mfu_of_measured"]:.2f} of the peak" noenhanced',
        f"set yrange [-0.7:{len(rows) - 0.3}]",
        f"set xrange [0:{1.18 * max(row[1] for row in rows)}]",
        f"plot $case{number} using ($1/2):3:($1/2):(0.38):yticlabels(4) with boxxyerror fill solid 1 noborder "
        "lc rgb '#9ecae1' title 'time', "
        f"$case{number} using ($2/2):3:($2/2):(0.38) with boxxyerror fill solid 1 noborder "
        "lc rgb '#08519c' title 'at the ceiling that bounds it', "
        f"$case{number} using 1:3:(sprintf(' %.1f', $1)) with labels left notitle",
    ]
    return lines


def main():
    if len(sys.argv) < 3:
        sys.exit("chart_steps.py: RESULTS.json... CHART.svg are wanted")
    cases = []
    for path in sys.argv[1:-1]:
        with open(path, encoding="utf-8") as file:
            cases += json.load(file)["cases"]
    height = 90 + max(len(bars(case)) for case in cases) * 26
    script = [
        f"set terminal svg size 900,{height * len(cases)} font 'sans-serif,13' background '#ffffff'",
        f'set output "{sys.argv[-1]}"',
        f"set multiplot layout {len(cases)},1",
        "set border 3",
        "set tics nomirror out",
        "set xlabel 'milliseconds'",
        "set key bottom right",
        "set ytics noenhanced",
        "set lmargin 30",
    ]
    for number, case in enumerate(cases):
        script += panel(number, case)
    try:
        subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    except FileNotFoundError:
        sys.exit("chart_steps.py: gnuplot is not installed; scripts/deps.sh report installs it")
    except subprocess.CalledProcessError:
        sys.exit("chart_steps.py: gnuplot failed")


if __name__ == "__main__":
    main()
