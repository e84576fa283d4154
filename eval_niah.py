"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft_b                          retrieval grid: depth x context size
    python eval_niah.py out/sft_b --trials=100             needle scores: the paper's and 100 random
    python eval_niah.py out/b_ssmax --prompt=completion    no fine-tuning needed

Beside each checkpoint: niah[-tag].jsonl (needle[-tag].jsonl with --trials), a line a sample, and a
summary .json. The same command continues a killed run; `torchrun` shares the samples.
"""
import glob
import itertools
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
    haystack: str = ""  # text files (a glob) as hay instead of data_dir; noise: RULER's sentences
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
    dump: str = ""  # also write prompts and answers to this .jsonl, for other harnesses
    n_needles: int = 0  # needles of other cities in the haystack as well
    begin: bool = False  # begin the prompt with an end of text, as training documents do

    def __post_init__(self):
        super().__post_init__()
        if self.prompt not in ("sft", "completion"):
            raise ValueError(f"prompt must be sft or completion, not {self.prompt!r}")
        for key, parts in {"needle": "{city} {number}", "question": "{city}",
                           "qa_format": "{context} {question} {answer}"}.items():
            if not all(part in getattr(self, key) for part in parts.split()):
                raise ValueError(f"{key} must contain {parts}")
        if not self.context_sizes or not self.depths:
            raise ValueError("context_sizes and depths must not be empty")
        whole = (*self.context_sizes, *self.number_format, self.trial_size, self.n_samples)
        if not all(type(n) is int and n > 0 for n in whole):  # not isinstance: True is no size
            raise ValueError("sizes, number_format and n_samples must be positive whole numbers")
        if not all(type(d) in (int, float) and 0 <= d <= 100 for d in self.depths):
            raise ValueError("depths are percentages, 0 to 100")
        if self.trials < 0 or not 0 <= self.n_needles < len(CITIES):
            raise ValueError(f"trials must not be negative, n_needles 0 to {len(CITIES) - 1}")


# the hay of RULER (Hsieh et al. 2024, arXiv 2404.06654), over and over
NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
         "again. ")


def open_haystack(cfg, vocab):
    """(hay, {digest, source}): the ids of text files (an array), or the Tokens of a corpus."""
    if not cfg.haystack:
        tokens = Tokens(cfg.data_dir, cfg.split)
        if tokens.vocab != vocab:  # the same ids would be other words
            raise UserError(f"{cfg.data_dir} has another vocabulary than the checkpoint")
        return tokens, tokens.about()
    # glob's order is the file system's; what fits nothing is opened as it stands, and then missing
    paths = sorted(glob.glob(cfg.haystack)) or [cfg.haystack]
    try:
        if cfg.haystack == "noise":
            text = NOISE * (max(cfg.trial_size, *cfg.context_sizes) // 10)
        else:
            text = "\n".join(Path(path).read_text(encoding="utf-8") for path in paths)
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"--haystack={cfg.haystack}: no such file of UTF-8 text ({e})") from e
    about = {"digest": f"{len(text)} characters", "source": {"haystack": cfg.haystack}}
    return np.array(encode(text, vocab)), about


def needle_ids(cfg, vocab, city, number):
    """Ids up to the colon, and ids of the number and what ends the needle."""
    # encoded apart: GPT-2 never joins across a space, so together they are the same ids
    head, _, tail = cfg.needle.format(city=city, number="\0").partition("\0")
    tail = f" {spaced(number, cfg.number_format)}{tail}"
    return encode(" " + head.rstrip(), vocab), encode(tail, vocab)


def insert(cfg, vocab, hay, needle, depth):
    """Put `needle` into the list `hay` behind the sentence at `depth` percent -> its position."""
    first = int(cfg.begin)  # behind the end of text that begins the prompt
    wanted = max(first, round(len(hay) * depth / 100))
    for at in range(wanted, first, -1):
        before = decode([hay[at - 1]], vocab).rstrip(" \"'”’)")  # a quotation may close behind it
        if before.endswith((".", "!", "?", "\n", "<|endoftext|>")):
            break
    else:  # no sentence ends before: the depth counts more than its end
        at = wanted
    hay[at:at] = needle
    return at


def make_sample(cfg, vocab, hay, size, depth, i):
    """
    A dict that follows from the arguments: the prompt (exactly `size` ids), the span [from, to) of
    the number in it, city, number, depth. depth None: a random one. i < 0: the paper's Tokyo.
    """
    rng = random.Random(f"{cfg.seed} {size} {depth} {i}")  # a text: other hashes differ by process
    digits = sum(cfg.number_format)
    city, *others = rng.sample(CITIES, 1 + cfg.n_needles)
    low = 10 ** (digits - 1)  # no leading zero, so that each number has all its digits
    number, *decoys = [str(rng.randrange(low, 10 * low)) for _ in range(1 + cfg.n_needles)]
    if i < 0:  # repeated, for formats of more digits than the paper's seven
        city, number = "Tokyo", ("8106422" * 9)[:digits]
    at = rng.uniform(0, 100) if depth is None else depth
    head, tail = needle_ids(cfg, vocab, city, number)
    lead, end = [], head
    if cfg.prompt == "sft":  # without the space before the answer: it is part of its first token
        form = cfg.qa_format.partition("{answer}")[0].rstrip(" ")
        question = cfg.question.format(city=city)
        around = form.partition("{context}")[::2]
        lead, end = (encode(part.format(question=question), vocab) for part in around)
    pairs = zip(others, decoys, strict=True)
    distractors = [sum(needle_ids(cfg, vocab, *pair), []) for pair in pairs]
    room = size - sum(map(len, (lead, head, tail, end, *distractors)))
    if room < 1:
        raise UserError(f"too small for needle and prompt; take at least {size - room + 1} tokens")
    if room > len(hay):
        raise UserError(f"only {len(hay):,} tokens of hay, of {room:,}; choose a smaller context")
    place = rng.randrange(len(hay) - room + 1)
    # files are in memory; a corpus may be larger, and is read where it is needed
    text = (hay[place:place + room] if cfg.haystack else hay.read([place], room)[0]).tolist()
    if cfg.begin:
        text[0] = end_of_text(vocab)  # instead of a token, for the prompt keeps its size
    for distractor in distractors:
        insert(cfg, vocab, text, distractor, rng.uniform(0, 100))
    # the needle cannot split a distractor: snapped places are ends of sentences
    start = insert(cfg, vocab, text, head + tail, at) + len(lead) + len(head)
    return {"size": size, "depth": at, "i": i, "city": city, "number": number, "cell": depth,
            "prompt": lead + text + end, "span": (start, start + len(tail))}


def score(number, text, groups):
    """What a generated text got right. Exact: all digits, and no other one behind them."""
    # only a number written in groups may have spaces inside
    digits = re.sub(r"\s", "", text) if len(groups) > 1 else text.strip()
    return {"exact": bool(re.match(number + r"(?!\d)", digits)),
            "first": digits[:1] == number[0], "substring": number in digits}


@torch.no_grad()
def answer(cfg, model, vocab, batch, device):
    """Ask the model all samples of `batch`, of one size -> records for the result file."""
    idx = torch.tensor([sample["prompt"] for sample in batch], device=device)
    groups = cfg.number_format
    # a token a group, or at worst one for the space and one a digit; one more shows whether the
    # number ends there
    new = 1 + (len(groups) if len(groups) > 1 else 1 + groups[0])
    with runtime.autocast(device, cfg.dtype):
        # end of text never comes, as in the paper
        rows = model.generate(idx, new, temperature=0, banned=(end_of_text(vocab),))
        attention = model.last_query_attention(idx) if cfg.trials else None
    records = []
    for b, sample in enumerate(batch):
        text = decode(rows[b, idx.size(1):].tolist(), vocab)
        record = {k: sample[k] for k in ("size", "depth", "i", "city", "number", "cell")}
        record.update(text=text, **score(sample["number"], text, groups))
        if cfg.trials:  # section 3.4: a head's attention on the number, summed over its tokens
            heads = attention[b, :, :, slice(*sample["span"])].sum(-1)
            record["scores"] = [[round(x, 5) for x in layer] for layer in heads.tolist()]
            record["top"] = max(map(max, record["scores"]))
        records.append(record)
    return records


def ask(cfg, path, what, jobs, device):
    """
    Ask a checkpoint what is left of `jobs`, (size, depth, i) each -> (about, records of all jobs).
    They are lines of <what>.jsonl, behind a first one that says what they belong to.
    """
    sizes = sorted({size for size, _, _ in jobs})
    model, state = evaluate.open_model(cfg, path, device, sizes[-1])
    vocab = state["vocab"]
    hay, data = open_haystack(cfg, vocab)
    about = evaluate.about(cfg, path, device, model, state, data)
    out = evaluate.result_path(path, what, cfg.tag, ".jsonl")
    for size in sizes:  # before anything is written: does a prompt fit, is there enough hay?
        make_sample(cfg, vocab, hay, size, 50, 0)
    if cfg.dump and runtime.RANK == 0:
        with runtime.atomic_write(cfg.dump, "w") as f:
            for sample in (make_sample(cfg, vocab, hay, *job) for job in jobs):
                said = {"prompt": decode(sample["prompt"], vocab), "answer": sample["number"],
                        "size": sample["size"], "depth": sample["depth"]}
                f.write(json.dumps(said) + "\n")
    done = set()

    def finished(records):  # reads each line's keys where `earlier` refuses what lacks them
        done.update((r["size"], r["cell"], r["i"]) for r in records[1:])
        return len(records) > len(jobs)  # the first line is no sample

    found, _ = evaluate.earlier(cfg, out, about, finished)  # a finished one is summed up again
    header, *records = found or [about]
    left = [job for job in jobs if job not in done]
    if left and runtime.RANK == 0:  # whole lines only, to go on behind them
        with runtime.atomic_write(out, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in [header, *records])

    def answers(jobs):
        batch = [make_sample(cfg, vocab, hay, *job) for job in jobs]
        return answer(cfg, model, vocab, batch, device)

    def keep(jobs, results):
        records.extend(results)
        if runtime.RANK == 0:  # appended: written whole each time, the file would cost n^2
            with runtime.writing(out), open(out, "a") as f:
                f.writelines(json.dumps(r) + "\n" for r in results)

    evaluate.work(device, str(path), left, answers, keep, cfg.micro_batch_size)
    return header, records


def wilson(hits, n, z=1.96):
    """95 % interval of a share."""
    # not hits / n +- z * stderr, which has no width where all or none are hit
    centre, half = (hits + z * z / 2) / (n + z * z), z / (n + z * z)
    half *= math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


def grid(cfg, path, records):
    """Fig. 6: the share of needles found by context size and depth."""
    cells = []
    for size, depth in itertools.product(cfg.context_sizes, cfg.depths):
        found = [r for r in records if (r["size"], r["depth"]) == (size, depth)]
        cell = {"size": size, "depth": depth, "n": len(found)}
        for key in ("exact", "first", "substring"):
            hits = sum(r[key] for r in found)
            cell[key] = hits / len(found)
            cell[f"{key}_interval"] = wilson(hits, len(found))
        cells.append(cell)
    print0(f"{path}: all digits right, {cfg.n_samples} samples a cell")
    print0(f"{'depth':>8}" + "".join(f"{size:>9,}" for size in cfg.context_sizes))
    for depth in cfg.depths:
        row = [f"{c['exact']:>9.3f}" for c in cells if c["depth"] == depth]
        print0(f"{depth:>7}%" + "".join(row))
    # digit 1 too: it may be right where the needle is found and not copied to its end
    for key, name in (("exact", "all"), ("first", "digit 1")):
        columns = [[c[key] for c in cells if c["size"] == size] for size in cfg.context_sizes]
        print0(f"{name:>8}" + "".join(f"{statistics.mean(column):>9.3f}" for column in columns))
    return {"cells": cells}


def scores(cfg, path, records):
    """Figs. 7 and 8: the needle score of each head in the paper's example, and of random trials."""
    example, *trials = sorted(records, key=lambda r: r["i"])  # several ranks mix them
    median = statistics.median(r["top"] for r in trials)
    exact = sum(r["exact"] for r in trials)
    only_first = sum(r["first"] and not r["exact"] for r in trials)
    print0(f"{path}: top needle score, median of {len(trials)} trials {median:.3f}; all digits "
           f"right in {exact}, only the first in {only_first}; the example: score "
           f"{example['top']:.3f}, {example['text']!r}")
    short = [{key: r[key] for key in ("top", "exact", "first")} for r in trials]
    return {"example": example, "trials": short}


def main():
    cfg = configure(NiahConfig)
    device = runtime.setup(cfg.device)
    what, summary = "niah", grid
    jobs = list(itertools.product(cfg.context_sizes, cfg.depths, range(cfg.n_samples)))
    if cfg.trials:  # needle scores take a second pass over each prompt
        what, summary = "needle", scores
        jobs = [(cfg.trial_size, 50, -1)] + [(cfg.trial_size, None, i) for i in range(cfg.trials)]
    for path in cfg.files:
        about, records = ask(cfg, path, what, jobs, device)
        result = {**about, **summary(cfg, path, records)}
        runtime.write_json(evaluate.result_path(path, what, cfg.tag), result)


if __name__ == "__main__":
    runtime.launch(main)
