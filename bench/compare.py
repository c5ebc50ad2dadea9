#!/usr/bin/env python3
"""Whole training steps on CPUs: share of the matrix-product peak, compared with PyTorch's speed and memory.

    compare.py STEPS [--rounds 3] [--types fp32,bf16] [--cases small:12,gpt2:4:1024] [--python PYTHON]
               [--json FILE] [--no-peers]

STEPS is the program trireme_bench_steps. Each round runs, one after another and each in a process of its
own, Trireme on one rank with all cores, Trireme on two ranks with half of them each, and PyTorch eager and
compiled; a figure is the median over rounds of the rounds' medians (of the ratio within a round, where it
is a ratio), the spread the least and the greatest. PyTorch is what `PYTHON` imports (by default
the one that runs this, or the virtual environment .venv-peers; install it with `pip install torch`); without
it one line reports that, and its columns stay empty.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def cores():
    return len(os.sched_getaffinity(0))


def environment(threads):
    # Processes that bind themselves would all take the first cores.
    bind = "true" if threads == cores() else "false"
    return {**os.environ, **MPI, "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": bind}


def run(command, threads):
    try:
        return subprocess.run(
            command, env=environment(threads), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{error}; install it or name another")


def failed(what, result):
    lines = (result.stderr + result.stdout).strip().splitlines()
    print(f"compare.py: {what}: exit code {result.returncode}: {lines[-1] if lines else 'no output'}", file=sys.stderr)


def trireme(options, folder, kind, case, ranks):
    """The case's figures on `ranks` ranks, which share its batch and the cores; None if it fails."""
    preset, batch, *rest = (case if ":" in case else case + ":1").split(":")
    if ranks > 1:
        if int(batch) % ranks != 0 or cores() < ranks:
            return None
        case = ":".join([preset, str(int(batch) // ranks), *rest])
    results = os.path.join(folder, "trireme.json")
    command = [options.steps, "--results", results, "cpu", kind, case]
    if ranks > 1:
        command = [options.mpiexec, "-n", str(ranks), *command]
    result = run(command, cores() // ranks)
    if result.returncode != 0:
        failed(f"Trireme, {kind}, {case}, {ranks} ranks", result)
        return None
    with open(results, encoding="utf-8") as file:
        return json.load(file)["cases"][0]


def torch(options, folder, compiled):
    """PyTorch's figures for the case whose results Trireme wrote to `folder`."""
    own = os.path.join(folder, "torch.json")
    command = [options.python, os.path.join(HERE, "peers", "torch_steps.py")]
    command += [os.path.join(folder, "one.json"), "--device", "cpu", "--json", own]
    if not compiled:
        command.append("--no-compile")
    if os.path.exists(own):
        os.remove(own)
    result = run(command, cores())
    if result.returncode != 0 or not os.path.exists(own):
        failed("PyTorch", result)
        return None
    with open(own, encoding="utf-8") as file:
        figures = json.load(file)
    return None if figures["cases"][0] is None else {**figures["cases"][0], "torch": figures["torch"]}


def has_torch(python):
    probe = "import torch; print(torch.__version__)"
    result = run([python, "-c", probe], cores())
    return result.stdout.strip() if result.returncode == 0 else ""


def spread(values):
    """Median, minimum and maximum; None for an empty list."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values), "n": len(values)}


def text(figure, digits=2):
    if figure is None:
        return "-"
    return f"{figure['median']:.{digits}f} ({figure['least']:.{digits}f}–{figure['greatest']:.{digits}f})"


def ratio(above, below):
    return None if above is None or below is None or below == 0 else above / below


def round_of(options, folder, kind, case):
    one = trireme(options, folder, kind, case, 1)
    if one is None:
        return None
    shutil.copy(os.path.join(folder, "trireme.json"), os.path.join(folder, "one.json"))
    two = trireme(options, folder, kind, case, 2)
    peers = {}
    if options.peer:
        peers = {name: torch(options, folder, name == "compiled") for name in ("eager", "compiled")}
    best = min((p["step_seconds"] for p in peers.values() if p), default=None)
    least_memory = min((p["resident_bytes"] for p in peers.values() if p), default=None)
    return {
        "trireme": one,
        "two_ranks": two,
        "peers": peers,
        "share_of_peak": one["mfu_of_measured"],
        "share_of_peak_at_best": one["mfu_of_measured"] * one["step_seconds"] / min(one["all_step_seconds"]),
        "speed_beside_torch": ratio(best, one["step_seconds"]),
        "memory_beside_torch": ratio(one["resident_bytes"], least_memory),
        "two_ranks_beside_one": ratio(one["step_seconds"], two["step_seconds"] if two else None),
        "torch_eager_seconds": peers["eager"]["step_seconds"] if peers.get("eager") else None,
        "torch_compiled_seconds": peers["compiled"]["step_seconds"] if peers.get("compiled") else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", metavar="STEPS", help="the program trireme_bench_steps")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 1001), metavar="N")
    parser.add_argument("--types", default="fp32,bf16")
    parser.add_argument("--cases", default="small:12,gpt2:4:1024")
    parser.add_argument("--python", default="")
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--no-peers", dest="peer", action="store_false")
    options = parser.parse_args()
    if not options.python:
        local = os.path.join(HERE, "..", ".venv-peers", "bin", "python")
        options.python = local if os.path.exists(local) else sys.executable
    version = has_torch(options.python) if options.peer else ""
    if options.peer and not version:
        print("PyTorch beside: skipped, it is not installed; python3 -m venv .venv-peers && .venv-peers/bin/pip install torch")
        options.peer = False
    print(f"{cores()} cores; each figure: median (least–greatest) of {options.rounds} rounds" + (f"; PyTorch {version}" if version else ""))
    print(f"{'model':<14}{'type':<6}{'ms a step':>26}{'share of peak':>20}{'of its best step':>20}{'2 ranks / 1':>20}{'speed / PyTorch':>20}{'memory / PyTorch':>20}")
    all_rows = []
    for kind in options.types.split(","):
        for case in options.cases.split(","):
            with tempfile.TemporaryDirectory() as folder:
                rounds = [round_of(options, folder, kind, case) for _ in range(options.rounds)]
            rounds = [each for each in rounds if each]
            if not rounds:
                continue
            row = {"case": case, "type": kind, "rounds": rounds}
            row["milliseconds"] = spread([1e3 * each["trireme"]["step_seconds"] for each in rounds])
            for key in ("share_of_peak", "share_of_peak_at_best", "two_ranks_beside_one", "speed_beside_torch", "memory_beside_torch",
                        "torch_eager_seconds", "torch_compiled_seconds"):
                row[key] = spread([each[key] for each in rounds])
            all_rows.append(row)
            print(
                f"{case:<14}{kind:<6}{text(row['milliseconds'], 1):>26}{text(row['share_of_peak'], 3):>20}"
                f"{text(row['share_of_peak_at_best'], 3):>20}"
                f"{text(row['two_ranks_beside_one']):>20}{text(row['speed_beside_torch']):>20}{text(row['memory_beside_torch']):>20}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"cores": cores(), "torch": version, "rows": all_rows}, file, indent=1)
    return 0 if all_rows else 1


if __name__ == "__main__":
    sys.exit(main())
