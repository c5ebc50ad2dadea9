#!/usr/bin/env python3
"""Data of docs/pictures, taken from runs; prints CSV.

    extract.py step RUN/attempts/0001/trace.json NUMBER   one step of a trace, NUMBER from 0, of
        mpirun -n 4 trireme train [TRAIN below] --data.path DATASET --train.output RUN
    extract.py memory TRIREME                             what `trireme plan` predicts
"""
import json
import subprocess
import sys

# label; options of trireme plan
LAYOUTS = [
    ('data 8', ''),
    ('data 8, ZeRO 1', '--parallel.zero 1'),
    ('data 8, ZeRO 2', '--parallel.zero 2'),
    ('data 8, ZeRO 3', '--parallel.zero 3'),
    ('data 8, ZeRO 3, full recomputation', '--parallel.zero 3 --parallel.recompute full'),
    ('pipeline 4 × data 2, ZeRO 1', '--parallel.pipeline 4 --parallel.zero 1'),
    ('tensor 4 × data 2, ZeRO 1', '--parallel.tensor 4 --parallel.zero 1'),
]
PLAN = ('plan --ranks 8 --model.preset gpt2-xl --model.vocabulary 50257 --train.batch 32 '
        '--train.micro_batch 1')


TRAIN = ('--model.preset small --model.layers 4 --parallel.pipeline 2 --parallel.bucket_mb 4 '
         '--train.batch 16 --train.micro_batch 2 --train.steps 8')


def step(trace, number):
    with open(trace) as file:
        spans = [e for e in json.load(file)['traceEvents'] if e['ph'] == 'X']
    rows = []
    for rank in sorted({e['pid'] for e in spans}):
        own = sorted((e for e in spans if e['pid'] == rank), key=lambda e: e['ts'])
        begins = [e['ts'] for e in own if e['name'] == 'load data'] + [float('inf')]
        rows += [(rank, e) for e in own if begins[number] <= e['ts'] < begins[number + 1]
                 and e['name'] != 'checkpoint']
    first = min(e['ts'] for _, e in rows)
    print(f'# Step {number + 1} of mpirun -n 4 trireme train {TRAIN}; '
          'by scripts/pictures/extract.py')
    print('rank,lane,section,begin_ms,duration_ms')
    for rank, e in rows:
        lane = 'communication' if e['tid'] == 1 else 'compute'
        print(f"{rank},{lane},{e['name']},{(e['ts'] - first) / 1000:.3f},{e['dur'] / 1000:.3f}")


def memory(program):
    print(f'# MiB of the fullest rank by use: trireme {PLAN} [options]; '
          'by scripts/pictures/extract.py')
    print('layout,options,use,MiB')
    for label, options in LAYOUTS:
        text = subprocess.run([program, *PLAN.split(), '--json', *options.split()], check=True,
                              stdout=subprocess.PIPE, encoding='utf-8').stdout
        fullest = max(json.loads(text)['columns'], key=lambda column: column['host_bytes'])
        for use, held in fullest['bytes'].items():
            if round(held / 2**20, 1) > 0:
                print(f'"{label}",{options},{use},{held / 2**20:.1f}')


if __name__ == '__main__':
    if sys.argv[1:2] == ['step'] and len(sys.argv) == 4:
        step(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ['memory'] and len(sys.argv) == 3:
        memory(sys.argv[2])
    else:
        sys.exit(__doc__)
