#!/usr/bin/env python3
"""The models of trireme_bench_steps in PyTorch, on the same device, in the same run.

    torch_steps.py RESULTS [--device cuda|cpu] [--seconds 8] [--no-compile] [--json FILE]

RESULTS is what trireme_bench_steps --results wrote. Each of its cases is built again: the same shapes,
batch and sequence, weights in fp32 with autocast to bf16, torch.compile, scaled_dot_product_attention
(cuDNN's or flash), cross-entropy, clipping to norm 1 and fused AdamW; Llama's
rotary frequencies are those before its stretching, which is as much work. Printed are the times of both and
their ratio; FILE gets PyTorch's as JSON, with the process's peak resident memory, for bench/compare.py.
Where a batch does not fit it is cut into micro-batches, and the line reports it. Without
PyTorch, or without a GPU where one is asked for, one line reports what is skipped, and the exit code is 0.
"""
import argparse
import contextlib
import json
import math
import statistics
import sys
import time


def skip(why):
    print(f"PyTorch beside: skipped, {why}")
    sys.exit(0)


try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    skip(f"it is not here, or older than 2.5 ({error})")
if not hasattr(torch, "OutOfMemoryError"):
    skip(f"PyTorch {torch.__version__} is older than 2.5")


# Fails instead of falling back to a slower kernel.
FUSED = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


class RmsNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return functional.rms_norm(x, (x.shape[-1],), self.gain, self.epsilon)


def norm_of(model):
    if model["norm"] == "layernorm":
        return nn.LayerNorm(model["width"], eps=model["epsilon"], bias=model["bias"])
    return RmsNorm(model["width"], model["epsilon"])


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        width, bias = model["width"], model["bias"]
        self.heads, self.groups = model["heads"], model["kv_heads"]
        self.size = width // self.heads
        self.gated = model["activation"] == "swiglu"
        self.norm1, self.norm2 = norm_of(model), norm_of(model)
        self.qkv = nn.Linear(width, (self.heads + 2 * self.groups) * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, model["hidden"] * (2 if self.gated else 1), bias=bias)
        self.down = nn.Linear(model["hidden"], width, bias=bias)

    def rotate(self, x, turns):
        cosine, sine = turns
        half = self.size // 2
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(x.dtype)

    def forward(self, x, turns):
        rows, length, _ = x.shape
        queries, keys = self.heads * self.size, self.groups * self.size
        q, k, v = self.qkv(self.norm1(x)).split((queries, keys, keys), dim=-1)
        q = q.view(rows, length, self.heads, self.size).transpose(1, 2)
        k = k.view(rows, length, self.groups, self.size).transpose(1, 2)
        v = v.view(rows, length, self.groups, self.size).transpose(1, 2)
        if turns is not None:
            q, k = self.rotate(q, turns), self.rotate(k, turns)
        shared = {"enable_gqa": True} if self.groups != self.heads else {}
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **shared)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, queries))
        hidden = self.up(self.norm2(x))
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = functional.silu(gate) * value
        else:
            hidden = functional.gelu(hidden, approximate="tanh")
        return x + self.down(hidden)


