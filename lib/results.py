"""
Result files -> one table of numbers. Tables (lib/tables.py) and figures (plot.py) select from it.

A result file is that of an evaluation, or the log.jsonl of a training; lib/measures.py reads its
records. The table is a DataFrame with a row for each number, and these columns:

    line      what is one line in tables and figures; its results differ in their seeds alone
    run       folder of the run, from the folder that all results share, without -SEED
    variant   of the run; (a) softmax is "softmax"
    tag       of the evaluation
    seed      of the training, or whichever seed tells the results of a line apart
    measure   what the number is, such as "needles"
    tokens    context size, or what `by` says
    value
    error     its standard error over the prompts or pieces of this file, if it has one
    n         number of prompts or pieces behind the value

The results.csv of an experiment has these columns alone. Rows from result files also have:

    by        what `tokens` counts: tokens (of context), position, update, end (updates, at the end
              of the training), rank (of a head), trial, or tokens at a depth, as "tokens at 10 %"
    block     training length in tokens
    path      of the file
    settings  {name: text} of all that the number depends on, but the seeds
"""
import glob
import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import checkpoint
from lib.attention import ModelConfig
from lib.checkpoint import FREE_TO_CHANGE, earlier_runs
from lib.errors import MALFORMED, UserError, explain
from lib.measures import MINUS, READERS, Job, Samples, mean_and_error, read_numbers
from lib.storage import read_lines

COLUMNS = ["line", "run", "variant", "tag", "seed", "measure", "tokens", "value", "error", "n"]
# {variant: (its name, its colour)}, in the order of tables and figures; other variants come after
# these. The colours suit colour-blind readers (Okabe and Ito).
VARIANTS = {
    "softmax": ("(a) softmax", "#D55E00"),
    "ssmax": ("(b) SSMax", "#0072B2"),
    "ssmax_s1": ("(c) SSMax, s = 1", "#56B4E9"),
    "ssmax_bias": ("(d) SSMax with bias", "#009E73"),
    "softmax>ssmax": ("(e) swapped after", "#E69F00"),
    "softmax>>ssmax": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned p_n", "#000000"),
    "head_scale": ("head_scale (control)", "#8C8C8C"),
    "softmax>head_scale": ("(a), head_scale swapped in", "#7F5539"),
}
# Settings that no number depends on, that a line is named after, or that say which numbers there
# are and do not change them
IGNORED = FREE_TO_CHANGE | {"init_from", "variant", "tag", "checkpoint", "seed", "context_sizes",
                            "n_samples"}
OFF = ("", "0", "0.0", "False", "None")  # a setting with such a value counts as missing
NO_TEXT = {"digest": "", "source": {}}


@dataclass(eq=False)
class Result:
    """A result file."""
    path: Path
    file_type: str  # log, or the name that the evaluation gives
    header: dict  # first line of the file
    marks: tuple  # what its line is marked with, such as "update 3 of 6"
    samples: list  # of Samples
    # set by `name_lines`, because they depend on the other results
    run: str = ""
    line: str = ""
    seed: int | str = ""

    def __post_init__(self):
        header = self.header
        self.variant = header["variant"]
        self.tag = header.get("tag", "")
        self.block = header["model_config"]["block_size"]
        self.evaluation = header.get("settings", {})  # a log has none
        # newest first: [0] is this training, and [-1] the one that began with random weights
        self.runs = [header["config"], *earlier_runs(header)]
        # {digest, source} of the text of each of these trainings
        newest = header.get("train_data") or header.get("data", NO_TEXT)
        self.texts = [newest, *(run.get("data", NO_TEXT) for run in self.runs[1:])]
        self.settings = settings_of(self)
        self.seeds = seeds_of(self)
        self.pair = pair_of(self)

    @property
    def key(self):
        """What the results of a line have in common: everything but the seeds."""
        settings = str(sorted(self.settings.items()))
        return self.file_type, self.variant, self.tag, self.marks, settings


# -----------------------------------------------------------------------------
# files -> results


def result_name(file_type, tag):
    """Return the name of a result file."""
    return f"{file_type}-{tag}.jsonl" if tag else f"{file_type}.jsonl"


