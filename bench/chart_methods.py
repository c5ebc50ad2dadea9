#!/usr/bin/env python3
"""chart_methods.py [--title TEXT] RUN... CHART.svg: validation loss of runs against time and against bytes sent.

RUNs are run folders of one model and one dataset that differ in data_parallel.method (bench/methods.sh makes them).
Time is that of the steps, without evaluations and checkpoints. Bytes are what a node's interface sent: the number in
RUN/sent-by-a-node, spread over the steps. Without that file they are what its ranks sent by the record, also to other
ranks of the node. Prints a table: of each run its speed, its loss after the same samples and after the same time
(where the quickest run ends), and both counts of bytes.
Needs gnuplot."""
import argparse
import json
import os
import subprocess
import sys


class Run:
    def __init__(self, folder):
        self.name = os.path.basename(os.path.normpath(folder))
        attempts = os.path.join(folder, "attempts")
        numbers = sorted(os.listdir(attempts))
        if len(numbers) != 1:
            sys.exit("chart_methods.py: %s: has %d attempts; use a run of one attempt" % (folder, len(numbers)))
        attempt = os.path.join(attempts, numbers[0])
        with open(os.path.join(attempt, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
        with open(os.path.join(attempt, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)
        nodes = len(record["hosts"])
        self.recorded_per_step = sum(axis["bytes_per_step"] for rank in summary["ranks"]
                                     for axis in rank["communication"].values()) / nodes
        seconds, steps, self.points = 0.0, 0, []  # points: seconds, bytes, samples, loss
        batch = record["config"]["train"]["batch"]
        with open(os.path.join(attempt, "metrics.jsonl"), encoding="utf-8") as file:
            for line in map(json.loads, file):
                if line["type"] == "step":
                    seconds += line["seconds"]
                    steps += 1
                elif line["type"] == "evaluation" and (not self.points or line["step"] * batch > self.points[-1][2]):
                    self.points.append((seconds, steps, line["step"] * batch, line["loss"]))
        if not self.points:
            sys.exit("chart_methods.py: %s: has no evaluations" % folder)
        self.seconds, self.steps = seconds, steps
        self.samples_per_second = steps * batch / seconds
        self.sent = None
        if os.path.exists(os.path.join(folder, "sent-by-a-node")):
            with open(os.path.join(folder, "sent-by-a-node"), encoding="utf-8") as file:
                self.sent = float(file.read())
        self.bytes_per_step = self.recorded_per_step if self.sent is None else self.sent / steps
        self.points = [(at, step * self.bytes_per_step, *rest) for at, step, *rest in self.points]

    def loss_at(self, column, value):
        """Interpolates between evaluations; None outside of them."""
        for before, after in zip(self.points, self.points[1:]):
            if before[column] <= value <= after[column]:
                share = (value - before[column]) / (after[column] - before[column])
                return before[3] + share * (after[3] - before[3])
        return self.points[0][3] if self.points[0][column] == value else None


def table(runs):
    samples, seconds = min(run.points[-1][2] for run in runs), min(run.points[-1][0] for run in runs)
    head = "| method | ms per step | samples/s | MB sent per step and node | loss after %d samples | loss after %.0f s |"
    print(head % (samples, seconds))
    print("|---|---|---|---|---|---|")
    shown = lambda loss: "–" if loss is None else "%.4f" % loss
    for run in runs:
        print("| %s | %.0f | %.1f | %.3f | %s | %s |" % (
            run.name, 1e3 * run.seconds / run.steps, run.samples_per_second, run.bytes_per_step / 1e6,
            shown(run.loss_at(2, samples)), shown(run.loss_at(0, seconds))))
    for run in runs:
        if run.sent is not None:
            print("%s: a node's interface sent %.1f MB in all, evaluations and start too; its ranks sent %.1f MB in steps by the record, inside nodes too"
                  % (run.name, run.sent / 1e6, run.steps * run.recorded_per_step / 1e6))


def panel(runs, column, scale, label, log):
    lines = []
    for number, run in enumerate(runs):
        lines += ["$run%d_%d << EOD" % (column, number)]
        lines += ["%.9g %.9g" % (point[column] * scale, point[3]) for point in run.points if not log or point[column] > 0]
        lines += ["EOD"]
    lines += ["set xlabel '%s'" % label, "set logscale x" if log else "unset logscale x"]
    curves = ["$run%d_%d with linespoints lw 2 pt 7 ps 0.4 title '%s'" % (column, number, run.name)
              for number, run in enumerate(runs)]
    return lines + ["plot " + ", ".join(curves)]


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s [--title TEXT] RUN... CHART.svg")
    parser.add_argument("--title", default="")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("chart", metavar="CHART.svg")
    options = parser.parse_args()
    runs = [Run(folder) for folder in options.runs]
    table(runs)
    script = [
        "set terminal svg size 900,460 font 'sans-serif,13' background '#ffffff'",
        'set output "%s"' % options.chart,
        "set multiplot layout 1,2 title %s" % json.dumps(options.title),
        "set border 3", "set tics nomirror out", "set grid lc rgb '#e0e0e0'", "set key noenhanced top right",
        "set ylabel 'validation loss'",
    ]
    script += panel(runs, 0, 1, "seconds of steps", False)
    script += ["set key bottom left"]
    script += panel(runs, 1, 1e-6, "MB that a node has sent", True)
    try:
        subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    except FileNotFoundError:
        sys.exit("chart_methods.py: gnuplot is not installed; scripts/deps.sh report installs it")
    except subprocess.CalledProcessError:
        sys.exit("chart_methods.py: gnuplot failed")


if __name__ == "__main__":
    main()
