"""
Result files -> results -> curves.

Result: one file that train.py or an evaluation wrote. Each measure is a Series, indexed by the
number of tokens if it depends on one.
Curve: results that differ only in seeds (of training, of a generated corpus), or in settings that
change no result (IGNORED in lib/labels.py). Only seeds are averaged.
A curve is a line in a figure (plot.py) and in a table (lib/tables.py); lib/labels.py labels it.
"""
import dataclasses
import itertools
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.attention import ModelConfig, renamed
from lib.checkpoint import earlier_runs
from lib.errors import MALFORMED, UserError, explain
from lib.labels import (
    LINES,
    PALETTE,
    VARIANTS,
    is_of_variant,
    set_labels,
    settings_of,
    warnings_of,
)
from lib.storage import read_lines
from lib.tasks import PAPER_EXAMPLE

MODEL_DEFAULTS = dataclasses.asdict(ModelConfig())


# -----------------------------------------------------------------------------
# files -> results


class Job(NamedTuple):
    """A piece of text or a prompt to measure. A field is None if the record lacks it."""
    size: int  # in tokens
    asked_depth: float | None  # of the needle in percent, or None
    i: int  # number of the piece or prompt


def result_name(file_type, tag):
    """Return the name of a result file."""
    return f"{file_type}-{tag}.jsonl" if tag else f"{file_type}.jsonl"


@dataclass
class Result:
    """One result file. The reader of its type adds `values` and what else the figures need."""
    file_type: str  # posloss, niah, scores or log
    path: Path
    header: dict  # first line of the file
    records: pd.DataFrame  # its other lines
    # {measure: Series}. The index is tokens, or in a log updates, unless its reader says otherwise.
    values: dict = field(default_factory=dict)
    errors: dict = field(default_factory=dict)  # {measure: Series of the errors within this file}
    samples: object = None  # values by piece, prompt or update, for paired differences from (a)
    trials: object = None  # of scores: the records but those that chose the heads
    longest: int = 0  # of scores: the most tokens in a trial
    s: list = field(default_factory=list)  # of log: s at the end, [layer][head]

    def __post_init__(self):
        self.variant = self.header["variant"]
        self.tag = self.header.get("tag", "")
        self.config = self.header["config"]
        self.evaluation = self.header.get("settings", {})  # a log has none
        self.task = self.evaluation.get("task", "needle")
        self.split = self.evaluation.get("split", "test")
        # as measured; a setting that an old file lacks has its default
        self.model = MODEL_DEFAULTS | renamed(self.header["model_config"])
        self.block_size = self.model["block_size"]
        # the text of a log is that of its training
        text = self.header if self.file_type == "log" else self.evaluation
        self.data = text["data"]
        # newest first: [0] is this training, and [-1] the one that began with random weights
        self.runs = [self.config, *earlier_runs(self.header)]
        self.seeds = tuple(run.get("seed", 0) for run in self.runs)
        self.settings = settings_of(self)
        self.warnings = warnings_of(self)

    @property
    def curve_key(self):
        """The key that the results of one curve have in common: everything but the seeds."""
        settings = tuple(sorted(self.settings.items()))
        return self.file_type, self.variant, self.tag, settings, self.warnings


def find(inputs):
    """
    Return the paths of result files. inputs: files, or folders that are searched with all folders
    in them, links to folders included. UserError for an input that does not exist.
    """
    paths = []
    visited = set()  # a link may lead back to a folder above it
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_file():
            paths.append(path)
        for folder, below, names in os.walk(path, followlinks=True):
            if os.path.realpath(folder) in visited:
                below.clear()
                continue
            visited.add(os.path.realpath(folder))
            below.sort()  # the order of file systems is arbitrary
            paths += [Path(folder, name) for name in sorted(names) if FILES.fullmatch(name)]
    return list({os.path.realpath(path): path for path in paths}.values())  # each file once


def load(inputs):
    """
    Return the list of Results in files and folders: logs, and finished evaluations. UserError for
    a damaged file.
    """
    results = []
    for path in find(inputs):
        with explain(f"{path} is damaged, or not a result of this program; move it away",
                     (*MALFORMED, ArithmeticError)):
            result = read(path)
        if result:
            results.append(result)
    # Losses of fine-tuning are of other data, so they are left out beside those of pretraining.
    tuned = [result for result in results
             if result.file_type == "log" and "squad" in result.data["source"]]
    if any(result.file_type == "log" and result not in tuned for result in results):
        results = [result for result in results if result not in tuned]
    subtract_softmax(results)
    return results


