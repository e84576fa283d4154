"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft_b/ckpt.pt                      retrieval grid: depth x context size
    python eval_niah.py out/sft_b/ckpt.pt --trials=100         needle scores: the paper's example (Tokyo), then 100 random trials
    python eval_niah.py out/b_ssmax/ckpt.pt --prompt=completion    no fine-tuning needed

Results go beside each checkpoint: niah[-tag].jsonl (needle[-tag].jsonl with --trials), one line a sample, and a summary .json. The same
command again continues a killed run. `torchrun` shares the samples among the ranks.
"""
import dataclasses
import glob
import json
import math
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import checkpoint
import runtime
from almanac import CITIES
from configurator import configure
from data import QA_FORMAT, Tokens, decode, encode, end_of_text
from runtime import UserError, print0


@dataclass(frozen=True)
class NiahConfig:
    files: tuple = ()  # checkpoints
    data_dir: str = "data/slimpajama"  # corpus of the haystack: random windows of it
    split: str = "test"  # its split
    haystack: str = ""  # text files (a glob) to take instead
    context_sizes: tuple = tuple(range(1000, 10001, 1000))  # tokens of the whole prompt
    depths: tuple = (10, 30, 50, 70, 90)  # where the needle is, in percent of the haystack
    n_samples: int = 1000  # samples a cell
    trials: int = 0  # measure needle scores instead, on so many random samples of `trial_size` tokens
    trial_size: int = 8000  # tokens of their prompts
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    question: str = "What is the special magic {city} number?"  # what is asked, with --prompt=sft
    prompt: str = "sft"  # sft: the question in sft.py's format; completion: the needle up to the number
    qa_format: str = QA_FORMAT  # with --prompt=sft: that of sft.py
    number_format: tuple = (7,)  # digits a group; (2, 2, 2, 1) writes 81 06 42 2
    cities: str = ""  # a file with a city a line; empty: a list of our own
    n_needles: int = 0  # needles of other cities in the haystack as well
    snap: bool = True  # move the needle back to the end of a sentence
    begin: bool = False  # begin the prompt with an end of text, as training documents of one block do
    rope_theta: float = 500_000.0  # base of RoPE, in the paper 50 times that of training; 0: that of training
    attention_type: str = ""  # swap the attention of a softmax checkpoint at load: (e)
    swap_scale: float = 1.0  # mean factor on q after the swap; with head_scale one constant temperature, a control for (e)
    seed: int = 1337  # of the samples: the same for every checkpoint
    tag: str = ""  # part of the names of the results
    micro_batch_size: int = 0  # samples at once; 0: as many as fit
    device: str = "auto"  # auto, cuda, cpu, mps
    dtype: str = "auto"  # auto, bfloat16, float32

    def __post_init__(self):
        if "/" in self.tag or "\\" in self.tag:
            raise ValueError("tag is part of a file's name: no slashes")
        if self.prompt not in ("sft", "completion"):
            raise ValueError(f"prompt must be sft or completion, not {self.prompt!r}")
        if "{city}" not in self.needle or "{number}" not in self.needle or "{city}" not in self.question:
            raise ValueError("needle must contain {city} and {number}, question {city}")
        if not all(part in self.qa_format for part in ("{context}", "{question}", "{answer}")):
            raise ValueError("qa_format needs {context}, {question} and {answer}")
        whole = (*self.context_sizes, *self.number_format, self.trial_size, self.n_samples)
        if not all(type(n) is int and n > 0 for n in whole) or not self.context_sizes or not self.number_format:
            raise ValueError("context_sizes, number_format, trial_size and n_samples must be positive whole numbers")
        if not self.depths or not all(type(d) in (int, float) and 0 <= d <= 100 for d in self.depths):
            raise ValueError("depths are percentages, 0 to 100")
        if min(self.trials, self.n_needles, self.micro_batch_size, self.rope_theta, self.seed) < 0:
            raise ValueError("trials, n_needles, micro_batch_size, rope_theta and seed must not be negative")


# -----------------------------------------------------------------------------
# samples


def spaced(number, groups):
    """8106422, (2, 2, 2, 1) -> 81 06 42 2"""
    ends = [sum(groups[:i]) for i in range(len(groups) + 1)]
    return " ".join(number[a:b] for a, b in zip(ends, ends[1:]))


class Haystack:
    """Where windows of hay come from: the tokens of a corpus, or of text files one after the other."""

    def __init__(self, cfg, vocab):
        if cfg.haystack:
            paths = sorted(glob.glob(cfg.haystack))
            if not paths:
                raise UserError(f"--haystack={cfg.haystack}: no such file")
            try:
                text = "\n".join(Path(p).read_text(encoding="utf-8") for p in paths)
            except UnicodeDecodeError as e:
                raise UserError(f"--haystack={cfg.haystack}: not UTF-8 text ({e.reason})") from e
            self.tokens, self.digest = encode(text, vocab), f"{len(text)} characters"
        else:
            self.tokens = Tokens(cfg.data_dir, cfg.split)
            self.digest = self.tokens.digest
            if self.tokens.vocab != vocab:
                raise UserError(f"{cfg.data_dir} has another vocabulary than the checkpoint")

    def window(self, rng, length):
        if len(self.tokens) < length:
            raise UserError(f"the haystack has {len(self.tokens):,} tokens, {length:,} are needed; choose a smaller context or more text")
        start = rng.randrange(len(self.tokens) - length + 1)
        return self.tokens[start:start + length] if isinstance(self.tokens, list) else self.tokens.read([start], length)[0].tolist()


class Sampler:
    """Makes prompts: a pure function of (settings, context size, depth, number of the sample)."""

    def __init__(self, cfg, vocab):
        self.cfg, self.vocab, self.hay, self.known = cfg, vocab, Haystack(cfg, vocab), {}
        self.cities = CITIES
        if cfg.cities:
            try:
                self.cities = list(dict.fromkeys(Path(cfg.cities).read_text(encoding="utf-8").split("\n")))
            except (OSError, UnicodeDecodeError) as e:
                raise UserError(f"--cities={cfg.cities}: cannot be read as a list of cities ({e})") from e
            self.cities = [c.strip() for c in self.cities if c.strip()]
        if len(self.cities) <= cfg.n_needles:
            raise UserError(f"{cfg.n_needles} needles besides the one in question need more than {len(self.cities)} cities")

    def encode(self, text):
        return encode(text, self.vocab)

    def needle(self, city, number):
        """-> ids up to and with the colon, ids of the number and what ends the needle. GPT-2 never joins across a space."""
        head, _, tail = self.cfg.needle.format(city=city, number="\0").partition("\0")
        return self.encode(" " + head.rstrip()), self.encode(" " + spaced(number, self.cfg.number_format) + tail)

    def sentence_end(self, token):
        if token not in self.known:
            self.known[token] = decode([token], self.vocab).rstrip(" \"'”’)").endswith((".", "!", "?", "\n", "<|endoftext|>"))
        return self.known[token]

    def insert(self, hay, needle, depth):
        """Put needle into hay (a list of ids) at depth percent -> its position."""
        at = wanted = round(len(hay) * depth / 100)
        if self.cfg.snap:
            while at > self.cfg.begin and not self.sentence_end(hay[at - 1]):
                at -= 1
            at = at if at > self.cfg.begin or not wanted else wanted  # no sentence ends before: stay
        at = max(at, int(self.cfg.begin))
        hay[at:at] = needle
        return at

    def sample(self, size, depth, i, city=None, number=None):
        """A dict with the prompt (exactly `size` ids), the span [from, to) of the number in it, city, number and depth."""
        cfg = self.cfg
        rng = random.Random(f"{cfg.seed} {size} {depth} {i}")
        drawn, *others = rng.sample(self.cities, 1 + cfg.n_needles)
        digits = sum(cfg.number_format)
        numbers = [str(rng.randrange(10 ** (digits - 1), 10**digits)) for _ in range(1 + cfg.n_needles)]
        city, number = city or drawn, number or numbers[0]
        depth = rng.uniform(0, 100) if depth is None else depth
        head, tail = self.needle(city, number)
        lead, end = [], head
        if cfg.prompt == "sft":
            before, _, after = cfg.qa_format.partition("{answer}")[0].rstrip(" ").format(context="\0", question=cfg.question.format(city=city)).partition("\0")
            lead, end = self.encode(before), self.encode(after)
        distractors = [sum(self.needle(c, n), []) for c, n in zip(others, numbers[1:])]
        room = size - len(lead) - len(head) - len(tail) - len(end) - sum(map(len, distractors))
        if room < 1:
            raise UserError(f"a context of {size} tokens is too small for needle and prompt; take at least {size - room + 1}")
        hay = self.hay.window(rng, room)
        if cfg.begin:
            hay[0] = end_of_text(self.vocab)
        for d in distractors:
            self.insert(hay, d, rng.uniform(0, 100))
        at = self.insert(hay, head + tail, depth) + len(lead)
        # a needle cannot split a distractor apart: snapped places are ends of sentences
        return {"size": size, "depth": depth, "i": i, "city": city, "number": number, "prompt": lead + hay + end,
                "span": (at + len(head), at + len(head) + len(tail))}


def score(number, text, groups):
    """What a generated text got right. Exact: the digits, not followed by another one."""
    digits = re.sub(r"\s", "", text) if len(groups) > 1 else text.strip()
    return {"exact": bool(re.match(number + r"(?!\d)", digits)), "first": digits[:1] == number[0], "substring": number in digits}


def wilson(hits, n, z=1.96):
    """95 % interval of a share."""
    centre, half = (hits + z * z / 2) / (n + z * z), z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


# -----------------------------------------------------------------------------
# measurement


@torch.no_grad()
def answer(cfg, model, sampler, batch, device):
    """Ask the model all samples of `batch`, of equal size -> records for the result file."""
    idx = torch.tensor([s["prompt"] for s in batch], device=device)
    new = len(cfg.number_format) + 1 if len(cfg.number_format) > 1 else cfg.number_format[0] + 1
    eot = end_of_text(sampler.vocab)
    with runtime.autocast(device, cfg.dtype):
        generated = model.generate(idx, new, temperature=0, banned=(eot,))[:, idx.size(1):].tolist()
        scores = [None] * len(batch)
        if cfg.trials:
            attention = model.last_query_attention(idx)  # (B, n_layer, n_head, T)
            scores = [attention[b, :, :, s["span"][0]:s["span"][1]].sum(-1).tolist() for b, s in enumerate(batch)]
    records = []
    for sample, ids, heads in zip(batch, generated, scores):
        text = decode(ids, sampler.vocab)
        record = {k: sample[k] for k in ("size", "depth", "i", "city", "number")}
        record.update(seed=cfg.seed, text=text, **score(sample["number"], text, cfg.number_format))
        if heads:
            record.update(scores=[[round(x, 5) for x in layer] for layer in heads], top=round(max(map(max, heads)), 5))
        records.append(record)
    return records


def measure(cfg, path, device):
    """Ask one checkpoint everything -> (settings, model config, records)."""
    model, state = checkpoint.load_model(path, device, cfg.attention_type, cfg.rope_theta, cfg.swap_scale)
    checkpoint.check_length(model, cfg.trial_size if cfg.trials else max(cfg.context_sizes))
    sampler = Sampler(cfg, state["vocab"])
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in ("files", "tag", "data_dir", "micro_batch_size", "device")}
    settings.update(checkpoint=checkpoint.fingerprint(path), haystack=sampler.hay.digest, dtype=str(runtime.get_dtype(device, cfg.dtype)))
    out = Path(path).parent / f"{'needle' if cfg.trials else 'niah'}{'-' * bool(cfg.tag)}{cfg.tag}.jsonl"
    header, *records = runtime.continue_result(out, settings) or [{"settings": settings}]
    if runtime.rank() == 0:  # cut to whole lines, to go on behind them
        with runtime.atomic_write(out, "w") as f:
            f.writelines(json.dumps(runtime.sealed(r)) + "\n" for r in [header, *records])
    done = {(r["size"], r["i"]) if cfg.trials else (r["size"], r["depth"], r["i"]) for r in records}
    if cfg.trials:  # number -1 is the paper's example
        number = ("8106422" * 9)[:sum(cfg.number_format)]
        jobs = [(cfg.trial_size, 50, -1, sampler.cities[0] if "Tokyo" not in sampler.cities else "Tokyo", number)]
        jobs += [(cfg.trial_size, None, i) for i in range(cfg.trials)]
        jobs = [j for j in jobs if (j[0], j[2]) not in done]
    else:
        jobs = [(size, depth, i) for size in cfg.context_sizes for depth in cfg.depths for i in range(cfg.n_samples)
                if (size, depth, i) not in done]
    total, began, shown, ranks = len(jobs), time.perf_counter(), 0.0, runtime.world_size()
    budget = 2**17 if device.type == "cuda" else 2**14  # prompt tokens at once
    while jobs:
        # one turn: a batch of one size for each rank
        size = jobs[0][0]
        same = [j for j in jobs[:4096] if j[0] == size]
        n = min(cfg.micro_batch_size or max(1, budget // size), math.ceil(len(same) / ranks))
        turn, mine = same[:n * ranks], same[runtime.rank() * n:(runtime.rank() + 1) * n]
        try:
            new = answer(cfg, model, sampler, [sampler.sample(*job) for job in mine], device) if mine else []
        except torch.OutOfMemoryError:
            if n == 1 or ranks > 1:
                raise
            budget //= 2
            continue
        new = runtime.all_gather(new)
        jobs = jobs[len(turn):]
        records += new
        if runtime.rank() == 0:
            with runtime.writing(out), open(out, "a") as f:
                f.writelines(json.dumps(runtime.sealed(r)) + "\n" for r in new)
        elapsed = time.perf_counter() - began
        if elapsed - shown > 2 or not jobs:
            shown, asked = elapsed, total - len(jobs)
            print0(f"\r{path}: {asked:,}/{total:,} samples | {asked / elapsed:.1f} samples/s | ETA "
                   f"{runtime.duration(len(jobs) * elapsed / asked)}   ", end="\n" if not jobs else "")
    return settings, dataclasses.asdict(model.config), state["config"], records


def summary(cfg, path, settings, model_config, config, records):
    """Write the summary of a checkpoint beside its samples and print it."""
    out = {"settings": settings, "model_config": model_config, "config": config}
    if cfg.trials:
        trials = [r for r in records if r["i"] >= 0]
        out.update(example=next(r for r in records if r["i"] < 0), trials=[{k: r[k] for k in ("top", "exact", "first")} for r in trials])
        runtime.write_json(Path(path).parent / f"needle{'-' * bool(cfg.tag)}{cfg.tag}.json", out)
        tops = sorted((r["top"] for r in trials), reverse=True)
        example = out["example"]
        print0(f"{path}: top needle score, median of {len(tops)} trials {tops[len(tops) // 2]:.3f}; all digits in {sum(r['exact'] for r in trials)}, "
               f"only the first in {sum(r['first'] and not r['exact'] for r in trials)}; the example: score {example['top']:.3f}, {example['text']!r}")
        return
    cells = []
    for size in cfg.context_sizes:
        for depth in cfg.depths:
            found = [r for r in records if (r["size"], r["depth"]) == (size, depth)]
            cell = {"size": size, "depth": depth, "n": len(found)}
            for key in ("exact", "first", "substring"):
                hits = sum(r[key] for r in found)
                cell.update({key: hits / len(found), key + "_interval": wilson(hits, len(found))})
            cells.append(cell)
    out["cells"] = cells
    runtime.write_json(Path(path).parent / f"niah{'-' * bool(cfg.tag)}{cfg.tag}.json", out)
    print0(f"{path}: all digits right, {cfg.n_samples} samples a cell")
    print0(f"{'depth':>8}" + "".join(f"{s:>9,}" for s in cfg.context_sizes))
    for depth in cfg.depths:
        print0(f"{depth:>7}%" + "".join(f"{c['exact']:>9.3f}" for c in cells if c["depth"] == depth))
    for key, name in (("exact", "all"), ("first", "digit 1")):
        means = [sum(c[key] for c in cells if c["size"] == s) / len(cfg.depths) for s in cfg.context_sizes]
        print0(f"{name:>8}" + "".join(f"{m:>9.3f}" for m in means))


def main():
    cfg = configure(NiahConfig)
    if not cfg.files:
        raise UserError("name one or more checkpoints; see --help")
    device = runtime.get_device(cfg.device)
    runtime.init_ranks(device)
    for path in cfg.files:
        summary(cfg, path, *measure(cfg, path, device))


if __name__ == "__main__":
    runtime.launch(main)
