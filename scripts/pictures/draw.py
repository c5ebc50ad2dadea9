#!/usr/bin/env python3
"""Draws docs/pictures: python3 scripts/pictures/draw.py [--check].

--check compares with the committed files instead and fails where one differs.
"""
import importlib
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PICTURES = ['grid', 'modules', 'step', 'memory']


def main():
    check = sys.argv[1:] == ['--check']
    stale = []
    for name in PICTURES:
        file = SOURCE / 'docs' / 'pictures' / f'{name}.svg'
        text = importlib.import_module(name).draw()
        if not check:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            stale.append(file.relative_to(SOURCE))
    for file in stale:
        print(f'{file} is not what scripts/pictures/draw.py draws; run it and commit the result')
    return 1 if stale else 0


if __name__ == '__main__':
    sys.exit(main())
