"""The dataset of a study whose flags name none: random text, written once in the study's folder. Speed does not depend on
the text."""

import os
import random
import shutil

from study.index import ask
from study.points import Refusal

LINES = 60000  # some 4 MB


def named(program, flags):
    """Whether the flags, the environment or the configuration that they name set data.path. Where the program cannot be
    started, the points themselves will fail."""
    if any(flag.split("=", 1)[0] == "--data.path" for flag in flags) or os.environ.get("TRIREME_DATA_PATH"):
        return True
    code, text, _ = ask([program, "train", "--show", "data.path"] + flags)
    return code != 0 or text.strip() != ""


def write_text(path):
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(1, 10))) for _ in range(1000)]
    with open(path, "w") as file:
        for _ in range(LINES):
            file.write(" ".join(draw.choices(words, k=10)) + "\n")


def dataset_flags(folder, program, flags, write):
    """What to add to the flags of every point: the dataset in the study's folder where they name none, made where it is not
    there yet and `write` allows it."""
    if named(program, flags):
        return []
    path, text = os.path.join(folder, "dataset"), os.path.join(folder, "dataset.txt")
    command = [program, "prepare", "--input", text, "--output", path + ".new", "--name", "generated"]
    if write and not os.path.isdir(path):
        print("no data.path is given: a dataset of generated text is made in %s" % path, flush=True)
        shutil.rmtree(path + ".new", ignore_errors=True)  # of a study that was killed
        write_text(text)
        code, _, errors = ask(command)
        if code != 0:
            lines = [line for line in errors.splitlines() if "error: " in line]
            raise Refusal("no dataset could be made: %s" % (lines or ["%s prepare: exit code %s" % (program, code)])[0])
        os.rename(path + ".new", path)
        os.remove(text)
    return ["--data.path", path]
