#!/usr/bin/env python3
"""Formatting and static analysis of every source: lint.py BUILD_FOLDER [FILE...].

The folder has compile_commands.json. Sources with the same flags are analyzed together, as one
translation unit that includes them: clang-tidy spends most of its time on the headers they share.
If they do not compile together (two names in unnamed namespaces), each half is tried. Headers are
analyzed through the sources that include them. A source that was found clean is not analyzed again
while its preprocessed text, comments included, the rules and the analyzer are unchanged:
BUILD_FOLDER/lint has an empty file for each such text. Prints findings; exits 1 if there are any.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib

import shlex
import subprocess
import sys

FOLDERS = ("src", "tests", "bench", "examples")
TOGETHER = 8  # sources in a translation unit
# The static analyzer takes three quarters of the time on tests, which the sanitizers run anyway.
WITHOUT_ANALYZER = ("tests", "bench")
HEADERS = r"(include/trireme|src|tests|bench|examples)/.*\.[ch]pp$"
# A third of the analyzer's default number of states in a function: it takes 4 s less a source.
STATES = [word for option in ("-analyzer-config", "max-nodes=75000") for word in ("-Xclang", option)]

def read_commands(build):
    """The flags of each source, relative to the current folder, without those only for GCC."""
    flags = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = os.path.relpath(entry["file"])
        if file in flags or not file.endswith(".cpp") or file.split("/")[0] not in FOLDERS:
            continue
        words = shlex.split(entry["command"])[1:]
        if "-include" in words:  # GCC's precompiled header
            del words[words.index("-include") : words.index("-include") + 2]
        for word in ("-o", "-c"):
            del words[words.index(word) : words.index(word) + 2]
        flags[file] = [w for w in words if w not in ("-Winvalid-pch", "-fpch-preprocess")]
    return flags

class Linter:
    def __init__(self, build):
        self.marks = build / "lint"
        self.marks.mkdir(parents=True, exist_ok=True)
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
        self.rules = version + pathlib.Path(".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()

    def mark(self, file, flags):
        """The stamp of a source's text. It exists once the source was found clean."""
        command = ["c++", *flags, "-w", "-E", "-C", "-P", file]
        text = subprocess.run(command, capture_output=True)
        if text.returncode != 0:
            sys.exit(f"lint: {file} cannot be preprocessed:\n{text.stderr.decode()}")
        return self.marks / hashlib.sha256(self.rules + file.encode() + text.stdout).hexdigest()

    def tidy(self, unit, flags, *options):
        command = ["clang-tidy", "--quiet", f"--header-filter={HEADERS}", *options, unit, "--"]
        return subprocess.run(command + flags + STATES, capture_output=True, text=True)

    def analyze(self, files, flags):
        """Analyzes sources of one folder together. Returns those that are clean."""
        checks = "--checks=-clang-analyzer-*" if files[0].split("/")[0] in WITHOUT_ANALYZER else "--checks="
        if len(files) == 1:
            unit = files[0]
        else:
            text = "".join(f'#include "{os.path.abspath(file)}"  // NOLINT\n' for file in files)
            unit = str(self.marks / f"unit-{hashlib.sha256(text.encode()).hexdigest()}.cpp")
            pathlib.Path(unit).write_text(text)
            if self.tidy(unit, flags, "--checks=-*,modernize-use-nullptr").returncode != 0:
                half = len(files) // 2
                return self.analyze(files[:half], flags) + self.analyze(files[half:], flags)
        result = self.tidy(unit, flags, checks)
        print(f"clang-tidy {' '.join(files)}", flush=True)
        if result.returncode == 0:
            return files
        print(result.stdout, flush=True)
        return []

def main():
    build = pathlib.Path(sys.argv[1])
    subprocess.run(["bash", "tests/structure/format_test.sh"], check=True)
    linter = Linter(build)
    flags = read_commands(build)
    sources = sorted(str(p) for folder in FOLDERS for p in pathlib.Path(folder).rglob("*.cpp"))
    for file in sources:
        if file not in flags:
            print(f"not in this build, not analyzed: {file}")
    named = [os.path.relpath(file) for file in sys.argv[2:]]
    for file in named:
        if file not in flags:
            sys.exit(f"lint: {file} is no source of this build")
    wanted = named or [file for file in sources if file in flags]
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("LINT_JOBS", os.cpu_count()))) as pool:
        marks = dict(zip(wanted, pool.map(lambda file: linter.mark(file, flags[file]), wanted)))
        alike = {}
        for file in wanted:
            if not marks[file].exists():
                alike.setdefault((file.split("/")[0], *flags[file]), []).append(file)
        batches = [files[i : i + TOGETHER] for files in alike.values() for i in range(0, len(files), TOGETHER)]
        print(f"clang-tidy: {len(wanted)} sources, {sum(map(len, batches))} to analyze", flush=True)
        clean = 0
        for files in pool.map(lambda files: linter.analyze(files, flags[files[0]]), batches):
            clean += len(files)
            for file in files:
                marks[file].touch()
    if clean != sum(map(len, batches)):
        sys.exit("clang-tidy: findings above")
    print("clang-tidy: no findings")

if __name__ == "__main__":
    main()