class Transformer(nn.Module):
    def __init__(self, model):
        super().__init__()
        width, length = model["width"], model["sequence"]
        self.tokens = nn.Embedding(model["vocabulary"], width)
        learned = model["position"] == "learned"
        self.positions = nn.Embedding(length, width) if learned else None
        self.blocks = nn.ModuleList(Block(model) for _ in range(model["layers"]))
        self.norm = norm_of(model)
        self.head = nn.Linear(width, model["vocabulary"], bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        if model["tied"]:
            self.head.weight = self.tokens.weight
        if not learned:
            half = width // model["heads"] // 2
            frequencies = model["rope_theta"] ** (-torch.arange(half) / half)
            angles = torch.outer(torch.arange(length), frequencies)
            self.register_buffer("cosine", angles.cos(), persistent=False)
            self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, inputs, targets):
        x = self.tokens(inputs)
        turns = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        else:
            turns = (self.cosine, self.sine)
        for block in self.blocks:
            x = block(x, turns)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def parameters_of(model):
    return sum(weight.numel() for weight in model.parameters())


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def resident_bytes():
    """Peak memory of this process so far; 0 if the system does not report it."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def time_steps(case, device, options, parts):
    """Seconds of each step whose batch is split into `parts`, its loss, and the peak of bytes held."""
    torch.manual_seed(1)
    model = Transformer(case["model"]).to(device)
    count = parameters_of(model)
    if count != case["parameters"]:
        raise RuntimeError(f"{count} parameters where trireme has {case['parameters']}")
    # Matrices and embeddings decay, as trireme's do.
    groups = [
        {"params": [w for w in model.parameters() if w.dim() > 1], "weight_decay": 0.1},
        {"params": [w for w in model.parameters() if w.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    run = torch.compile(model) if options.compile else model
    shape = (case["batch"], case["sequence"] + 1)
    tokens = torch.randint(case["model"]["vocabulary"], shape, device=device)
    rows = case["batch"] // parts
    narrow = torch.autocast(device.type, torch.bfloat16, enabled=case["compute"] == "bf16")
    fused = device.type == "cuda" and case["compute"] == "bf16"

    def step():
        total = torch.zeros((), device=device)
        for first in range(0, case["batch"], rows):
            part = tokens[first : first + rows]
            with narrow, sdpa_kernel(FUSED) if fused else contextlib.nullcontext():
                loss = run(part[:, :-1].contiguous(), part[:, 1:].contiguous()) / parts
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total.item()  # the host's only wait, as in trireme

    for _ in range(3):
        loss = step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, begin = [], time.perf_counter()
    while len(seconds) < 5 or (len(seconds) < 50 and time.perf_counter() - begin < options.seconds):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    wait(device)
    held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return seconds, loss, held


def compare(case, device, options):
    parts = 1
    while True:
        try:
            all_seconds, loss, held = time_steps(case, device, options, parts)
            break
        except torch.OutOfMemoryError as error:
            if case["batch"] % (2 * parts) != 0:
                print(f"{case['preset']}: PyTorch: {str(error).splitlines()[0]}")
                return None
        torch.cuda.empty_cache()  # outside the handler, which keeps what failed alive
        parts *= 2
    if not math.isfinite(loss):
        print(f"{case['preset']}: PyTorch: its loss is {loss}: no figure")
        return None
    seconds = statistics.median(all_seconds)
    tokens = case["batch"] * case["sequence"]
    own = case["step_seconds"]
    cut = f" in {parts} micro-batches" if parts > 1 else ""
    print(
        f"{case['preset']} ({case['compute']}, batch {case['batch']} x {case['sequence']}): PyTorch "
        f"{1e3 * seconds:.2f} ms{cut}, {tokens / seconds:.0f} tokens/s, {held / 2**30:.2f} GiB at "
        f"most, loss {loss:.3f}; Trireme {1e3 * own:.2f} ms, {tokens / own:.0f} tokens/s, "
        f"{case['memory_bytes'] / 2**30:.2f} GiB; Trireme/PyTorch {seconds / own:.3f} of the speed"
    )
    return {
        "preset": case["preset"],
        "compute": case["compute"],
        "step_seconds": seconds,
        "all_step_seconds": all_seconds,
        "resident_bytes": resident_bytes(),
        "device_bytes": held,
        "loss": loss,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="what trireme_bench_steps --results wrote")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=8, help="of timed steps per model")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json", metavar="FILE", help="where PyTorch's figures go")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} sees no GPU")
    try:
        with open(options.results, encoding="utf-8") as file:
            results = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"torch_steps.py: {options.results}: {error}; make it with trireme_bench_steps --results")
    device = torch.device(options.device)
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    compiled = "compiled" if options.compile else "not compiled"
    print(f"PyTorch {torch.__version__} on {what}, {compiled}; Trireme on {results['device']}")
    if device.type == "cuda" and what not in results["device"]:
        sys.exit("torch_steps.py: these are two devices; run both on the same one")
    torch.set_float32_matmul_precision("highest")
    cases = []
    for case in results["cases"]:
        cases.append(compare(case, device, options))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "compiled": options.compile, "cases": cases}, file)


if __name__ == "__main__":
    main()