def find(inputs):
    """
    Return the paths of result files. inputs: files, or folders that are searched with all folders
    in them, links to folders included. Hidden files and copies in a folder are left out. UserError
    for an input that does not exist.
    """
    paths = {}  # by where a link leads to: each file once
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        files = [path]
        if path.is_dir():
            # sorted, because the order of file systems is arbitrary
            names = sorted(glob.glob("**/*.jsonl", root_dir=path, recursive=True))
            files = filter(is_result, map(path.joinpath, names))
        paths |= {os.path.realpath(file): file for file in files}
    return list(paths.values())


def is_result(path):
    """Return whether a file has the name that its first line says. A copy has another one."""
    try:
        with open(path, encoding="utf-8") as file:
            header = json.loads(file.readline())
        name = result_name(header.get("file_type", "log"), header.get("tag", ""))
    except MALFORMED:
        return path.stem.split("-")[0] in READERS  # damaged: `read` has a message for it
    if name != path.name and "file_type" in header:
        print(f"left out, because the result of this name is {name}: {path}")
    return name == path.name


def read(path):
    """Return the Result of a file, or None if it has no numbers or the evaluation is unfinished."""
    header, *lines = read_lines(path)
    records = pd.DataFrame(lines)
    file_type = header.get("file_type", "log")
    if file_type == "log":
        if "loss" not in records:
            return None  # the run has not made an update
        done = records["iter"].max()
    else:
        # on a disk without locks two processes may have written a record twice
        records = records.drop_duplicates(records.columns.intersection(Job._fields))
        records = records.astype({name: int for name in ("size", "i") if name in records})
        if len(records) < header["records"]:
            print(f"left out, because it has {len(records):,} of {header['records']:,} records: "
                  f"{path}")
            return None
        done = header["iter"]
    samples = READERS.get(file_type, read_numbers)(header, records)
    return Result(path, file_type, header, marks_of(path, header, done), list(samples))


def marks_of(path, header, done):
    """
    Return what the line of a result is marked with: the run was unfinished when it was measured,
    after `done` updates, or the ckpt.pt beside the result has changed since.
    """
    marks = []
    total = header["config"].get("max_iters")  # an imported model has none
    if total and done < total:
        marks.append(f"update {done:,} of {total:,}")
    beside = path.with_name("ckpt.pt")  # is not there if the result was moved
    measured = header.get("settings", {}).get("checkpoint")
    if measured and beside.exists():
        with explain(f"{beside} is damaged; move it away"):
            if checkpoint.fingerprint(beside) != measured:
                marks.append("not of the ckpt.pt beside it")
    return tuple(marks)


# -----------------------------------------------------------------------------
# which results are averaged, and which are subtracted


def settings_of(result):
    """
    Return {name: text} of all settings that a result depends on, but the seeds of training. Names
    begin with "eval" in the evaluation, and with "base" in the run that the training began from.
    """
    header, evaluation = result.header, result.evaluation
    # a file of an earlier version lacks settings that are newer
    settings = vars(ModelConfig()) | header["config"] | header["model_config"]
    settings |= {"data": result.texts[0], "base": header["base"] or {}, "eval": evaluation}
    texts = flatten(settings)
    if header["base"]:
        texts["init_from"] = "a checkpoint"
    if "seed" in evaluation:  # of the prompts or pieces
        texts["eval seed"] = str(evaluation["seed"])
    return texts


def flatten(settings, prefix=""):
    """Return {name: text} of nested settings. A name begins with those of the dicts around it."""
    texts = {}
    for name, value in settings.items():
        if name == "data" and isinstance(value, dict):
            # Corpora generated with different seeds count as the same text.
            generated = "seed" in value["source"]
            value = value["source"] if generated else {"digest": value["digest"]}
        if isinstance(value, dict):
            texts |= flatten(value, f"{prefix}{name} ")
        elif name not in IGNORED and str(value) not in OFF:
            texts[prefix + name] = str(value)
    return texts


