#!/usr/bin/env python3
"""Checks the links of every document that lead into this tree: the file, and the heading after '#'."""

import pathlib
import re
import sys

def headings(text):
    """As GitHub writes them after '#'."""
    found, code = set(), False
    for line in text.splitlines():
        code ^= line.startswith("```")
        if not code and (match := re.match(r"#+ (.*)", line)):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match.group(1)).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found

hidden = ("build", ".git")
documents = {path.resolve(): path.read_text() for path in pathlib.Path().rglob("*.md") if path.parts[0] not in hidden}
wrong = links = 0
for path, text in documents.items():
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        links += 1
        file, _, heading = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists() or (heading and place in documents and heading not in headings(documents[place])):
            print(f"{path.relative_to(pathlib.Path.cwd())}: no such place: {target}")
            wrong += 1
print(f"{links} links, {wrong} wrong")
sys.exit(wrong > 0 or links == 0)
