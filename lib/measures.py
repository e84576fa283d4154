"""
What a result file measures: its records -> Samples, with a value for each prompt or piece of text.

Every number of a record is a measure (`read_numbers`), so a new evaluation needs nothing here. The
other readers are for files whose records hold more: losses by position, the answers and the heads
of eval_niah.py, and the log of a training.
"""
import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.tasks import PAPER_EXAMPLE

MINUS = " minus (a)"  # at the end of a measure: its paired difference from softmax


class Job(NamedTuple):
    """A piece of text or a prompt to measure. A field is None if the record lacks it."""
    size: int  # in tokens
    asked_depth: float | None  # of the needle in percent, or None
    i: int  # number of the piece or prompt


class Samples(NamedTuple):
    """The values of a measure in a file."""
    measure: str
    by: str  # what the columns count: tokens, position, ...; lib/results.py has the list
    values: pd.DataFrame  # a column for each number of tokens, a line for each prompt or piece
    paired: bool = False  # whether those of (a) are subtracted


# -----------------------------------------------------------------------------
# a reader for each type of file, and one for all other types: (header, records) -> Samples


def read_numbers(header, records, names=None, paired=True):
    """Yield the Samples of every number of the records. names: {name in a record: measure}; of
    these numbers alone."""
    prompt = ["i"]
    if "asked_depth" in records:
        depth = records["asked_depth"].astype(float).fillna(-1)  # -1: a task without depths
        records = records.assign(asked_depth=depth)
        prompt = ["asked_depth", "i"]
    if names is None:
        numbers = records.select_dtypes(["number", "bool"]).columns.difference(Job._fields)
        names = {name: name for name in numbers}
    for name, measure in names.items():
        values = records.pivot(index=prompt, columns="size", values=name)
        yield Samples(measure, "tokens", values.astype(float), paired)


def read_posloss(header, records):
    ends = pd.Index(header["ends"], dtype="int64")
    losses = pd.DataFrame(records["losses"].tolist(), records["i"], ends, dtype=float)
    yield Samples(f"{header['settings']['split']} loss", "position", losses, paired=True)


def read_niah(header, records):
    settings = header["settings"]
    task = settings.get("task", "needle")
    measure, letter = f"{task} answers", "character"
    if task == "needle":
        measure, letter = "needles", "digit"
    if task == "multikey":
        measure = f"needles among {settings['n_needles'] or 3} others"

    whole, = read_numbers(header, records, {"exact": measure})
    yield whole
    for depth, values in whole.values.groupby("asked_depth"):
        at = f"{depth:g} %" if depth >= 0 else "any depth"
        yield Samples(measure, f"tokens at {at}", values)
    in_part = {"first": f"{measure}, first {letter}", "substring": f"{measure}, anywhere"}
    yield from read_numbers(header, records, in_part, paired=False)


def read_scores(header, records):
    # (records, layers, heads) each
    scores = np.array(records["scores"].tolist())
    ranks = np.array(records["ranks"].tolist())

    # A retrieval head has at least half of the largest mean score.
    means = scores[records["chooses_heads"]].mean(axis=0)
    is_retrieval = means >= means.max() / 2
    needle_share = records["needle_tokens"] / records["size"]
    records = records.assign(**{
        "weight": scores[:, is_retrieval].mean(axis=1),
        "ranked first": (ranks[:, is_retrieval] == 1).any(axis=1),
        "chance": 1 - (1 - needle_share) ** is_retrieval.sum(),
    })

    is_example = records["i"] == PAPER_EXAMPLE
    trials = records[~records["chooses_heads"] & ~is_example]
    yield from read_numbers(header, trials, {"weight": "weight"})
    others = {"top": "score", "ranked first": "ranked first", "chance": "chance"}
    yield from read_numbers(header, trials, others, paired=False)

    longest = trials["size"].max()
    example = scores[is_example & (records["size"] == longest)]
    # Heads are sorted by score, because it is chance which heads of a run learn to retrieve.
    highest = sorted(example.ravel(), reverse=True)[:25]
    yield Samples(at_length("score", longest), "rank", one_line(highest))

    for size, of_size in trials.groupby("size"):
        yield Samples(at_length("score", size), "trial", one_line(of_size["top"]))
        # 2: all of the answer, 1: only its beginning
        right = of_size["first"].astype(int) + of_size["exact"]
        yield Samples(at_length("right", size), "trial", one_line(right))


def read_log(header, records):
    # the losses of fine-tuning are of other text
    kind = "fine-tuning " if "squad" in header["data"]["source"] else ""
    updates = records.groupby("iter").last(numeric_only=True)  # an update and its validation
    for name in updates:
        values = updates[[name]].dropna().T
        yield Samples(kind + name, "update", values, paired=name == "loss")

    end = updates.index[-1]
    losses = updates["loss"].dropna()
    late = losses.tail(max(1, len(losses) // 10))  # because single updates are noisy
    yield Samples(f"{kind}training loss", "end", one_line([late.mean()], [end]), paired=True)
    if "val_loss" in updates:
        validation = updates["val_loss"].dropna().iloc[-1]
        yield Samples(f"{kind}validation loss", "end", one_line([validation], [end]))

    # The s of each layer's heads at the end; windows have none, and (f) has none before its switch.
    if "s" in records:
        for layers in records["s"].dropna().tail(1):
            for layer, heads in enumerate(layers, start=1):
                for head, s in enumerate(heads or (), start=1):
                    yield Samples(f"s {layer}.{head}", "end", one_line([s], [end]))


READERS = {"posloss": read_posloss, "niah": read_niah, "scores": read_scores, "log": read_log}


def one_line(values, columns=None):
    """Return values of which each was measured once. columns: without them, they are counted."""
    if columns is None:
        columns = range(1, len(values) + 1)
    return pd.DataFrame([list(values)], columns=columns, dtype=float)


def at_length(measure, tokens):
    return f"{measure} at {tokens:,} tokens"


# -----------------------------------------------------------------------------
# the mean over prompts or pieces, and its standard error


def mean_and_error(samples):
    """Return two Series with the value of each column of some Samples and its standard error."""
    values = samples.values
    if samples.measure == "score":  # the paper's figure has medians
        return values.median(), pd.Series(math.nan, values.columns)
    error = values.sem()  # pieces and prompts are independent
    n = values.count()
    is_difference = samples.measure.endswith(MINUS)
    shares = values.abs() if is_difference else values
    is_share = (shares.isin([0, 1]).sum() == n) & (n > 1)
    if is_difference:  # of two shares that are as far apart in each prompt
        is_share &= error == 0
    return values.mean(), error.where(~is_share, error_of_share(shares.sum(), n))


def error_of_share(hits, n):
    """Return the standard error of the share hits / n: half of Wilson's 95 % interval, divided by
    1.96. The usual one would be 0 if all or none are hits."""
    z = 1.96
    return (hits * (n - hits) / n + z * z / 4) ** 0.5 / (n + z * z)
