"""The grid of ranks and its groups, for pipeline 2 × data 2 × tensor 4."""
from canvas import Canvas

TENSOR, DATA, STAGES = 4, 2, 2
CELL, GAP, ROW = 58, 14, 112
LEFT, TOP, PANEL_GAP = 92, 104, 110


def place(stage, data, tensor):
    panel = LEFT + stage * (TENSOR * (CELL + GAP) + PANEL_GAP)
    return panel + tensor * (CELL + GAP), TOP + data * ROW


def draw():
    c = Canvas(830, 486, 'The grid of ranks and its groups: pipeline 2, data 2, tensor 4')
    c.text(20, 30, 'Grid of 16 ranks: pipeline 2 × data 2 × context 1 × tensor 4',
           style='fill-ink title')
    width = TENSOR * (CELL + GAP) - GAP
    height = (DATA - 1) * ROW + CELL
    units = ['embedding, blocks 0–5', 'blocks 6–11, head']
    for stage in range(STAGES):
        x, y = place(stage, 0, 0)
        c.rect(x - 22, y - 50, width + 44, height + 72, 'box', 'line', 8)
        c.text(x - 10, y - 30, f'pipeline stage {stage}', style='fill-ink bold')
        c.text(x + width + 10, y - 30, units[stage], 'faint', 'end')
        for tensor in range(TENSOR):  # data groups
            x, y = place(stage, 0, tensor)
            c.rect(x + 8, y - 8, CELL - 16, height + 16, None, 'orange', 10)
        for data in range(DATA):  # tensor groups
            x, y = place(stage, data, 0)
            c.rect(x - 8, y + 4, width + 16, CELL - 8, 'blue', None, 10, 0.25)
            c.rect(x - 8, y + 4, width + 16, CELL - 8, None, 'blue', 10)
        for data in range(DATA):
            for tensor in range(TENSOR):
                x, y = place(stage, data, tensor)
                rank = (stage * DATA + data) * TENSOR + tensor
                c.rect(x + 14, y + 12, CELL - 28, CELL - 24, 'page', 'ink', 4)
                c.text(x + CELL / 2, y + CELL / 2 + 5, str(rank), anchor='middle',
                       style='fill-ink bold')
    for data in range(DATA):
        _, y = place(0, data, 0)
        c.text(16, y + CELL / 2 + 5, f'data {data}', 'faint')
        begin = place(0, data, TENSOR - 1)[0] + CELL + 26
        end = place(1, data, 0)[0] - 26
        c.path([(begin, y + 20), (end, y + 20)], 'green', 2, arrow=True)
        c.path([(end, y + 40), (begin, y + 40)], 'green', 2, arrow=True)
        c.text((begin + end) / 2, y + 12, 'activations', 'green', 'middle')
        c.text((begin + end) / 2, y + 57, 'gradients', 'green', 'middle')
    y = TOP + height + 66
    legend = [
        ('blue', 'tensor group',
         'sums and gathers of activations in every layer; neighboring ranks, inside a node'),
        ('orange', 'data group',
         'sums of gradients; shards of state under ZeRO, in shard groups and replica groups'),
        ('green', 'pipeline group',
         'messages between neighboring stages, one channel for each direction'),
        ('purple', 'embedding group',
         'first and last stage: the gradient of a tied weight; one of eight groups is drawn'),
    ]
    for i, (color, name, words) in enumerate(legend):
        c.rect(20, y + 26 * i - 11, 14, 14, color, None, 3)
        c.text(44, y + 26 * i, name, style='fill-ink bold')
        c.text(184, y + 26 * i, words)
    c.text(20, y + 26 * len(legend) + 4,
           'World ranks fill the tensor axis first, then context, data, pipeline.', 'faint')
    c.text(20, y + 26 * len(legend) + 24,
           'Ranks of equal data coordinate are one replica of the model.', 'faint')
    # One embedding group, of ranks that are equal but for the stage.
    first, last = (place(stage, DATA - 1, 0)[0] + CELL / 2 for stage in (0, STAGES - 1))
    edge, below = TOP + height - 12, TOP + height + 36
    c.path([(first, edge), (first, below), (last, below), (last, edge)], 'purple', 2)
    return c.svg()
