"""Modules by level, from the table in tests/structure/includes_test.sh and CMake's USES."""
import pathlib
import re

from canvas import Canvas

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ABOUT = {
    'core': 'errors, tensors, random numbers, configuration',
    'device': 'memory, queues, streams: CPU and CUDA',
    'comm': 'MPI session, grid, communicators',
    'params': 'parameter table, tiles, layouts',
    'schedule': 'pipeline schedules, messages',
    'ops': 'operations: CPU and CUDA',
    'data': 'datasets, tokenizers, loader',
    'report': 'run record, reports',
    'model': 'units and layers',
    'optim': 'optimizers, learning rates',
    'state': 'ZeRO, gradients, norm, update',
    'parallel': 'lowering, engine, all-reduce',
    'data_parallel': 'parameter servers, periodic averaging',
    'checkpoint': 'sharded checkpoints, safetensors',
    'plan': 'prediction of memory',
    'train': 'the training loop',
    'bench': 'speed of the parts',
    'cli': 'subcommands',
}


def levels():
    """[(level, [module, ...]), ...] from the highest level down."""
    text = (SOURCE / 'tests/structure/includes_test.sh').read_text()
    words = re.search(r'levels="([^"]*)"', text).group(1).split()
    table = {}
    for module, level in zip(words[::2], words[1::2]):
        if module != 'main':
            table.setdefault(int(level), []).append(module)
    return sorted(table.items(), reverse=True)


def uses():
    """Modules that each module links directly."""
    text = re.sub(r'#.*', '', (SOURCE / 'CMakeLists.txt').read_text())
    calls = re.findall(r'trireme_module\((\w+)([^)]*)\)', text)
    found = {}
    for name, rest in calls:
        words = re.split('LIBRARIES|PRECOMPILE', rest)[0].removeprefix(' COLD').split()
        if words and words[0] != 'USES':
            raise SystemExit(f'trireme_module({name}): {words[0]} is none of its keywords')
        found[name] = words[1:]
    return found


def draw():
    rows, links = levels(), uses()
    left, width, gap = 60, 800, 8
    heights = [34 if len(modules) == 1 else 60 for _, modules in rows]
    c = Canvas(left + width + 20, 64 + sum(heights) + gap * len(rows) + 30,
               'Modules and who may use whom')
    c.text(20, 32, 'Modules: each may include those of lower levels', style='fill-ink title')
    c.text(14, 56, 'level', 'faint')
    y = 64
    for (level, modules), height in zip(rows, heights):
        c.text(38, y + height / 2 + 5, str(level), 'faint', 'end')
        box = (width - 12 * (len(modules) - 1)) / len(modules)
        for i, module in enumerate(modules):
            x = left + i * (box + 12)
            places = ([(12, 22), (140, 22), (500, 22)] if len(modules) == 1 else
                      [(12, 19), (12, 36), (12, 52)])
            words = [module, ABOUT[module],
                     'uses ' + ', '.join(links[module]) if links[module] else 'uses no other']
            styles = ['fill-ink bold', 'fill-ink small', 'fill-faint small']
            c.rect(x, y, box, height, 'box', 'blue', 6)
            for (dx, dy), text, extra in zip(places, words, styles):
                c.text(x + dx, y + dy, text, style=extra)
        y += height + gap
    c.text(left, c.height - 16, '“uses”: what the module links directly; all that those use may be '
           'included too.', 'faint')
    return c.svg()
