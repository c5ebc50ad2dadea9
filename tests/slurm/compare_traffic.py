#!/usr/bin/env python3
"""Compares a run's recorded communication with the bytes that the nodes' interfaces sent.

The recorded bytes of a node's ranks on axes that cross nodes must be within 10 % of that node's counter, which includes
TCP/IP's and Slurm's own; axes inside nodes must not appear. A run with one axis across nodes thus checks that axis.
Communication cannot be faster than the link. With --bound the link is the only limit, and the recorded time must be
within 10 % of the link's time for those bytes. Only backward can hide the reduction of gradients."""

import argparse
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--rate", required=True, help="of each node's link: 1gbit, 100mbit")
parser.add_argument("--tasks", type=int, required=True, help="ranks on each node, ranks next to each other on one")
parser.add_argument("--inside", default="", help="axes whose groups share a node: tensor")
parser.add_argument("--before", required=True)
parser.add_argument("--after", required=True)
parser.add_argument("--bound", action="store_true")
parser.add_argument("run")
options = parser.parse_args()

bits = float(options.rate[:-4]) * {"gbit": 1e9, "mbit": 1e6}[options.rate[-4:]]
attempt = os.path.join(options.run, "attempts", "0001")
with open(os.path.join(attempt, "summary.json")) as file:
    summary = json.load(file)
with open(os.path.join(attempt, "metrics.jsonl")) as file:
    lines = [json.loads(line) for line in file]
seconds = [line["seconds"] for line in lines if line["type"] == "step"]
steps = summary["steps_of_attempt"]
axes = summary["communication"]
crossing = {name: axis for name, axis in axes.items() if name not in options.inside.split(",")}


def counters(path):
    with open(path) as file:
        return {name: int(value) for name, value in (line.split() for line in file)}


before, after = counters(options.before), counters(options.after)
sent = {node: after[node] - before[node] for node in after}
recorded = dict.fromkeys(sent, 0)
for rank in summary["ranks"]:
    recorded["node%d" % (rank["rank"] // options.tasks + 1)] += steps * sum(
        axis["bytes_per_step"] for name, axis in rank["communication"].items() if name in crossing)
complaints = []
for node, count in sorted(sent.items()):
    if not 0.97 * recorded[node] <= count <= 1.1 * recorded[node]:
        complaints.append("%s sent %d bytes, the record has %d" % (node, count, recorded[node]))
ratios = [sent[node] / recorded[node] if recorded[node] else float("inf") for node in sent]

wire = max(sent.values()) / steps * 8 / bits  # seconds of a step in which the busiest link was busy, at least
taken = sum(axis["seconds_per_step"] for axis in crossing.values())
sections = {name: times["average"] / steps for name, times in summary["sections"].items()}
step = sum(seconds) / len(seconds)
if taken < 0.9 * wire or step < 0.9 * wire:
    complaints.append("communication took %.3f s of a step of %.3f s, the link %.3f s" % (taken, step, wire))

print("%s, %d ranks a node: %s; interfaces sent %.3f to %.3f of the recorded bytes across nodes" % (
    options.rate, options.tasks, ", ".join(
        "%s %.3f MB a step and rank in %.3f s" % (name, axis["mean_bytes_per_step"] / 1e6, axis["mean_seconds_per_step"])
        for name, axis in sorted(axes.items())), min(ratios), max(ratios)))
if "data" in crossing:
    reduce, wait = sections["reduce gradients (overlapped)"], sections["wait for gradients"]
    if options.bound:
        for what, value in (("the data axis took", axes["data"]["seconds_per_step"]), ("gradients were reduced for", reduce)):
            if abs(value / wire - 1) > 0.1:
                complaints.append("%s %.3f s, its bytes need %.3f s" % (what, value, wire))
    if wait < 0.9 * wire - 1.1 * sections["backward"]:
        complaints.append("waited %.3f s for %.3f s on the link, which backward's %.3f s cannot hide"
                          % (wait, wire, sections["backward"]))
    print("  a step of %.3f s: bytes fill the link for %.3f s; gradients reduced for %.3f s, waited for %.3f s, so %d %% hidden, by "
          "%.3f s of backward" % (step, wire, reduce, wait, round(100 * (1 - wait / reduce)), sections["backward"]))
else:
    print("  a step of %.3f s: bytes fill the busiest link for %.3f s" % (step, wire))
for complaint in complaints:
    print("  WRONG: " + complaint)
sys.exit(1 if complaints else 0)
