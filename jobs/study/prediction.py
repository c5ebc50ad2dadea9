"""Predicted speeds of a study's points, by `trireme plan --machine`, and how far measured speeds are from them."""

import json
import os
import statistics

from study.index import ask
from study.points import Refusal, batch_of, degree
from study.running import ask_plan, error_line


def refuse_machine(machine, line):
    """Where the machine file is at fault, not the layout."""
    if line and (os.path.abspath(machine) in line or line.startswith("trireme: error: machine ")):
        raise Refusal(line[len("trireme: error: "):])


def check_machine(program, machine):
    """Whether the file can be read, before anything is written."""
    _, _, errors = ask([program, "plan", "--ranks", "1", "--machine", os.path.abspath(machine)])
    refuse_machine(machine, error_line(errors))


def extrapolated(index, options):
    """The layouts of the study on numbers of ranks that are not run."""
    layouts = {point["layout"]: point["flags"] for point in index.points}
    run = {point["ranks"] for point in index.points}
    for ranks in options.extrapolate:
        for layout, flags in sorted(layouts.items()):
            every = index.parameters["train"] + flags
            if ranks not in run and ranks % (degree(every, "tensor") * degree(every, "pipeline")) == 0:
                yield {"name": "predicted", "layout": layout, "ranks": ranks, "flags": flags, "batch": batch_of(options, ranks),
                       "extrapolated": True}


def predict(index, options):
    """Puts a prediction for each number of ranks and layout into the index: a speed, or the reason why there is none."""
    machine = options.predict
    distinct = {(point["layout"], point["ranks"]): point for point in list(index.points) + list(extrapolated(index, options))}
    found = []
    for (layout, ranks), point in sorted(distinct.items()):
        each = {"layout": layout, "ranks": ranks, "batch": point["batch"], "extrapolated": "extrapolated" in point}
        code, text, errors = ask_plan(index, point, ["--machine", os.path.abspath(machine), "--json"])
        line = error_line(errors)
        refuse_machine(machine, line)
        try:
            each["tokens_per_second"] = float(json.loads(text)["step"]["tokens_per_second"])
        except (ValueError, KeyError, TypeError):
            each["reason"] = line or "plan ended with exit code %s and without a prediction" % code
        found.append(each)
    index.predictions = {"machine": machine, "points": found}
    set_bands(index)


def measured_speeds(index):
    """By layout and ranks: the median over repeats."""
    speeds = {}
    for point in index.points:
        if point["state"] == "done":
            speeds.setdefault((point["layout"], point["ranks"]), []).append(point["tokens_per_second"])
    return {key: statistics.median(each) for key, each in speeds.items()}


def set_bands(index):
    """The band of a layout's predictions: they, times the least and the greatest measured / predicted of its points; none
    where fewer than two are measured."""
    measured, points = measured_speeds(index), index.predictions.get("points", [])
    for layout in {each["layout"] for each in points}:
        own = [each for each in points if each["layout"] == layout and "tokens_per_second" in each]
        ratios = [measured[layout, each["ranks"]] / each["tokens_per_second"] for each in own if (layout, each["ranks"]) in measured]
        for each in own:
            each.pop("low", None), each.pop("high", None)
            if len(ratios) >= 2:
                each.update(low=each["tokens_per_second"] * min(ratios), high=each["tokens_per_second"] * max(ratios))


def columns(predictions, key, measured=None):
    """Cells of the table for a layout and ranks: predicted, measured against it, band."""
    each = predictions.get(key, {})
    speed = each.get("tokens_per_second")
    differs = "%+.1f%%" % (100 * (measured / speed - 1)) if speed and measured else "-"
    band = "%.1f to %.1f" % (each["low"], each["high"]) if "low" in each else "-"
    return " %12s %8s  %s" % ("%.1f" % speed if speed else "-", differs, band)


def by_key(index):
    return {(each["layout"], each["ranks"]): each for each in index.predictions.get("points", [])}


def notes(index):
    """Lines below the table."""
    lines = ["predicted: by %s; differs: measured / predicted - 1" % index.predictions["machine"],
             "band: predicted, times the least and the greatest measured / predicted of a layout measured on two numbers of "
             "ranks or more"]
    return lines + ["no prediction: %s on %d ranks: %s" % (each["layout"], each["ranks"], each["reason"])
                    for each in index.predictions["points"] if "reason" in each]
