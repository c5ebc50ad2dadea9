#!/usr/bin/env python3
"""Makes the golden files that the C++ model tests compare with, or checks the committed ones.

    make_reference.py            write reference.json and one .bin file per case beside this script
    make_reference.py --check    recompute everything from the committed parameters and compare

Everything is computed in float64 from parameters that are exact in float32. Each result is computed
twice: by the explicit formulas of `Model` and `adamw_steps`, and by PyTorch's own functions in
`second_opinion_logits` and `second_opinion_steps`; autograd is held against central differences. README.md
says what the files contain.
"""
import argparse
import datetime
import json
import math
import pathlib
import platform

import numpy
import torch
import torch.nn.functional as functional

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"f32": numpy.dtype("<f4"), "f64": numpy.dtype("<f8"), "i32": numpy.dtype("<i4")}

# The keys of section "model" of a run's configuration.
COMMON = {"layers": 3, "width": 48, "heads": 4, "vocabulary": 101, "sequence": 37, "epsilon": 1e-5}
GPT2 = dict(COMMON, kv_heads=4, hidden=192, norm="layernorm", position="learned", activation="gelu", bias=True,
            tied=True)
LLAMA = dict(COMMON, kv_heads=2, hidden=130, norm="rmsnorm", position="rotary", rope_theta=10000.0,
             rope_scaling="none", activation="swiglu", bias=False, tied=False)
LLAMA3_ROPE = dict(LLAMA, rope_scaling="llama3", rope_factor=8.0, rope_low_frequency_factor=1.0,
                   rope_high_frequency_factor=4.0, rope_original_sequence=32)
PACKED = dict(LLAMA, layers=2, width=32, hidden=72, vocabulary=32, sequence=512)
BATCH = {"packed": 2}  # sequences; 3 elsewhere
# Tokens of the documents that fill each sequence of a case: of one token, of a few, and longer than its eighth.
DOCUMENTS = {"packed": [[1, 40, 23, 1, 63, 130, 2, 252], [300, 5, 84, 3, 120]]}
# name, configuration, seed, all target weights 1, case whose parameters it uses, gradients and optimizer too
CASES = [("gpt2", GPT2, 20261121, True, None, True), ("llama", LLAMA, 20261122, False, None, True),
         ("llama3_rope", LLAMA3_ROPE, 20261123, False, "llama", False),
         ("packed", PACKED, 20261128, False, None, True)]
# Standard deviations of the random parameters: large enough that no gradient is tiny and attention is not flat,
# and such that the gradient norm crosses the clipping bound during the ten steps.
SCALE = {"gpt2": {"embedding": 0.15, "matrix": 0.18, "last_gain": 0.45},
         "llama": {"embedding": 0.5, "head": 0.07, "matrix": 0.14, "last_gain": 0.75},
         "packed": {"embedding": 0.5, "head": 0.24, "matrix": 0.2, "last_gain": 1.1}}
ADAMW = {"steps": 10, "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
         "clip_norm": 1.0, "clip_epsilon": 1e-6}

BATCH_TENSORS = ("ids", "targets", "weights", "documents")


def shapes(c):
    """Name -> shape of every parameter, in the order of the model."""
    width, hidden = c["width"], c["hidden"]
    head = width // c["heads"]
    out = {}

    def linear(name, rows, columns):
        out[name + ".weight"] = (rows, columns)
        if c["bias"]:
            out[name + ".bias"] = (rows,)

    def norm(name):
        out[name + ".weight"] = (width,)
        if c["norm"] == "layernorm" and c["bias"]:
            out[name + ".bias"] = (width,)

    out["embedding.token.weight"] = (c["vocabulary"], width)
    if c["position"] == "learned":
        out["embedding.position.weight"] = (c["sequence"], width)
    for i in range(c["layers"]):
        block = f"blocks.{i}."
        norm(block + "norm1")
        linear(block + "attention.qkv", (c["heads"] + 2 * c["kv_heads"]) * head, width)
        linear(block + "attention.out", width, c["heads"] * head)
        norm(block + "norm2")
        if c["activation"] == "gelu":
            linear(block + "mlp.up", hidden, width)
        else:
            linear(block + "mlp.gate_up", 2 * hidden, width)
        linear(block + "mlp.down", width, hidden)
    norm("head.norm")
    if not c["tied"]:
        out["head.weight"] = (c["vocabulary"], width)
    return out


