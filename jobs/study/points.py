"""The points of a scaling study: every number of ranks x layout, several times, in the order in which they are to run."""

import collections
import random
import re
import shlex


class Refusal(Exception):
    """A mistake of the user's, or something that the study cannot continue after; one line."""


def degree(flags, name):
    """The value that flags give --parallel.NAME, 1 where they give none."""
    text = "1"
    for i, flag in enumerate(flags):
        if flag == "--parallel." + name and i + 1 < len(flags):
            text = flags[i + 1]
        elif flag.startswith("--parallel.%s=" % name):
            text = flag.split("=", 1)[1]
    if not re.match(r"^0*[1-9][0-9]*$", text):
        raise Refusal("--parallel.%s %s: must be a number of at least 1" % (name, text))
    return int(text)


def automatic_layouts(ranks, per_node):
    layouts = collections.OrderedDict(data=[])
    if ranks > 1:
        layouts["zero1"] = ["--parallel.zero", "1"]
    tensor = 1
    while tensor < 8 and 2 * tensor <= per_node and ranks % (2 * tensor) == 0:
        tensor *= 2
    if tensor > 1:  # inside a node
        layouts["tensor%d" % tensor] = ["--parallel.tensor", str(tensor)]
    if ranks % 2 == 0:
        layouts["pipeline2"] = ["--parallel.pipeline", "2"]
    if tensor > 1 and ranks % (2 * tensor) == 0:
        layouts["tensor%d-pipeline2" % tensor] = ["--parallel.tensor", str(tensor), "--parallel.pipeline", "2"]
    return layouts


def read_layouts(path):
    layouts = collections.OrderedDict()
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise Refusal("--layouts %s: %s" % (path, error.strerror))
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            degree(words, "tensor"), degree(words, "pipeline")
        except (ValueError, Refusal) as error:  # of shlex: no closing quotation
            raise Refusal("%s:%d: %s" % (path, number, error))
        if not words:
            continue
        if not re.match(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", words[0]) or words[0] in layouts:
            raise Refusal("%s:%d: '%s' must be a name of letters and digits, each once" % (path, number, words[0]))
        layouts[words[0]] = words[1:]
    if not layouts:
        raise Refusal("--layouts %s: has no line NAME FLAGS" % path)
    return layouts


def per_node_of(options, launcher):
    return options.ranks_per_node or (max(options.ranks) if launcher == "local" else 1)


def batch_of(options, ranks):
    """Sequences of a global batch; weak scaling needs the same number on every rank, to the last one."""
    if options.mode == "strong":
        return options.batch
    smallest = options.ranks[0]
    if options.batch * ranks % smallest != 0:
        raise Refusal("--batch %d at %d ranks would be %g at %d: weak scaling needs whole sequences, so use a multiple of %d"
                      % (options.batch, smallest, options.batch * ranks / smallest, ranks, smallest))
    return options.batch * ranks // smallest


def make_points(options, launcher):
    """All points of the study in the order in which they are to run: each repeat is a round of all points, shuffled
    differently, so that a machine that grows slower, or slows down for a while, does so for all of them alike."""
    files = options.layouts  # of a benchmark case the one layout itself
    if isinstance(files, str):
        files = None if files == "auto" else read_layouts(files)
    left_out, points = [], []
    for repeat in range(1, options.repeats + 1):
        rounds = []
        for ranks in options.ranks:
            layouts = files or automatic_layouts(ranks, min(ranks, per_node_of(options, launcher)))
            batch = batch_of(options, ranks)
            for name, flags in layouts.items():
                every = options.train + flags
                if ranks % (degree(every, "tensor") * degree(every, "pipeline")) != 0:
                    left_out.append("%s on %d ranks" % (name, ranks))
                    continue
                rounds.append({"name": "%s-r%05d-%s-%d" % (options.mode, ranks, name, repeat), "ranks": ranks,
                               "layout": name, "flags": flags, "batch": batch, "repeat": repeat, "state": "waiting"})
        random.Random(1000 * options.seed + repeat).shuffle(rounds)
        points += rounds
    if not points:
        raise Refusal("no layout fits any of these numbers of ranks")
    return points, sorted(set(left_out))
