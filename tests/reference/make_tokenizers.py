#!/usr/bin/env python3
"""Two byte-level BPE tokenizers, ten thousand strings and their ids, as the `tokenizers` package
makes them. README.md says what is in the files.

    python tests/reference/make_tokenizers.py CORPUS     # any plain text, e.g. bible -f 'Gen1:1-Deu34:12'
"""
import json
import random
import struct
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
OWN = """
ἐν ἀρχῇ ἦν ἡ τριήρης, καὶ οἱ ἐρέται ἐπὶ τῶν ζυγῶν. Три ряда весел двигали корабль по морю.
三段櫂船は地中海で使われた。三层桨战船在海上航行。세 줄의 노를 젓는 배. السفينة ثلاثية المجاديف في البحر.
त्रिरेम एक प्राचीन नौका थी। הספינה שטה בים. Việc chèo thuyền rất nặng nhọc. Größe, façade, naïve, œuvre, Ångström, İstanbul.
for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\r\n    return sum;\n}\n\n\n        // 1234567890 42 2026-11-21 3.14159
I'm, you're, we've, they'll, she'd, it's, don't; I'M, YOU'RE, WE'VE, THEY'LL, SHE'D, IT'S, DON'T.
🚣🏽‍♀️ 🚣🏽‍♀️ 👩‍👩‍👧‍👦 ❤️ 🇬🇷🇬🇷 ⚓️ ⛵ 1️⃣ … “quoted” — dash – ‘single’ ½ ² ⅷ ٣٤٥ 一二三 \u00a0\u2003\u3000\u200b
"""
CASES = 10_000
SEED = 20261121
out = Path(__file__).parent / "tokenizers"


def valid(c):
    return not 0xD800 <= c < 0xE000