def decays(name, shape):
    """Weight decay acts on matrices, embeddings among them, and not on gains and biases."""
    return len(shape) == 2


def random_parameters(c, scale, generator):
    out = {}
    for name, shape in shapes(c).items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.startswith("embedding"):
            value = scale["embedding"] * noise
        elif name == "head.weight":
            value = scale["head"] * noise
        elif len(shape) == 2:
            value = scale["matrix"] * noise
        elif "norm" in name and name.endswith("weight"):
            value = (scale["last_gain"] if name == "head.norm.weight" else 1) * (1 + 0.1 * noise)
        else:
            value = 0.1 * noise
        out[name] = value.float().double()
    return out


def random_batch(name, c, unit_weights, generator):
    """ids, targets, weights and, in a packed case, each token's document, [sequences, tokens]."""
    count = BATCH.get(name, 3)
    text = torch.randint(0, c["vocabulary"], (count, c["sequence"] + 1), generator=generator)
    if unit_weights:
        weights = torch.ones(count, c["sequence"], dtype=torch.float64)
    else:
        choice = torch.tensor([0.0, 0.25, 1.0, 1.0, 1.75], dtype=torch.float64)
        weights = choice[torch.randint(0, 5, (count, c["sequence"]), generator=generator)]
    documents = None
    if name in DOCUMENTS:
        documents = torch.tensor([[d for d, tokens in enumerate(row) for _ in range(tokens)] for row in DOCUMENTS[name]])
        last = torch.ones(count, c["sequence"], dtype=torch.bool)  # the next token is of another document
        last[:, :-1] = documents[:, 1:] != documents[:, :-1]
        weights = weights.masked_fill(last, 0)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous(), weights, documents


def positions_of(ids, documents):
    """[sequences, tokens]: each token's place in its document."""
    place = torch.arange(ids.shape[1]).expand(ids.shape)
    if documents is None:
        return place
    return torch.stack([torch.tensor([i - row.index(d) for i, d in enumerate(row)]) for row in documents.tolist()])


def rotary_frequencies(c):
    """Radians per position of each pair; long wavelengths stretched as Llama 3 does (Llama 3.1's model card)."""
    half = c["width"] // c["heads"] // 2
    out = []
    for i in range(half):
        frequency = c["rope_theta"] ** (-i / half)
        if c["rope_scaling"] == "llama3":
            turns = c["rope_original_sequence"] * frequency / (2 * math.pi)
            low, high = c["rope_low_frequency_factor"], c["rope_high_frequency_factor"]
            keep = min(1.0, max(0.0, (turns - low) / (high - low)))
            frequency *= keep + (1 - keep) / c["rope_factor"]
        out.append(frequency)
    return torch.tensor(out, dtype=torch.float64)


