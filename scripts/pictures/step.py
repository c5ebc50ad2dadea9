"""One training step on a time line, from a trace: docs/pictures/step.csv."""
import csv
import pathlib

from canvas import Canvas

DATA = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'pictures' / 'step.csv'
UNITS = 3  # of each stage
COLORS = {
    'forward': 'blue',
    'backward': 'orange',
    'wait for pipeline': 'gray',
    'wait for gradients': 'gray',
    'exchange tied gradients': 'purple',
    'optimizer': 'red',
    'reduce gradients (overlapped)': 'green',
}
LEGEND = [
    ('blue', 'forward of a unit'), ('orange', 'backward of a unit'), ('gray', 'waiting'),
    ('green', 'reduction of gradients'), ('purple', 'tied gradient'), ('red', 'optimizer'),
]


def spans():
    with open(DATA, encoding='utf-8') as file:
        rows = csv.DictReader(line for line in file if not line.startswith('#'))
        return [(int(row['rank']), row['lane'], row['section'], float(row['begin_ms']),
                 float(row['duration_ms'])) for row in rows]


def draw_spans(c, rows, y, left, scale):
    """One rank's spans, and a label in the longest unit of each forward and backward pass."""
    count = {'forward': 0, 'backward': 0}
    longest = {}  # label: (visible length, its middle)
    passes = {}  # label: (begin, end)
    waits = [(b, b + d) for _, _, name, b, d in rows if name == 'wait for pipeline']
    for kinds in (tuple(count), tuple(COLORS)[2:]):  # waits are inside the others
        for _, lane, name, begin, duration in sorted((row for row in rows if row[2] in kinds),
                                                     key=lambda row: row[3]):
            below = lane == 'communication'
            c.rect(left + begin * scale, y + 34 if below else y, max(duration * scale - 0.6, 0.6),
                   14 if below else 30, COLORS[name], tip=f'{name}: {duration:.1f} ms')
            if name in count:
                label = f'{name[0].upper()}{count[name] // UNITS}'
                count[name] += 1
                end = begin + duration
                begin = max([begin] + [last for first, last in waits if begin <= first < end])
                passes[label] = (passes.get(label, (begin,))[0], end)
                longest[label] = max(longest.get(label, (0, 0)), (end - begin, (begin + end) / 2))
    for label, (length, middle) in longest.items():
        if length * scale < 18:  # too narrow: across the whole pass
            middle = sum(passes[label]) / 2
        c.text(left + middle * scale, y + 20, label, anchor='middle', style='inside')


def draw():
    rows = spans()
    end = max(begin + duration for *_, begin, duration in rows)
    left, width, top, height = 136, 760, 88, 62
    scale = width / end
    ranks = sorted({row[0] for row in rows})
    bottom = top + len(ranks) * height
    c = Canvas(left + width + 24, bottom + 76, 'One training step of four ranks on a time line')
    c.text(20, 30, 'One step: 2 pipeline stages × 2 data ranks, 1F1B, 4 micro-batches',
           style='fill-ink title')
    x = 20
    for color, words in LEGEND:
        c.rect(x, 47, 13, 13, color, None, 2)
        c.text(x + 19, 58, words, style='fill-ink small')
        x += 34 + 7.1 * len(words)
    for i in range(len(ranks)):
        c.rect(left, top + i * height, width, 30, 'box')
        c.rect(left, top + i * height + 34, width, 14, 'box')
    for tick in range(0, int(end) + 1, 50):
        x = left + tick * scale
        c.path([(x, top - 6), (x, bottom - 10)], 'line', 0.8)
        c.text(x, bottom + 8, f'{tick}', 'faint', 'middle')
    for i, rank in enumerate(ranks):
        y = top + i * height
        c.text(20, y + 16, f'rank {rank}', style='fill-ink bold')
        c.text(20, y + 33, f'stage {rank // 2}, data {rank % 2}', style='fill-faint small')
        own = [row for row in rows if row[0] == rank]
        draw_spans(c, own, y, left, scale)
    c.text(left + width, bottom + 28, 'milliseconds', 'faint', 'end')
    c.text(20, bottom + 40, 'Upper lane: the thread that computes; F0 and B0 are forward and backward '
           'of micro-batch 0, each over 3 units.', style='fill-faint small')
    c.text(20, bottom + 58, 'Lower lane: communication that overlaps. A trace of four ranks of one '
           'thread on two cores, each rank with half a core when all compute.', style='fill-faint small')
    return c.svg()