def train(pattern, corpus):
    tokenizer = Tokenizer(models.BPE())
    if pattern == GPT2:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        special = [AddedToken("<|endoftext|>", special=True, normalized=False)]
        rest = [AddedToken("<tool>", normalized=True), AddedToken("<tool>call", normalized=True),
                AddedToken("  ", normalized=False), AddedToken("é̂", normalized=True)]
        size = 2000
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
        special = []
        rest = [AddedToken(f"<|{name}|>", special=True, normalized=False)
                for name in ("begin_of_text", "end_of_text", "reserved_special_token_0", "eot_id")]
        size = 1500
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([corpus] + [OWN] * 40, trainer)
    tokenizer.add_tokens([t for t in rest if not t.special])
    tokenizer.add_special_tokens([t for t in rest if t.special])
    if pattern == LLAMA3:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                          special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
        values = json.loads(tokenizer.to_str())
        # A few whole words that no sequence of merges produces, for ignore_merges.
        vocabulary = values["model"]["vocab"]
        last = max(vocabulary.values())
        for i, word in enumerate(["Ġtrierarch", "Ġthranites", "keleustes", "123", "!?!?"]):
            assert word not in vocabulary, word
            vocabulary[word] = last + 1 + i
        for token in values["added_tokens"]:
            token["id"] += 5
        values["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = [last + 6]
        values["model"]["ignore_merges"] = True
        tokenizer = Tokenizer.from_str(json.dumps(values))
    return tokenizer


def single_bytes():
    """No merges, and every byte's id is the byte."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    characters = {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab={characters[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def strings(corpus, random):
    """Random and adversarial Unicode, without surrogates."""
    words = (corpus[:200_000] + OWN * 3).split()
    assigned = [c for c in range(0x110000) if valid(c) and unicodedata.category(chr(c)) not in ("Cn", "Co")]
    by_category = {}
    for c in assigned:
        by_category.setdefault(unicodedata.category(chr(c)), []).append(c)
    marks = by_category["Mn"] + by_category["Mc"] + by_category["Me"]
    digits = by_category["Nd"] + by_category["Nl"] + by_category["No"]
    spaces = [0x9, 0xA, 0xB, 0xC, 0xD, 0x1C, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x2010), 0x2028, 0x2029,
              0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]
    contractions = ["'s", "'S", "'ſ", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D",
                    "’s", "'İ", "'ı", "'K", "'ŉ", "'ﬆ", "'ß", "'ẞ", "'ſt", "ŉ", "''s", "'"]
    added = ["<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "<|eot_id|>", "<tool>", "<tool>call", "<tool>cal", "  ", "é̂",
             "<|endoftext|", "<|reserved_special_token_0|>", "<|<|endoftext|>|>", "<too<tool>", "<tool"]
    emoji = ["🚣🏽‍♀️", "👩‍👩‍👧‍👦", "🇬🇷", "❤️", "1️⃣", "\u200d", "\ufe0f", "🏽", "☠", "🏴\U000E0067\U000E0062\U000E007F"]
    pick = random.choice

    def some(choose, most):
        return "".join(choose() for _ in range(random.randint(0, most)))

    kinds = [
        lambda: " ".join(pick(words) for _ in range(random.randint(1, 12))),
        lambda: some(lambda: pick(words) + chr(pick(spaces)) * random.randint(0, 3), 8),
        lambda: some(lambda: chr(pick(assigned)), 16),
        lambda: some(lambda: chr(pick(pick(list(by_category.values())))), 20),
        lambda: some(lambda: chr(pick([c for c in [random.randrange(0x110000)] if valid(c)] or [0x41])), 16),
        lambda: some(lambda: pick("aeiouAEIOUßſKÅ") + some(lambda: chr(pick(marks)), 3), 10),
        lambda: some(lambda: pick(words + ["I", "ſ", "x1"]) + pick(contractions) + pick(["", " ", "x", "\n"]), 6),
        lambda: some(lambda: pick([chr(pick(digits)), pick("0123456789"), pick(" ,."), "123"]), 24),
        lambda: some(lambda: chr(pick(spaces)) * random.randint(1, 4) + pick(["", "a", "1", "."]), 12),
        lambda: some(lambda: pick(["\r", "\n", "\r\n", " ", "\t", "!", "x", "\n\n"]), 20),
        lambda: some(lambda: chr(pick([*range(0x20), *range(0x7F, 0xA0), 0x20, 0x41])), 20),
        lambda: some(lambda: pick(emoji) + pick(["", " ", "a"]), 8),
        lambda: some(lambda: pick(added) + pick(["", " ", "a", "\n", pick(words)]), 8),
        lambda: some(lambda: pick("ab \n'.1é"), 40),
        lambda: some(lambda: chr(random.choice([0xFFFD, 0xFFFE, 0xFFFF, 0x10FFFF, 0x1FFFE, 0xE000, 0xD7FF, 0x378, 0x2FE0, 0x80, 0x7FF, 0x800,
                                                0xFFFF, 0x10000, 0, 0x61])), 12),
        lambda: some(lambda: pick(["trierarch", " trierarch", " thranites", "keleustes", "123", "!?!?", " ", "1234", "!?!?!?"]), 8),
    ]
    cases = ["", " ", "  ", "\n", "\0", "'", "<|endoftext|>"]
    for run in ["a", " ", "\n", "\r\n", "1", "!", "é", "ſ", "語", "🚣", "ab", "the ", "\u0301", "<|endoftext|>", "'s", "<", " \n", "\u2003", "0a", "ha"]:
        cases += [run * (3000 // len(run)), run * 257 + "x"]
    while len(cases) < CASES:
        cases.append(kinds[len(cases) % len(kinds)]())
    return cases


def fnv1a(values):
    """64-bit FNV-1a over the ids as 32-bit little-endian numbers."""
    state = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(values)}I", *values):
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


def classes():
    """Runs of code points of equal class, as the package's regular expressions see them: 0 other, 1 \\p{L}, 2 \\p{N}, 3 \\s,
    4 unassigned."""
    split = pre_tokenizers.Split(Regex(r"\p{L}|\p{N}|\s|\p{Cn}"), "isolated")
    kinds = [pre_tokenizers.Split(Regex(p), "isolated") for p in (r"\p{L}", r"\p{N}", r"\s", r"\p{Cn}")]
    of = [0] * 0x110000
    for c in range(0x110000):
        if not valid(c) or len(split.pre_tokenize_str("\u0301" + chr(c) + "\u0301")) == 1:
            continue
        of[c] = 1 + [len(k.pre_tokenize_str("\u0301" + chr(c) + "\u0301")) for k in kinds].index(3)
    runs, begin = [], 0
    for c in range(1, 0x110001):
        if c == 0x110000 or of[c] != of[begin]:
            runs.append((begin, of[begin]))
            begin = c
    return runs


def main():
    corpus = Path(sys.argv[1]).read_text()[:1_500_000]
    out.mkdir(exist_ok=True)
    cases = strings(corpus, random.Random(SEED))
    with open(out / "strings.bin", "wb") as file:
        for case in cases:
            text = case.encode()
            file.write(struct.pack("<I", len(text)) + text)
    for name, pattern in (("gpt2", GPT2), ("llama3", LLAMA3)):
        tokenizer = train(pattern, corpus)
        ids = [tokenizer.encode(case, add_special_tokens=False).ids for case in cases]
        values = json.loads(tokenizer.to_str())
        if name == "llama3":  # newer versions of the package write pairs
            values["model"]["merges"] = [merge.split(" ") for merge in values["model"]["merges"]]
        (out / f"{name}.json").write_text(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n")
        with open(out / f"{name}.ids", "wb") as file:
            for some in ids:
                file.write(struct.pack("<IQ", len(some), fnv1a(some)))
        print(name, tokenizer.get_vocab_size(), "ids,", sum(map(len, ids)), "tokens of", sum(len(c.encode()) for c in cases), "bytes")
    (out / "bytes.json").write_text(json.dumps(json.loads(single_bytes().to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    runs = classes()
    with open(out / "classes.bin", "wb") as file:
        for begin, kind in runs:
            file.write(struct.pack("<I", begin << 3 | kind))
    print(len(runs), "runs of equal class; tokenizers", tokenizers.__version__, "Python", sys.version.split()[0])


main()
