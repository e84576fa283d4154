"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft/b_ssmax --rope_factor=50
        as in the paper: needles found, by depth and context size
    python eval_niah.py out/sft/b_ssmax --rope_factor=50 --trials=100
        the attention on needles, in the paper's example and 100 random prompts
    python eval_niah.py out/b_ssmax --task=multikey
        another task (lib/tasks.py)

A needle is a sentence with a number, hidden in a long text (the hay). A model that was fine-tuned
on questions (sft.py) is asked for the number (prompt=sft). A model that was not gets the needle
again, up to its number, and is to complete it (prompt=completion).

Retrieval heads give the needle at least half as much attention as the head that gives it most.
--trials also asks prompts of the training length, and lib/measures.py chooses the retrieval heads
on these alone. If the same prompts chose the heads and measured them, the heads would look better
than they are.

The result is niah[-tag].jsonl, or with --trials scores[-tag].jsonl, beside the checkpoint (or, with
--out=FOLDER, in FOLDER/RUN). It has a record for each prompt, see `answer`. The same command
continues a killed evaluation. `torchrun` divides the prompts among its processes.
"""
import itertools
import re
from dataclasses import dataclass
from typing import Literal

import torch

from lib import checkpoint, config, evaluate, runtime
from lib.corpora.almanac import CITIES
from lib.corpora.squad import QA_FORMAT
from lib.errors import launch
from lib.evaluate import EvalConfig, Job, Work
from lib.ranks import print0
from lib.tasks import (
    OF_NEEDLES,
    PAPER_EXAMPLE,
    TASKS,
    WITHOUT_DEPTH,
    make_sample,
    open_haystack,
)
from lib.text import decode, end_of_text


@dataclass(frozen=True)
class NiahConfig(EvalConfig):
    # data
    haystack: str = ""  # the hay: a glob of text files, or noise (five sentences); empty: data_dir
    # evaluation
    context_sizes: tuple = tuple(range(1000, 10001, 1000))  # tokens of the whole prompt
    depths: tuple = (10, 30, 50, 70, 90)  # where the needle is, in percent of the haystack
    n_samples: int = 1000  # samples for each context size and depth
    trials: int = 0  # number of random samples to measure needle scores on, instead of the grid
    trial_sizes: tuple = (8000,)  # tokens in the prompt of a trial
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    question: str = "What is the special magic {city} number?"  # the question of prompt=sft
    prompt: Literal["", "sft", "completion"] = ""  # empty: sft after sft.py, else completion
    qa_format: str = QA_FORMAT  # format of the prompt=sft prompts; the default is sft.py's
    number_format: tuple = (7,)  # digits in each group of the number; (2, 2, 2, 1): 81 06 42 2
    task: Literal[tuple(TASKS)] = "needle"  # the task, see lib/tasks.py
    n_needles: int = 0  # task=multikey: number of needles about other cities; 0: three
    begin: bool = False  # begin the prompt with the end-of-text token, as after a document

    NEEDS = EvalConfig.NEEDS | {
        "depths": "task != 'mqar'",
        "needle": "task != 'mqar'",
        "question": "task != 'mqar'",
        "prompt": "task != 'mqar'",
        "qa_format": "task != 'mqar'",
        "number_format": "task != 'mqar'",
        "n_needles": "task == 'multikey'",
    }

    def __post_init__(self):
        super().__post_init__()
        self.check_formats()
        self.check_sizes()

    def check_formats(self):
        formats = {
            "needle": ["city", "number"],
            "question": ["city"],
            "qa_format": ["context", "question", "answer"],
        }
        for key, names in formats.items():
            fields = re.findall("{(.*?)}", getattr(self, key))
            # A prompt is cut off where its answer would begin, so this field must be the last one.
            # The needle is cut off in this way with prompt=completion only.
            ends_prompt = key != "needle" or self.prompt == "completion"
            if sorted(fields) != sorted(names) or (ends_prompt and fields[-1] != names[-1]):
                raise ValueError(f"{key} must have these fields in braces, each once and the last "
                                 f"one last: {' '.join(names)}")

    def check_sizes(self):
        for key in ("context_sizes", "trial_sizes", "number_format", "n_samples"):
            sizes = getattr(self, key)
            sizes = sizes if type(sizes) is tuple else (sizes,)
            if not sizes or not all(type(size) is int and size > 0 for size in sizes):
                raise ValueError(f"{key} must be positive whole numbers, such as 128 or 128,256")
        if not all(type(depth) in (int, float) and 0 <= depth <= 100 for depth in self.depths):
            raise ValueError(f"depths={self.depths} must be percentages, 0 to 100")
        if self.n_needles >= len(CITIES):
            raise ValueError(f"n_needles={self.n_needles} must be below {len(CITIES)}")

    def asked_depths(self):
        """Return the depths that are asked; [None] for a task without depths."""
        return [None] if self.task in WITHOUT_DEPTH else self.depths


def choose_prompt(cfg, path, state):
    """Return `cfg` with a prompt: sft if sft.py made the checkpoint or one that it began from."""
    if cfg.prompt or cfg.task not in OF_NEEDLES:
        return cfg
    runs = [state, *checkpoint.earlier_runs(state)]
    fine_tuned = any("squad" in run.get("data", {}).get("source", {}) for run in runs)
    cfg = config.complete(cfg, prompt="sft" if fine_tuned else "completion")
    print0(f"{path}: prompt={cfg.prompt}")
    return cfg


# -----------------------------------------------------------------------------
# which prompts


def grid_jobs(cfg):
    """Return the Jobs of Fig. 6: n_samples prompts of each context size and depth."""
    samples = range(cfg.n_samples)
    return itertools.starmap(Job, itertools.product(cfg.context_sizes, cfg.asked_depths(), samples))


def trial_jobs(cfg, block_size):
    """
    Return the Jobs of Figs. 7 and 8. First come those that are measured: for each size the paper's
    example and the trials. Then come cfg.trials more prompts, which only choose the retrieval
    heads: of the training length, or of the longest trial if it is shorter.
    """
    jobs = []
    for size in cfg.trial_sizes:
        jobs += [Job(size, None, i) for i in (PAPER_EXAMPLE, *range(cfg.trials))]
    choosing_size = min(block_size, max(cfg.trial_sizes))
    jobs += [Job(choosing_size, None, i) for i in range(cfg.trials, 2 * cfg.trials)]
    return jobs


def sample_of(cfg, vocab, hay, job):
    """Return the sample of a Job (see `make_sample`), with the depth that the Job asks for."""
    depth = 50 if job.i == PAPER_EXAMPLE else job.asked_depth
    sample = make_sample(cfg, vocab, hay, job.size, depth, job.i)
    return sample | {"asked_depth": job.asked_depth}


# -----------------------------------------------------------------------------
# prompt -> record


def score(right, text, groups):
    """
    Return what the generated `text` got of the right answer, as {"exact", "first", "substring"}.

    exact: whether the text begins with it and goes on with no further digit (or letter). first:
    whether the first character is right. substring: whether the answer is anywhere in the text.
    groups: cfg.number_format.
    """
    if right.isdigit() and len(groups) > 1:  # written with spaces inside, so spaces do not count
        text = re.sub(r"\s", "", text)
    text = text.strip()
    no_more = r"(?!\d)" if right.isdigit() else r"(?!\w)"
    exact = re.match(re.escape(right) + no_more, text) is not None
    return {"exact": exact, "first": text[:1] == right[0], "substring": right in text}


@torch.no_grad()
def answer(cfg, model, vocab, batch, device):
    """
    Return the records of `batch`, samples of one size, after asking the model all of them:

        size, i, answer, depth    see `make_sample`
        asked_depth               None in trials and in tasks without depths
        text                      what the model wrote
        exact, first, substring   see `score`

    and with --trials what `attention_record` returns.
    """
    idx = torch.tensor([sample["prompt"] for sample in batch], device=device)
    longest = max(sample["max_new_tokens"] for sample in batch)
    with runtime.autocast(device, cfg.dtype):
        # As in the paper, the model may not answer with the end-of-text token.
        rows = model.generate(idx, longest, temperature=0, banned=(end_of_text(vocab),))
        weights = model.last_query_attention(idx) if cfg.trials else None
    records = []
    for row, sample in enumerate(batch):
        end = sample["size"] + sample["max_new_tokens"]
        text = decode(rows[row, sample["size"]:end].tolist(), vocab)
        record = {
            "size": sample["size"],
            "asked_depth": sample["asked_depth"],
            "depth": sample["depth"],
            "i": sample["i"],
            "answer": sample["answer"],
            "text": text,
            **score(sample["answer"], text, cfg.number_format),
        }
        if cfg.trials:
            record |= attention_record(cfg, sample, weights[row])
        records.append(record)
    return records


def attention_record(cfg, sample, weights):
    """
    Return what a record of --trials has besides, about the attention on the needle:

        chooses_heads    whether retrieval heads are chosen on this prompt, which is then no trial
        needle_tokens    number of tokens of the needle's number
        scores, ranks    for each head, [layer][head], see `needle_scores`
        top              the largest score

    weights (n_layer, n_head, T): those of the prompt's last query.
    """
    start, end = sample["span"]
    exact_scores, needle_ranks = needle_scores(weights, start, end)
    scores = [[round(x, 5) for x in layer] for layer in exact_scores.tolist()]
    return {
        "chooses_heads": sample["i"] >= cfg.trials,
        "needle_tokens": end - start,
        "scores": scores,
        "ranks": needle_ranks.tolist(),
        "top": max(map(max, scores)),
    }


def needle_scores(weights, start, end):
    """
    Return the needle score and the needle's rank in each head, two tensors (n_layer, n_head).

    The score (section 3.4) is the attention on the number's tokens, summed. (The paper also counts
    the full stop after it.) The rank is 1 + the number of other tokens with more attention
    than any token of the number.

    weights (n_layer, n_head, T): those of a prompt's last query. start, end: of the number in the
    prompt.
    """
    on_needle = weights[..., start:end]
    more = weights > on_needle.amax(dim=-1, keepdim=True)
    return on_needle.sum(dim=-1), 1 + more.sum(dim=-1)


# -----------------------------------------------------------------------------


def work_of(cfg, path, model, state):
    """Return the Work on a checkpoint: to ask it all prompts."""
    cfg = choose_prompt(cfg, path, state)
    vocab, device = state["vocab"], model.wte.weight.device
    hay, data = open_haystack(cfg, vocab)
    jobs = trial_jobs(cfg, model.config.block_size) if cfg.trials else grid_jobs(cfg)
    jobs = list(dict.fromkeys(jobs))  # a size or depth may be given twice
    # a prompt that does not fit is an error here, before anything is written
    for job in {job.size: job for job in jobs}.values():
        sample = sample_of(cfg, vocab, hay, job)
        # the last token of the answer is never an input
        n_inputs = sample["size"] + sample["max_new_tokens"] - 1
        evaluate.check_length(path, model, n_inputs)

    def answer_jobs(jobs):
        batch = [sample_of(cfg, vocab, hay, job) for job in jobs]
        return answer(cfg, model, vocab, batch, device)

    return Work(cfg, data, jobs, answer_jobs)


def main():
    cfg = config.configure(NiahConfig)
    evaluate.evaluate(cfg, "scores" if cfg.trials else "niah", work_of)


if __name__ == "__main__":
    launch(main)