class Model:
    """The transformer by explicit formulas; no function of torch.nn."""

    def __init__(self, c, parameters, documents=None):
        self.c, self.p, self.documents = c, parameters, documents

    def linear(self, name, x):
        y = torch.einsum("btc,oc->bto", x, self.p[name + ".weight"])
        return y + self.p[name + ".bias"] if self.c["bias"] else y

    def norm(self, name, x):
        gain, epsilon = self.p[name + ".weight"], self.c["epsilon"]
        if self.c["norm"] == "rmsnorm":
            return x * gain / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon)
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + epsilon) * gain + self.p[name + ".bias"]

    def rotate(self, x):  # [B, T, heads, D]; pairs (i, i + D/2)
        angles = positions_of(x[:, :, 0, 0], self.documents).double()[:, :, None] * rotary_frequencies(self.c)
        cosine, sine = angles.cos()[:, :, None, :], angles.sin()[:, :, None, :]
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def attention(self, block, x):
        c = self.c
        heads, groups, size = c["heads"], c["kv_heads"], c["width"] // c["heads"]
        batch, tokens = x.shape[:2]
        qkv = self.linear(block + "attention.qkv", x)
        q = qkv[..., : heads * size].reshape(batch, tokens, heads, size)
        k = qkv[..., heads * size : (heads + groups) * size].reshape(batch, tokens, groups, size)
        v = qkv[..., (heads + groups) * size :].reshape(batch, tokens, groups, size)
        if c["position"] == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        unseen = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        if self.documents is not None:
            unseen = unseen | (self.documents[:, :, None] != self.documents[:, None, :])
        outputs = []
        for head in range(heads):
            group = head // (heads // groups)
            scores = torch.einsum("bid,bjd->bij", q[:, :, head], k[:, :, group]) / math.sqrt(size)
            scores = scores.masked_fill(unseen, -math.inf)
            exponent = torch.exp(scores - scores.max(-1, keepdim=True).values)
            outputs.append(torch.einsum("bij,bjd->bid", exponent / exponent.sum(-1, keepdim=True), v[:, :, group]))
        return self.linear(block + "attention.out", torch.cat(outputs, -1))

    def mlp(self, block, x):
        if self.c["activation"] == "gelu":
            x = self.linear(block + "mlp.up", x)
            x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        else:
            both = self.linear(block + "mlp.gate_up", x)
            gate, up = both[..., : self.c["hidden"]], both[..., self.c["hidden"] :]
            x = gate / (1 + torch.exp(-gate)) * up
        return self.linear(block + "mlp.down", x)

    def logits(self, ids):
        x = self.p["embedding.token.weight"][ids]
        if self.c["position"] == "learned":
            x = x + self.p["embedding.position.weight"]
        for i in range(self.c["layers"]):
            block = f"blocks.{i}."
            x = x + self.attention(block, self.norm(block + "norm1", x))
            x = x + self.mlp(block, self.norm(block + "norm2", x))
        head = self.p["embedding.token.weight" if self.c["tied"] else "head.weight"]
        return torch.einsum("btc,vc->btv", self.norm("head.norm", x), head)


def weighted_loss(logits, targets, weights):
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]
    return (weights * nll).sum() / weights.sum()


def loss_and_gradients(c, parameters, batch):
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    logits = Model(c, leaves, batch[3]).logits(batch[0])
    loss = weighted_loss(logits, *batch[1:3])
    loss.backward()
    return logits.detach(), loss.item(), {name: leaf.grad for name, leaf in leaves.items()}


def adamw_steps(c, parameters, batch, **changes):
    """Loss and gradient norm before each update, and the loss after the last."""
    a = dict(ADAMW, **changes)
    p = {name: value.clone() for name, value in parameters.items()}
    first = {name: torch.zeros_like(value) for name, value in p.items()}
    second = {name: torch.zeros_like(value) for name, value in p.items()}
    losses, norms = [], []
    for step in range(1, a["steps"] + 1):
        _, loss, gradients = loss_and_gradients(c, p, batch)
        norm = math.sqrt(sum((g * g).sum().item() for g in gradients.values()))
        losses.append(loss)
        norms.append(norm)
        factor = min(1.0, a["clip_norm"] / (norm + a["clip_epsilon"]))
        for name, value in p.items():
            g = gradients[name] * factor
            if decays(name, value.shape):
                value *= 1 - a["learning_rate"] * a["weight_decay"]
            first[name] = a["beta1"] * first[name] + (1 - a["beta1"]) * g
            second[name] = a["beta2"] * second[name] + (1 - a["beta2"]) * g * g
            mean = first[name] / (1 - a["beta1"] ** step)
            square = second[name] / (1 - a["beta2"] ** step)
            value -= a["learning_rate"] * mean / (square.sqrt() + a["epsilon"])
    return losses, norms, loss_and_gradients(c, p, batch)[1]


# The cross-check: PyTorch's own functions where they exist, and other formulas elsewhere.