def seeds_of(result):
    """Return the seeds of a result: of its trainings, the newest and then the oldest first, and of
    the generated corpora."""
    newest, *others = [run.get("seed", 0) for run in result.runs]
    texts = [*result.texts, result.evaluation.get("data", NO_TEXT)]
    of_corpora = [text["source"]["seed"] for text in texts if "seed" in text["source"]]
    return newest, *reversed(others), *of_corpora


def pair_of(result):
    """
    Return what two results have in common that may be subtracted from each other: the batches of
    their training, and the pieces or prompts of the evaluation.
    """
    batches = []  # of each training
    for run, text in zip(result.runs, result.texts, strict=True):
        choice = [run.get(name) for name in ("seed", "batch_size", "block_size", "data_order")]
        batches.append([text["digest"], *choice, run.get("iter")])
    if result.file_type == "log":
        return str(batches)
    swapped = ("eval attention_type", "eval swap_scale")
    asked = [(name, value) for name, value in sorted(result.settings.items())
             if name.startswith("eval ") and name not in swapped]
    unfinished = [mark for mark in result.marks if mark.startswith("update")]
    # Only the batches of the training from random weights: a later swap or fine-tuning does not
    # change them.
    return str([result.file_type, batches[-1][:-1], unfinished,
                result.evaluation["data"]["digest"], asked])


def name_lines(results):
    """
    Name run, line and seed of each result. A line is named by its variant and tag. If several lines
    share these, the folder of the run, which the user chose, tells them apart.
    """
    folders = [os.path.abspath(result.path.parent) for result in results]
    above = os.path.commonpath(map(os.path.dirname, folders)) if folders else ""
    lines = {}  # {key: results}
    for result, folder in zip(results, folders, strict=True):
        result.run = os.path.relpath(folder, above)
        for seed in result.seeds:
            result.run = result.run.removesuffix(f"-{seed}")
        lines.setdefault(result.key, []).append(result)
    alike = Counter(key[:3] for key in lines)  # lines of a file type, variant and tag
    shared = {key[1:] for key, n in alike.items() if n > 1}
    firsts = [of_line[0] for of_line in lines.values()]
    for first in firsts:
        first.line, _ = VARIANTS.get(first.variant, (first.variant, None))
        if first.tag:
            first.line += f" [{first.tag}]"
        if (first.variant, first.tag) in shared:
            first.line += f": {first.run}"
        first.line = ", ".join([first.line, *first.marks])
    names = Counter((first.file_type, first.line) for first in firsts)
    for first, of_line in zip(firsts, lines.values(), strict=True):
        if names[first.file_type, first.line] > 1:  # folders that differ in their -SEED alone
            first.line += f" ({first.path})"
        # Two trainings with one seed may have begun from others, or read other corpora. The first
        # of their seeds that tells all of them apart is shown.
        different = {result.seeds for result in of_line}
        places = [place for place, seeds in enumerate(zip(*different, strict=False))
                  if len(set(seeds)) == len(different)]
        for result in of_line:
            result.line = first.line
            result.seed = "/".join(map(str, result.seeds))
            if places:
                result.seed = result.seeds[places[0]]


def subtract_softmax(results):
    """Add the paired differences from (a): in the same pieces, prompts or batches."""
    softmax = [result for result in results if result.variant == "softmax"]
    for result in results:
        fitting = [other for other in softmax if other.pair == result.pair]
        if result.variant == "softmax" or not fitting:
            continue
        # the run of softmax with the most equal settings; of several the longest
        baseline = min(fitting, key=lambda other: (
            len(result.settings.items() ^ other.settings.items()),
            -other.samples[0].values.size))
        of_softmax = {samples[:2]: samples.values for samples in baseline.samples}
        for measure, by, values, paired in list(result.samples):
            if paired and (measure, by) in of_softmax:
                # Lengths or updates that one of the two lacks are missing in the difference.
                difference = values - of_softmax[measure, by]
                difference = difference.dropna(how="all").dropna(how="all", axis=1)
                result.samples.append(Samples(measure + MINUS, by, difference))


# -----------------------------------------------------------------------------
# results -> table


