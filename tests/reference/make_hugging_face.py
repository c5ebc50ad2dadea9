#!/usr/bin/env python3
"""Makes hugging_face/: small GPT-2 and Llama models as transformers saves them, and their losses by transformers.

    make_hugging_face.py [FOLDER]     default: hugging_face beside this script

losses.json has, for each model, the mean loss over all whole windows of the validation split of text.txt (its last
tenth, bytes as tokens, windows of the model's sequence side by side), computed in float64.
"""
import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "hugging_face"
SEQUENCE = 24
GPT2 = transformers.GPT2Config(n_layer=2, n_head=3, n_embd=24, n_positions=SEQUENCE, vocab_size=256,
                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
LLAMA = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=24,
                                 intermediate_size=44, max_position_embeddings=SEQUENCE, vocab_size=256,
                                 rms_norm_eps=1e-6, rope_theta=5000.0, tie_word_embeddings=False, bos_token_id=0,
                                 eos_token_id=0)


def text():
    words = [f"line {i} of a text, {i * i % 97} and {i * 7919 % 1009}; " for i in range(300)]
    return "".join(words).encode()


def loss_of(model, data):
    valid = data[int(len(data) * 0.9):]
    windows = (len(valid) - 1) // SEQUENCE
    tokens = torch.tensor(list(valid), dtype=torch.long)
    total = 0.0
    for w in range(windows):
        piece = tokens[w * SEQUENCE:(w + 1) * SEQUENCE + 1]
        with torch.no_grad():
            logits = model(piece[None, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
    return total / (windows * SEQUENCE), windows * SEQUENCE


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "text.txt").write_bytes(text())
    losses = {"transformers": transformers.__version__, "torch": torch.__version__}
    for name, config, kind in [("gpt2", GPT2, transformers.GPT2LMHeadModel),
                               ("llama", LLAMA, transformers.LlamaForCausalLM)]:
        torch.manual_seed(20261121)
        model = kind(config).eval()
        with torch.no_grad():  # nontrivial biases and gains, and attention that is not flat
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(OUT / name, safe_serialization=True)
        (OUT / name / "generation_config.json").unlink(missing_ok=True)
        loss, count = loss_of(model.double(), text())
        losses[name] = {"loss": loss, "tokens": count}
    (OUT / "losses.json").write_text(json.dumps(losses, indent=2) + "\n")
    print(json.dumps(losses, indent=2))


main()