def second_opinion_logits(c, p, ids):
    size, heads, groups = c["width"] // c["heads"], c["heads"], c["kv_heads"]
    batch, tokens = ids.shape

    def linear(name, x):
        return functional.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def norm(name, x):
        if c["norm"] == "layernorm":
            return functional.layer_norm(x, (c["width"],), p[name + ".weight"], p[name + ".bias"], c["epsilon"])
        size_squared = torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2
        return p[name + ".weight"] * (x * torch.rsqrt(size_squared / c["width"] + c["epsilon"]))

    def rotate(x):  # as a product of complex numbers, real part first half
        pairs = torch.complex(*(part.contiguous() for part in x.chunk(2, -1)))
        angles = torch.outer(torch.arange(tokens, dtype=torch.float64), second_opinion_frequencies(c))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)

    x = functional.embedding(ids, p["embedding.token.weight"])
    if c["position"] == "learned":
        x = x + functional.embedding(torch.arange(tokens), p["embedding.position.weight"])
    mask = torch.full((tokens, tokens), -math.inf, dtype=torch.float64).triu(1)
    for i in range(c["layers"]):
        block = f"blocks.{i}."
        parts = linear(block + "attention.qkv", norm(block + "norm1", x))
        q, k, v = parts.split([heads * size, groups * size, groups * size], -1)
        q, k, v = (t.unflatten(-1, (-1, size)).transpose(1, 2) for t in (q, k, v))
        if c["position"] == "rotary":
            q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
        fused = getattr(functional, "scaled_dot_product_attention", None)  # public since PyTorch 2.0
        if fused is not None:
            y = fused(q, k, v, is_causal=True)
        else:
            y = functional.softmax(q @ k.transpose(-1, -2) * size**-0.5 + mask, -1) @ v
        x = x + linear(block + "attention.out", y.transpose(1, 2).flatten(2))
        h = norm(block + "norm2", x)
        if c["activation"] == "gelu":
            h = functional.gelu(linear(block + "mlp.up", h), approximate="tanh")
        else:
            gate, up = linear(block + "mlp.gate_up", h).chunk(2, -1)
            h = functional.silu(gate) * up
        x = x + linear(block + "mlp.down", h)
    head = p["embedding.token.weight"] if c["tied"] else p["head.weight"]
    return functional.linear(norm("head.norm", x), head)