def read(path):
    """Return the Result of a file, or None if it has no numbers or the evaluation is unfinished."""
    header, *lines = read_lines(path)
    file_type = header.get("file_type", "log")
    records = pd.DataFrame(lines)
    if file_type != "log":
        # on a disk without locks two processes may have written a record twice
        records = records.drop_duplicates(records.columns.intersection(Job._fields))
        for name in records.columns.intersection(["size", "i"]):
            records[name] = pd.Index(records[name], dtype="int64")
        if len(records) < header["records"]:
            print(f"left out, because it has {len(records):,} of {header['records']:,} records: "
                  f"{path}")
            return None
    elif "loss" not in records:
        return None  # the run has not made an update
    result = Result(file_type, path, header, records)
    READERS[file_type](result, records)
    return result


def read_posloss(result, records):
    ends = pd.Index(result.header["ends"], dtype="int64")
    result.samples = pd.DataFrame(records["losses"].tolist(), records["i"], ends, dtype=float)
    result.values["loss"] = result.samples.mean()
    result.errors["loss"] = result.samples.sem()  # pieces do not overlap: they are independent


def read_niah(result, records):
    named = records.fillna({"asked_depth": "no depth"})  # an index cannot be unstacked with None
    prompts = named.set_index(["asked_depth", "i", "size"])
    result.samples = prompts["exact"].astype(float).unstack()
    cells = records.groupby(["asked_depth", "size"], dropna=False)
    result.values["by depth"] = cells["exact"].mean()  # by (depth, size)
    by_size = records.groupby("size", dropna=False)
    for measure in ("exact", "first", "substring"):
        add_shares(result, measure, by_size[measure])


def read_scores(result, records):
    scores = np.stack(records["scores"].map(np.array))  # (records, layers, heads)
    ranks = np.stack(records["ranks"].map(np.array))
    means = scores[records["chooses_heads"]].mean(0)
    # A retrieval head has at least half of the largest mean score. heads: (layers, heads)
    heads = means >= means.max() / 2
    records["weight"] = scores[:, heads].mean(1)
    records["ranked first"] = (ranks[:, heads] == 1).any(1)
    needle_share = records["needle_tokens"] / records["size"]
    records["chance"] = 1 - (1 - needle_share) ** heads.sum()

    result.trials = records[~records["chooses_heads"] & (records["i"] >= 0)]
    result.longest = result.trials["size"].max()
    by_size = result.trials.groupby("size", dropna=False)
    result.values["score"] = by_size["top"].median()
    result.values["weight"] = by_size["weight"].mean()
    result.errors["weight"] = by_size["weight"].sem()
    result.values["chance"] = by_size["chance"].mean()
    add_shares(result, "ranked first", by_size["ranked first"])

    # Heads are sorted by score, because it is chance which heads of a run learn to retrieve.
    example = scores[(records["i"] == PAPER_EXAMPLE) & (records["size"] == result.longest)]
    highest = np.sort(example.ravel())[::-1][:25]
    result.values["example"] = pd.Series(highest, np.arange(1, len(highest) + 1))  # by rank


def read_log(result, records):
    for measure in records.columns.drop("iter"):
        series = records.set_index("iter")[measure].dropna()
        if pd.api.types.is_numeric_dtype(series):  # s and b are lists
            result.values[measure] = series[~series.index.duplicated(keep="last")]
    losses = result.samples = result.values["loss"]
    end = {"train": mean_at_end(losses)}
    if "val_loss" in result.values:
        end["validation"] = result.values["val_loss"].iloc[-1]
    result.values["at the end"] = pd.Series(end)  # by split
    # The s of each layer's heads at the end; windows have none, and (f) has none before its switch.
    # For the s of all validations read records["s"].
    if "s" in records:
        for layers in records["s"].dropna().tail(1):
            for heads in layers:
                result.s.append([float(s) for s in heads or ()])


# {file type: function that adds what the figures need to a Result}. Files are named by their type.
READERS = {"posloss": read_posloss, "niah": read_niah, "scores": read_scores, "log": read_log}
FILES = re.compile(rf"({'|'.join(READERS)})(-.*)?\.jsonl")


