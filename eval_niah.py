"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft_b                          retrieval grid: depth x context size
    python eval_niah.py out/sft_b --trials=100             needle scores: the paper's example
                                                           (Tokyo), then 100 random trials
    python eval_niah.py out/b_ssmax --prompt=completion    no fine-tuning needed

Results go beside each checkpoint: niah[-tag].jsonl (needle[-tag].jsonl with --trials), a line a
sample, and a summary .json. The same command again continues a killed run and repeats a finished
one. `torchrun` shares the samples among the ranks.
"""
import glob
import json
import math
import random
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import evaluate, runtime
from lib.almanac import CITIES, spaced
from lib.config import configure
from lib.data import Tokens
from lib.evaluate import EvalConfig
from lib.runtime import UserError, print0
from lib.squad import QA_FORMAT
from lib.text import decode, encode, end_of_text


@dataclass(frozen=True)
class NiahConfig(EvalConfig):
    # data
    haystack: str = ""  # text files (a glob) to take as hay instead of data_dir
    # evaluation
    context_sizes: tuple = tuple(range(1000, 10001, 1000))  # tokens of the whole prompt
    depths: tuple = (10, 30, 50, 70, 90)  # where the needle is, in percent of the haystack
    n_samples: int = 1000  # samples a cell
    trials: int = 0  # measure needle scores instead, on so many random samples
    trial_size: int = 8000  # tokens of their prompts
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    question: str = "What is the special magic {city} number?"  # what is asked, prompt=sft
    prompt: str = "sft"  # sft: the question as in sft.py; completion: the needle up to the number
    qa_format: str = QA_FORMAT  # of prompt=sft: that of sft.py
    number_format: tuple = (7,)  # digits a group; (2, 2, 2, 1) writes 81 06 42 2
    n_needles: int = 0  # needles of other cities in the haystack as well
    begin: bool = False  # begin the prompt with an end of text, as training documents do

    def __post_init__(self):
        super().__post_init__()
        if self.prompt not in ("sft", "completion"):
            raise ValueError(f"prompt must be sft or completion, not {self.prompt!r}")
        for key, parts in {"needle": ("{city}", "{number}"), "question": ("{city}",),
                           "qa_format": ("{context}", "{question}", "{answer}")}.items():
            if not all(part in getattr(self, key) for part in parts):
                raise ValueError(f"{key} must contain {', '.join(parts)}")
        whole = (*self.context_sizes, *self.number_format, self.trial_size, self.n_samples)
        if not all(type(n) is int and n > 0 for n in whole):
            raise ValueError("context_sizes, number_format, trial_size and n_samples must be "
                             "positive whole numbers")
        if not all(type(d) in (int, float) and 0 <= d <= 100 for d in self.depths):
            raise ValueError("depths are percentages, 0 to 100")
        if self.trials < 0 or not 0 <= self.n_needles < len(CITIES):
            raise ValueError(f"trials must not be negative, n_needles 0 to {len(CITIES) - 1}")


# -----------------------------------------------------------------------------
# samples: a pure function of (settings, context size, depth, number of the sample)


def open_haystack(cfg, vocab):
    """(hay, {digest, source}): the ids of text files (an array), or the Tokens of a corpus."""
    if not cfg.haystack:
        tokens = Tokens(cfg.data_dir, cfg.split)
        if tokens.vocab != vocab:
            raise UserError(f"{cfg.data_dir} has another vocabulary than the checkpoint")
        return tokens, tokens.about()
    paths = sorted(glob.glob(cfg.haystack))
    if not paths:
        raise UserError(f"--haystack={cfg.haystack}: no such file")
    try:
        text = "\n".join(Path(path).read_text(encoding="utf-8") for path in paths)
    except UnicodeDecodeError as e:
        raise UserError(f"--haystack={cfg.haystack}: not UTF-8 text ({e.reason})") from e
    ids = np.array(encode(text, vocab))
    return ids, {"digest": f"{len(text)} characters", "source": {"haystack": cfg.haystack}}


def draw_hay(hay, rng, length):
    """`length` token ids from a random place."""
    if len(hay) < length:
        raise UserError(f"the haystack has {len(hay):,} tokens, {length:,} are needed; choose a "
                        "smaller context or more text")
    start = rng.randrange(len(hay) - length + 1)
    piece = hay[start:start + length] if isinstance(hay, np.ndarray) else hay.read([start], length)
    return piece.flatten().tolist()


def needle_ids(cfg, vocab, city, number):
    """Ids up to the colon, and ids of the number and what ends the needle."""
    # encoded apart: GPT-2 never joins across a space, so together they are the same ids
    head, _, tail = cfg.needle.format(city=city, number="\0").partition("\0")
    number = spaced(number, cfg.number_format)
    return encode(" " + head.rstrip(), vocab), encode(f" {number}{tail}", vocab)


def ends_sentence(token, vocab):
    text = decode([token], vocab).rstrip(" \"'”’)")
    return text.endswith((".", "!", "?", "\n", "<|endoftext|>"))


def insert(cfg, vocab, hay, needle, depth):
    """Put `needle` into the list `hay` behind the sentence at `depth` percent -> its position."""
    first = int(cfg.begin)  # behind the end of text that begins the prompt
    at = wanted = max(first, round(len(hay) * depth / 100))
    while at > first and not ends_sentence(hay[at - 1], vocab):
        at -= 1
    if at == first and depth > 0:  # no sentence ends before: stay
        at = wanted
    hay[at:at] = needle
    return at


def make_sample(cfg, vocab, hay, size, depth, i, number=None):
    """
    A dict: the prompt (exactly `size` ids), the span [from, to) of the number in it, the city, its
    number, the depth. depth None: a random one. number: given with the paper's example, Tokyo.
    """
    rng = random.Random(f"{cfg.seed} {size} {depth} {i}")
    digits = sum(cfg.number_format)
    city, *others = rng.sample(CITIES, 1 + cfg.n_needles)
    drawn = [str(rng.randrange(10 ** (digits - 1), 10**digits)) for _ in range(1 + cfg.n_needles)]
    city, number = ("Tokyo", number) if number else (city, drawn[0])
    depth = rng.uniform(0, 100) if depth is None else depth
    head, tail = needle_ids(cfg, vocab, city, number)
    lead, end = [], head
    if cfg.prompt == "sft":
        form = cfg.qa_format.partition("{answer}")[0].rstrip(" ")
        before, _, after = form.partition("{context}")
        question = cfg.question.format(city=city)
        lead = encode(before.format(question=question), vocab)
        end = encode(after.format(question=question), vocab)
    distractors = []
    for other, its_number in zip(others, drawn[1:], strict=True):
        distractors.append(sum(needle_ids(cfg, vocab, other, its_number), []))
    room = size - sum(map(len, (lead, head, tail, end, *distractors)))
    if room < 1:
        raise UserError(f"{size} tokens are too small for needle and prompt; take at least "
                        f"{size - room + 1}")
    text = draw_hay(hay, rng, room)
    if cfg.begin:
        text[0] = end_of_text(vocab)
    for distractor in distractors:
        insert(cfg, vocab, text, distractor, rng.uniform(0, 100))
    # the needle cannot split a distractor: snapped places are ends of sentences
    at = insert(cfg, vocab, text, head + tail, depth) + len(lead) + len(head)
    return {"size": size, "depth": depth, "i": i, "city": city, "number": number,
            "prompt": lead + text + end, "span": (at, at + len(tail))}


# -----------------------------------------------------------------------------
# answers


def score(number, text, groups):
    """What a generated text got right. Exact: all digits, and no other one behind them."""
    digits = re.sub(r"\s", "", text) if len(groups) > 1 else text.strip()
    return {"exact": bool(re.match(number + r"(?!\d)", digits)),
            "first": digits[:1] == number[0], "substring": number in digits}


@torch.no_grad()
def answer(cfg, model, vocab, batch, device):
    """Ask the model all samples of `batch`, of one size -> records for the result file."""
    idx = torch.tensor([sample["prompt"] for sample in batch], device=device)
    groups = cfg.number_format
    new = (len(groups) if len(groups) > 1 else groups[0]) + 1
    with runtime.autocast(device, cfg.dtype):
        # end of text never comes, as in the paper
        rows = model.generate(idx, new, temperature=0, banned=(end_of_text(vocab),))
        attention = model.last_query_attention(idx) if cfg.trials else None
    records = []
    for b, sample in enumerate(batch):
        text = decode(rows[b, idx.size(1):].tolist(), vocab)
        record = {k: sample[k] for k in ("size", "depth", "i", "city", "number")}
        record.update(text=text, **score(sample["number"], text, groups))
        if cfg.trials:  # section 3.4: a head's attention on the number, summed over its tokens
            heads = attention[b, :, :, slice(*sample["span"])].sum(-1)
            record["scores"] = [[round(x, 5) for x in layer] for layer in heads.tolist()]
            record["top"] = round(heads.max().item(), 5)
        records.append(record)
    return records


def ask(cfg, path, what, lengths, jobs, device):
    """
    Ask a checkpoint what is left of `jobs`, (size, depth, i) each -> (about, records of all jobs).

    Samples are lines of <what>.jsonl, behind a first line that says what they belong to.
    """
    model, state = evaluate.open_model(cfg, path, device, max(lengths))
    vocab = state["vocab"]
    hay, data = open_haystack(cfg, vocab)
    about = evaluate.about(cfg, path, device, model, state, data)
    out = evaluate.result_path(path, what, cfg.tag, ".jsonl")
    for size in lengths:  # before anything is written: does a prompt fit, is there enough hay?
        make_sample(cfg, vocab, hay, size, 50, 0)
    found, _ = evaluate.earlier(cfg, out, about, lambda records: len(records) > len(jobs))
    header, *records = found or [about]
    done = {(r["size"], r["cell"], r["i"]) for r in records}
    left = [job for job in jobs if job[:3] not in done]
    if left and runtime.rank() == 0:  # whole lines only, to go on behind them
        with runtime.atomic_write(out, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in [header, *records])

    def answers(jobs):
        samples = [make_sample(cfg, vocab, hay, *job) for job in jobs]
        found = answer(cfg, model, vocab, samples, device)
        return [{**record, "cell": job[1]} for record, job in zip(found, jobs, strict=True)]

    def keep(jobs, results):
        records.extend(results)
        if runtime.rank() == 0:
            with runtime.writing(out), open(out, "a") as f:
                f.writelines(json.dumps(r) + "\n" for r in results)

    evaluate.work(cfg, device, str(path), left, answers, keep)
    return header, records


# -----------------------------------------------------------------------------
# the two measurements


def wilson(hits, n, z=1.96):
    """95 % interval of a share."""
    centre, half = (hits + z * z / 2) / (n + z * z), z / (n + z * z)
    half *= math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


def grid(cfg, path, device):
    """Fig. 6: the share of needles found by context size and depth."""
    jobs = [(size, depth, i) for size in cfg.context_sizes for depth in cfg.depths
            for i in range(cfg.n_samples)]
    about, records = ask(cfg, path, "niah", cfg.context_sizes, jobs, device)
    cells = []
    for size in cfg.context_sizes:
        for depth in cfg.depths:
            found = [r for r in records if (r["size"], r["depth"]) == (size, depth)]
            cell = {"size": size, "depth": depth, "n": len(found)}
            for key in ("exact", "first", "substring"):
                hits = sum(r[key] for r in found)
                cell[key] = hits / len(found)
                cell[f"{key}_interval"] = wilson(hits, len(found))
            cells.append(cell)
    runtime.write_json(evaluate.result_path(path, "niah", cfg.tag), {**about, "cells": cells})

    print0(f"{path}: all digits right, {cfg.n_samples} samples a cell")
    print0(f"{'depth':>8}" + "".join(f"{size:>9,}" for size in cfg.context_sizes))
    for depth in cfg.depths:
        row = [c["exact"] for c in cells if c["depth"] == depth]
        print0(f"{depth:>7}%" + "".join(f"{share:>9.3f}" for share in row))
    for key, name in (("exact", "all"), ("first", "digit 1")):
        means = [statistics.mean(c[key] for c in cells if c["size"] == size)
                 for size in cfg.context_sizes]
        print0(f"{name:>8}" + "".join(f"{mean:>9.3f}" for mean in means))


def scores(cfg, path, device):
    """Figs. 7 and 8: the needle score of each head in the paper's example, and of random trials."""
    example = ("8106422" * 9)[:sum(cfg.number_format)]
    jobs = [(cfg.trial_size, 50, -1, example)]
    jobs += [(cfg.trial_size, None, i) for i in range(cfg.trials)]
    about, records = ask(cfg, path, "needle", (cfg.trial_size,), jobs, device)
    example = next(r for r in records if r["i"] < 0)
    trials = [r for r in records if r["i"] >= 0]
    short = [{key: r[key] for key in ("top", "exact", "first")} for r in trials]
    runtime.write_json(evaluate.result_path(path, "needle", cfg.tag),
                       {**about, "example": example, "trials": short})

    median = statistics.median(r["top"] for r in trials)
    exact = sum(r["exact"] for r in trials)
    only_first = sum(r["first"] and not r["exact"] for r in trials)
    print0(f"{path}: top needle score, median of {len(trials)} trials {median:.3f}; all digits "
           f"right in {exact}, only the first in {only_first}; the example: score "
           f"{example['top']:.3f}, {example['text']!r}")


def main():
    cfg = configure(NiahConfig)
    device = runtime.get_device(cfg.device)
    runtime.init_ranks(device)
    for path in cfg.files:
        if cfg.trials:
            scores(cfg, path, device)
        else:
            grid(cfg, path, device)


if __name__ == "__main__":
    runtime.launch(main)