def second_opinion_frequencies(c):
    """The three cases of Llama 3's scaling written out over wavelengths."""
    size = c["width"] // c["heads"]
    plain = 1.0 / c["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    if c["rope_scaling"] == "none":
        return plain
    low, high, factor = c["rope_low_frequency_factor"], c["rope_high_frequency_factor"], c["rope_factor"]
    out = plain.clone()
    cases = set()
    for i, frequency in enumerate(plain.tolist()):
        length, context = 2 * math.pi / frequency, c["rope_original_sequence"]
        if length > context / low:
            cases.add("scaled")
            out[i] = frequency / factor
        elif length >= context / high:
            cases.add("between")
            smooth = (context / length - low) / (high - low)
            out[i] = (1 - smooth) * frequency / factor + smooth * frequency
        else:
            cases.add("kept")
    assert len(cases) == 3, f"only {cases} occur: choose other sizes"
    return out


def second_opinion_loss(c, p, batch):
    ids, targets, weights, documents = batch
    if documents is None:
        logits = second_opinion_logits(c, p, ids)
    else:  # each document as a sequence of its own
        logits = torch.stack([
            torch.cat([second_opinion_logits(c, p, part[None])[0] for part in row.split(of.bincount().tolist())])
            for row, of in zip(ids, documents)])
    nll = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return logits, (nll * weights.flatten()).sum() / weights.sum()


def second_opinion_steps(c, parameters, batch):
    a = ADAMW
    p = {name: torch.nn.Parameter(value.clone()) for name, value in parameters.items()}
    matrices = [value for value in p.values() if value.dim() == 2]
    vectors = [value for value in p.values() if value.dim() < 2]
    groups = [{"params": matrices, "weight_decay": a["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=a["learning_rate"], betas=(a["beta1"], a["beta2"]), eps=a["epsilon"])
    losses, norms = [], []
    for _ in range(a["steps"]):
        optimiser.zero_grad(set_to_none=True)
        loss = second_opinion_loss(c, p, batch)[1]
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(list(p.values()), a["clip_norm"]).item())
        optimiser.step()
    return losses, norms, second_opinion_loss(c, p, batch)[1].item()


def close(what, value, expected, relative):
    value, expected = torch.as_tensor(value).double(), torch.as_tensor(expected).double()
    error = torch.linalg.vector_norm((value - expected).flatten()).item()
    size = torch.linalg.vector_norm(expected.flatten()).item()
    if not error <= relative * size:
        raise SystemExit(f"{what}: error {error:.3g} exceeds {relative:.0e} of {size:.3g}")


def compute_case(name, c, parameters, batch, train):
    """All results of a case, each confirmed by both paths."""
    logits, loss, gradients = loss_and_gradients(c, parameters, batch)
    leaves = {key: value.clone().requires_grad_() for key, value in parameters.items()}
    other_logits, other_loss = second_opinion_loss(c, leaves, batch)
    other_loss.backward()
    close(f"{name}: logits", logits, other_logits.detach(), 1e-13)
    close(f"{name}: loss", loss, other_loss.item(), 1e-14)
    norm = math.sqrt(sum((g * g).sum().item() for g in gradients.values()))
    for key, gradient in gradients.items():
        # Key biases have no effect under softmax, so their gradients are rounding only: compare with the whole.
        whole = torch.tensor([norm * 1e-3])
        close(f"{name}: gradient of {key}", torch.cat([gradient.flatten(), whole]),
              torch.cat([leaves[key].grad.flatten(), whole]), 1e-10)
        check_by_differences(name, key, c, parameters, batch, gradient)
    result = {"logits": logits, "loss": loss}
    if train:
        losses, norms, after = adamw_steps(c, parameters, batch)
        for what, ours, theirs in zip(("losses", "norms", "final loss"), (losses, norms, after),
                                      second_opinion_steps(c, parameters, batch)):
            close(f"{name}: AdamW {what}", ours, theirs, 1e-9)
        clipped = sum(n > ADAMW["clip_norm"] for n in norms)
        assert 0 < clipped < ADAMW["steps"], f"{name}: {clipped} of the steps clip: {norms}"
        print(f"{name}: {clipped} steps clip; largest relative change of a loss")
        for change in ({"clip_epsilon": 0.0}, {"clip_norm": math.inf}, {"epsilon": 1e-7}, {"weight_decay": 0.0}):
            changed = adamw_steps(c, parameters, batch, **change)[0]
            print(f"  with {change}: {max(abs(x - y) / y for x, y in zip(changed, losses)):.1e}")
        result.update(gradients=gradients, losses=losses, norms=norms, after=after)
    return result


def check_by_differences(name, key, c, parameters, batch, gradient):
    """Along one random direction. Central differences err by h²·f'''/6 plus rounding/h: about 1e-9 here."""
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    h = 1e-5

    def at(step):
        moved = dict(parameters, **{key: parameters[key] + step * direction})
        return weighted_loss(Model(c, moved, batch[3]).logits(batch[0]), *batch[1:3]).item()

    expected = (at(h) - at(-h)) / (2 * h)
    actual = (gradient * direction).sum().item()
    if abs(actual - expected) > 1e-6 * abs(expected) + 1e-8:
        raise SystemExit(f"{name}: gradient of {key}: {actual} along a direction, differences give {expected}")


class Writer:
    """Tensors of one case in one file, each at a multiple of 8 bytes."""

    def __init__(self, file):
        self.file, self.data, self.index = file, bytearray(), {}

    def add(self, name, value, kind):
        self.index[name] = {"dtype": kind, "shape": list(value.shape), "file": self.file, "offset": len(self.data)}
        self.data += numpy.ascontiguousarray(value.detach().numpy()).astype(KINDS[kind]).tobytes()
        self.data += bytes(-len(self.data) % 8)

    def save(self):
        (HERE / self.file).write_bytes(self.data)


def write():
    cases, parameters = {}, {}
    for name, c, seed, unit_weights, borrowed, train in CASES:
        generator = torch.Generator().manual_seed(seed)
        writer = Writer(f"{name}.bin")
        if borrowed:
            parameters[name] = parameters[borrowed]
            for key, entry in cases[borrowed]["tensors"].items():
                if key.startswith("parameters/"):
                    writer.index[key] = entry
        else:
            parameters[name] = random_parameters(c, SCALE[name], generator)
            for key, value in parameters[name].items():
                writer.add("parameters/" + key, value, "f32")
        batch = random_batch(name, c, unit_weights, generator)
        for key, value, kind in zip(BATCH_TENSORS, batch, ("i32", "i32", "f32", "i32")):
            if value is not None:
                writer.add(key, value, kind)
        result = compute_case(name, c, parameters[name], batch, train)
        writer.add("logits", result["logits"], "f64")
        case = {"config": c, "batch": len(batch[0]), "loss": result["loss"]}
        if train:
            for key, value in result["gradients"].items():
                writer.add("gradients/" + key, value, "f32")
            case["adamw"] = dict(ADAMW, losses=result["losses"], gradient_norms=result["norms"],
                                 loss_after=result["after"])
        writer.save()
        cases[name] = dict(case, tensors=writer.index)
    made = {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
            "machine": platform.machine(), "date": datetime.date.today().isoformat()}
    (HERE / "reference.json").write_text(dump({"made_with": made, "cases": cases}))


def dump(value):
    """JSON with one line per tensor and per list, so that the file can be read and compared."""
    encoder = json.JSONEncoder()

    def lines(v, indent):
        inner = isinstance(v, dict) and any(isinstance(x, dict) for x in v.values())
        if not inner:
            return encoder.encode(v)
        space = " " * (indent + 2)
        body = ",\n".join(f"{space}{encoder.encode(k)}: {lines(x, indent + 2)}" for k, x in v.items())
        return "{\n" + body + "\n" + " " * indent + "}"

    return lines(value, 0) + "\n"


def read(entry):
    kind = KINDS[entry["dtype"]]
    count = math.prod(entry["shape"])
    values = numpy.fromfile(HERE / entry["file"], dtype=kind, count=count, offset=entry["offset"])
    return torch.from_numpy(values.astype("int64" if kind.kind == "i" else "float64")).reshape(entry["shape"])


def check():
    stored = json.loads((HERE / "reference.json").read_text())["cases"]
    for name, c, _, _, _, train in CASES:
        case = stored[name]
        assert case["config"] == c, f"{name}: the configuration differs"
        tensors = {key: read(entry) for key, entry in case["tensors"].items()}
        parameters = {key: tensors["parameters/" + key] for key in shapes(c)}
        result = compute_case(name, c, parameters, [tensors.get(key) for key in BATCH_TENSORS], train)
        close(f"{name}: stored logits", tensors["logits"], result["logits"], 1e-13)
        close(f"{name}: stored loss", case["loss"], result["loss"], 1e-13)
        if train:
            for key, value in result["gradients"].items():
                if value.norm() > 1e-12:  # else rounding only; float32 keeps 6e-8
                    close(f"{name}: stored gradient of {key}", tensors["gradients/" + key], value, 1e-7)
            close(f"{name}: stored losses", case["adamw"]["losses"], result["losses"], 1e-9)
            close(f"{name}: stored norms", case["adamw"]["gradient_norms"], result["norms"], 1e-9)
            close(f"{name}: stored final loss", case["adamw"]["loss_after"], result["after"], 1e-9)
        print(f"{name}: the committed files agree")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="make or check the reference files of the model tests")
    parser.add_argument("--check", action="store_true", help="compare the committed files instead of writing them")
    torch.set_num_threads(2)
    (check if parser.parse_args().check else write)()