def mean_at_end(losses):
    """Return the mean of the last tenth of the updates, because single ones are noisy."""
    return losses.tail(max(1, len(losses) // 10)).mean()


def add_shares(result, measure, groups):
    """Add the share of records that are true, by context size, with its standard error."""
    share, n = groups.mean(), groups.count()
    result.values[measure] = share
    # Half a 95 % interval is 1.96 errors wide. Wilson's has a width even for shares of 0 and 1.
    intervals = list(map(wilson, share * n, n))
    widths = np.ptp(intervals, axis=1)
    result.errors[measure] = pd.Series(widths / (2 * 1.96), share.index)


def wilson(hits, n, z=1.96):
    """Return the 95 % interval of the share hits / n, after Wilson."""
    # The usual interval, hits / n +- z * stderr, has no width if all or none are hits.
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


def comparison_key(result):
    """Return a key. Two results may be subtracted if their keys are equal: they have the batches of
    training, the text and the evaluation in common."""
    # For an evaluation we take the first training, from random weights. A later swap or fine-tuning
    # does not change its batches.
    training = result.runs[0]
    if result.file_type != "log":
        training = result.runs[-1]
    shared = [result.file_type, result.data.get("digest")]
    for name in ("seed", "batch_size", "block_size", "data_order"):
        shared.append(training.get(name))
    for name, value in sorted(result.settings.items()):
        if name.startswith("eval ") and not is_of_variant(name):
            shared.append((name, value))
    return str(shared)


def subtract_softmax(results):
    """
    Add the measure "minus (a)": the numbers minus those of softmax in the same pieces, prompts or
    batches, with the standard error of the mean difference.
    """
    results = [result for result in results if result.samples is not None]
    softmax = {}
    for result in results:
        if result.variant == "softmax":
            softmax.setdefault(comparison_key(result), []).append(result)
    for result in results:
        # of several runs of softmax the one with the most equal settings, and then the longest
        baseline = max(softmax.get(comparison_key(result), [result]), key=lambda other: (
            len(result.settings.items() & other.settings.items()), len(other.samples)))
        if baseline is result:
            continue
        difference = (result.samples - baseline.samples).dropna()
        if result.file_type == "log":
            result.values["minus (a)"] = difference
            result.values["at the end"]["minus (a)"] = mean_at_end(difference)
        else:
            result.values["minus (a)"] = difference.mean()
            result.errors["minus (a)"] = difference.sem()


# -----------------------------------------------------------------------------
# results -> curves


@dataclass
class Curve:
    """Results that differ in seeds, or in settings that change no result; and a style of line."""
    results: list
    color: str
    linestyle: str
    label: str = ""  # see set_labels

    @property
    def first(self):
        """One of the results, for what they have in common."""
        return self.results[0]

    def seeds(self, measure):
        """Return a DataFrame of a measure: a line for each number of tokens, a column a seed."""
        return pd.DataFrame({i: result.values[measure] for i, result in enumerate(self.results)
                             if measure in result.values})

    def error(self, measure):
        """Return the standard error by tokens: over the seeds, or within the file of one seed."""
        seeds = self.seeds(measure)
        if seeds.shape[1] > 1:
            return seeds.sem(axis=1)
        errors = [r.errors[measure] for r in self.results if measure in r.errors]
        return errors[0] if errors else pd.Series(np.nan, seeds.index)


def curves_of(results):
    """
    Group results into Curves, in the order of VARIANTS. Return {file type: [Curve]}. UserError if
    a seed occurs twice.
    """
    # Colours are chosen for all file types together, so that the figures of one call agree.
    names = [*VARIANTS, *sorted({r.variant for r in results} - VARIANTS.keys())]
    colors = [color for _, color in VARIANTS.values()] + [*PALETTE]

    def order(result):
        return names.index(result.variant), result.tag, result.curve_key, result.seeds

    curves = {}
    for _, group in itertools.groupby(sorted(results, key=order), lambda result: result.curve_key):
        group = list(group)
        for result, other in itertools.pairwise(group):
            if result.seeds == other.seeds:
                raise UserError(f"{result.path} and {other.path} have the same settings and the "
                                f"same seed, {other.seeds[0]}; leave one of them out, or give one "
                                "evaluation another --tag")
        of_type = curves.setdefault(group[0].file_type, [])
        color = colors[names.index(group[0].variant) % len(colors)]
        n_before = sum(curve.color == color for curve in of_type)
        linestyle = LINES[n_before % len(LINES)]
        of_type.append(Curve(group, color, linestyle))
    for of_type in curves.values():
        set_labels(of_type)
    return curves
