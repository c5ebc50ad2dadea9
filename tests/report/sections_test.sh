#!/usr/bin/env bash
# Every section that the sources open has its place in the account of time (src/report/timing.cpp),
# every place has a section, and docs/timing.md explains each. The checks are tried on sources that break them.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"
python3 - <<'END'
import pathlib
import re
import sys

timing = "src/report/timing.cpp"
opens = re.compile(r"(?:Section section\(|record_waits\(|\bsection_\()[^;{]*|\b(?:post|push_back)\(\{?\"[a-z ]*[a-z]\"")


def opened(text):
    return {name for call in opens.findall(text) for name in re.findall(r'"([a-z ]+)"', call)}


def placed(text):
    return set(re.findall(r'\{"([a-z ]+)", \{(?:communication|other|"[a-z ]+")', text))


def wrong(sources, table):
    return sorted(opened(sources) ^ placed(table))


table = pathlib.Path(timing).read_text()
sources = "".join(path.read_text() for folder in ("src", "include") for path in sorted(pathlib.Path(folder).rglob("*.?pp"))
                  if str(path) != timing)
if found := wrong(sources, table):
    sys.exit(f"{timing}: sections without a place, or places without a section: {', '.join(found)}")
if wrong(sources + 'const Section section(recorder_, "a new one");', table) != ["a new one"]:
    sys.exit("a section without a place was not found")
if wrong(sources, table + '{"an old one", {other}}') != ["an old one"]:
    sys.exit("a place without a section was not found")
manual = pathlib.Path("docs/timing.md").read_text()


def unexplained(manual):
    named = set(re.findall(r"`(?:[a-z ]+: )?([a-z ]+)`", manual))
    return sorted(placed(table) - named)


if missing := unexplained(manual):
    sys.exit(f"docs/timing.md: does not explain {', '.join(missing)}")
if unexplained(manual.replace("`servers: wait for a ticket`", "")) != ["wait for a ticket"]:
    sys.exit("a section that docs/timing.md does not explain was not found")
print(f"{len(placed(table))} sections have their place")
END