def load(inputs):
    """
    Return the table of the results in files and folders: logs, and finished evaluations. A .csv is
    a table already. UserError for a damaged file.
    """
    results, tables = [], []
    for path in find(inputs):
        with explain(f"{path} is damaged, or not a result of this program; move it away",
                     (*MALFORMED, ArithmeticError)):
            if path.suffix == ".csv":
                tables.append(read_table(path))
            elif result := read(path):
                results.append(result)
    variants = [*VARIANTS, *sorted({result.variant for result in results})]
    results.sort(key=lambda result: (variants.index(result.variant), result.key, result.seeds))
    name_lines(results)
    subtract_softmax(results)
    tables += [rows_of(result, samples) for result in results for samples in result.samples]
    if not tables:
        return pd.DataFrame(columns=[*COLUMNS, "by", "block", "path", "settings"])
    return pd.concat(tables, ignore_index=True)


def read_table(path):
    """Return the table in a results.csv."""
    table = pd.read_csv(path, keep_default_na=False, na_values={"error": [""], "n": [""]})
    table = table[COLUMNS].astype({"value": float})
    return table.assign(by="tokens", block=math.nan, path=path,
                        settings=[{} for _ in range(len(table))])


def rows_of(result, samples):
    """Return the rows of the table of some Samples."""
    mean, error = mean_and_error(samples)
    rows = pd.DataFrame({"tokens": samples.values.columns, "value": mean, "error": error,
                         "n": samples.values.count()})
    if samples.by == "update":  # a row is the mean of so many updates, which are noisy
        step = max(1, len(rows) // 100)
        rows = rows.iloc[:len(rows) // step * step]
        rows = rows.groupby(np.arange(len(rows)) // step).mean()
    for name in ("line", "run", "variant", "tag", "seed", "block", "path"):
        rows[name] = getattr(result, name)
    rows["settings"] = [result.settings] * len(rows)
    return rows.assign(measure=samples.measure, by=samples.by)


def check_seeds(table):
    """Return the table. UserError if a line has a number twice for one seed."""
    number = ["line", "seed", "measure", "by", "tokens"]
    twice = table[table.duplicated(number, keep=False)].sort_values(number)
    if len(twice):
        one, other = twice["path"][:2]
        raise UserError(f"{one} and {other} have the same settings and the same seed, "
                        f"{twice['seed'].iloc[0]}; leave one of them out, or give one evaluation "
                        "another --tag")
    return table


# -----------------------------------------------------------------------------
# what tables and figures share


def labels_of(rows):
    """Return {line: its name, with the number of its seeds if there are several}."""
    n_seeds = rows.groupby("line", sort=False)["seed"].nunique()
    return {line: f"{line}, {n} seeds" if n > 1 else line for line, n in n_seeds.items()}


def over_seeds(rows):
    """
    Return a DataFrame of the rows of a line and measure, by tokens: mean, its standard error, and n
    seeds. The error is that over the seeds. For one seed, or if all agree, it is that over the
    prompts or pieces in their files.
    """
    by_tokens = rows.assign(square=rows["error"] ** 2).groupby("tokens")
    n = by_tokens["value"].count()
    error = by_tokens["value"].sem()
    within = (by_tokens["square"].mean() / n) ** 0.5
    return pd.DataFrame({"mean": by_tokens["value"].mean(), "error": error.where(error > 0, within),
                         "n": n})


def differences(rows):
    """
    Return a text for each setting in which the lines differ, as "window=32, but off in (b) SSMax".
    Attention types are left out, because the variants say them.
    """
    lines = rows.drop_duplicates("line").set_index("line")["settings"]
    texts = []
    for name in sorted(set().union(*lines)):
        last = name.split(" ")[-1]
        # Settings of a base, say, are compared among the lines that have one.
        nest = name.removesuffix(last)
        has_nest = [any(other.startswith(nest) for other in settings) for settings in lines]
        values = lines[has_nest].str.get(name).fillna("off")
        if last.endswith("attention_type") or values.nunique() == 1:
            continue
        usual = values.value_counts(sort=False).idxmax()
        others = [f"{value} in {', '.join(values.index[values == value])}"
                  for value in values.unique() if value != usual]
        texts.append(f"{name}={usual}, but {' and '.join(others)}")
    return texts
