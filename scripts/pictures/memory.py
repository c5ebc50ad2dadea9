"""Memory of one rank by use, in several layouts: docs/pictures/memory.csv."""
import csv
import pathlib

from canvas import Canvas

DATA = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'pictures' / 'memory.csv'
COLORS = {
    'parameters': 'blue', 'gradients': 'orange', 'optimizer': 'red', 'stash': 'green',
    'gathered': 'purple', 'workspace': 'yellow', 'communication': 'teal',
}
NAMES = {'stash': 'stash (kept for backward)', 'gathered': 'gather buffers'}


def draw():
    with open(DATA, encoding='utf-8') as file:
        table = list(csv.DictReader(line for line in file if not line.startswith('#')))
    layouts = list(dict.fromkeys(row['layout'] for row in table))
    left, width, top, height = 262, 540, 92, 38
    totals = {name: sum(float(row['MiB']) for row in table if row['layout'] == name)
              for name in layouts}
    scale = width / max(totals.values())
    bottom = top + len(layouts) * height
    c = Canvas(left + width + 98, bottom + 66, 'Memory of one rank by use, in seven layouts')
    c.text(20, 30, 'Memory of the fullest of 8 ranks: GPT-2 XL (1.6 billion parameters), fp32, AdamW',
           style='fill-ink title')
    x = 20
    for use, color in COLORS.items():
        words = NAMES.get(use, use)
        c.rect(x, 50, 13, 13, color, None, 2)
        c.text(x + 19, 61, words, style='fill-ink small')
        x += 34 + 7.1 * len(words)
    for gib in range(0, int(max(totals.values()) / 1024) + 1, 5):
        x = left + gib * 1024 * scale
        c.path([(x, top - 6), (x, bottom)], 'line', 0.8)
        c.text(x, bottom + 18, f'{gib} GiB', 'faint', 'middle')
    for i, name in enumerate(layouts):
        y, x = top + i * height, left
        c.text(left - 12, y + 18, name, anchor='end')
        for row in sorted((row for row in table if row['layout'] == name),
                          key=lambda row: list(COLORS).index(row['use'])):
            mib = float(row['MiB'])
            c.rect(x, y, mib * scale, 26, COLORS[row['use']], None,
                   tip=f"{row['use']}: {mib:.1f} MiB")
            x += mib * scale
        c.text(x + 8, y + 18, f'{totals[name] / 1024:.1f} GiB', style='fill-ink bold')
    c.text(20, bottom + 46, 'As `trireme plan --ranks 8` predicts it: sequences of 1,024 tokens, batch '
           '32, micro-batch 1; docs/pictures/memory.csv has the options.', style='fill-faint small')
    return c.svg()
