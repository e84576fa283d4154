"""
Result files -> one table of numbers. Tables (lib/tables.py) and figures (plot.py) select from it.

A result file is that of an evaluation, or the log.jsonl of a training. The table is a DataFrame
with a row for each number, and these columns:

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
import dataclasses
import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import checkpoint
from lib.attention import ModelConfig, renamed
from lib.checkpoint import FREE_TO_CHANGE, earlier_runs
from lib.errors import MALFORMED, UserError, explain
from lib.storage import read_lines
from lib.tasks import PAPER_EXAMPLE

COLUMNS = ["line", "run", "variant", "tag", "seed", "measure", "tokens", "value", "error", "n"]
# {measure: its title in tables}. A measure that is not here is its own title.
TITLES = {
    "needles": "needles found, all digits right, by context size",
    "needles, first digit": "needles found, first digit right, by context size",
    "needles, anywhere": "needles found anywhere in the text, by context size",
    "weight": "weight on the needle, mean of the retrieval heads",
    "score": "top needle score by context size, median of the trials",
    "ranked first": "needle ranked first by a retrieval head, share of the trials",
    "chance": "needle ranked first by chance, share of the trials",
}
MINUS = " minus (a)"  # at the end of a measure: its paired difference from softmax
# {variant: its name}, in the order of tables and figures; other variants come after these
VARIANTS = {
    "softmax": "(a) softmax",
    "ssmax": "(b) SSMax",
    "ssmax_s1": "(c) SSMax, s = 1",
    "ssmax_bias": "(d) SSMax with bias",
    "softmax>ssmax": "(e) swapped after",
    "softmax>>ssmax": "(f) swapped during",
    "pn": "learned p_n",
    "head_scale": "head_scale (control)",
    "softmax>head_scale": "(a), head_scale swapped in",
}
MODEL_DEFAULTS = dataclasses.asdict(ModelConfig())
# Settings that no number depends on, that a line is named after, or that say which numbers there
# are and do not change them
IGNORED = FREE_TO_CHANGE | {"init_from", "variant", "tag", "checkpoint", "base", "seed",
                            "context_sizes", "n_samples"}
OFF = ("", "0", "0.0", "False", "None")  # a setting with such a value counts as missing
NO_TEXT = {"digest": "", "source": {}}
OF_SWAP = ("eval attention_type", "eval swap_scale")


class Job(NamedTuple):
    """A piece of text or a prompt to measure. A field is None if the record lacks it."""
    size: int  # in tokens
    asked_depth: float | None  # of the needle in percent, or None
    i: int  # number of the piece or prompt


class Samples(NamedTuple):
    """The values of a measure in a file."""
    measure: str
    by: str  # see the table
    values: pd.DataFrame  # a column for each number of tokens, a line for each prompt or piece
    paired: bool = False  # whether those of (a) are subtracted


@dataclass
class Result:
    """A result file."""
    path: Path
    file_type: str  # log, or the name that the evaluation gives
    header: dict  # first line of the file
    marks: tuple = ()  # what its line is marked with, such as "update 3 of 6"
    samples: list = field(default_factory=list)
    # set for all results together, because they depend on the others
    run: str = ""
    line: str = ""
    seed: int | str = ""

    def __post_init__(self):
        self.variant = self.header["variant"]
        self.tag = self.header.get("tag", "")
        self.evaluation = self.header.get("settings", {})  # a log has none
        # newest first: [0] is this training, and [-1] the one that began with random weights
        self.runs = [self.header["config"], *earlier_runs(self.header)]
        # {digest, source} of the text of each of these trainings
        self.texts = [self.header.get("train_data", self.header.get("data", NO_TEXT)),
                      *(run.get("data", NO_TEXT) for run in self.runs[1:])]
        self.block = self.header["model_config"]["block_size"]
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
            # sorted, because the order of file systems is arbitrary
            below[:] = sorted(name for name in below if not name.startswith("."))
            names = sorted(name for name in names if re.fullmatch(r"[^.].*\.jsonl", name))
            paths += [Path(folder, name) for name in names if is_result(Path(folder, name))]
    return list({os.path.realpath(path): path for path in paths}.values())  # each file once


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
    done = header.get("iter") if file_type != "log" else records["iter"].max()
    result = Result(path, file_type, header, marks_of(path, header, done))
    result.samples = list(READERS.get(file_type, read_numbers)(result, records))
    return result


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


def settings_of(result):
    """
    Return {name: text} of all settings that a result depends on, but the seeds of training. Names
    begin with "eval" in the evaluation, and with "base" in the run that the training began from.
    """
    header = result.header
    run = MODEL_DEFAULTS | header["config"] | header["model_config"] | {"data": result.texts[0]}
    nested = {"base": header["base"] or {}, "eval": result.evaluation}
    settings = flatten(run) | flatten(nested)
    if header["base"]:
        settings["init_from"] = "a checkpoint"
    if "seed" in result.evaluation:  # of the prompts or pieces
        settings["eval seed"] = str(result.evaluation["seed"])
    return settings


def flatten(settings, prefix=""):
    """Return {name: text} of nested settings. A name begins with those of the dicts around it."""
    texts = {}
    for name, value in renamed(settings).items():  # files of earlier versions have other names
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
    asked = [(name, value) for name, value in sorted(result.settings.items())
             if name.startswith("eval ") and name not in OF_SWAP]
    unfinished = [mark for mark in result.marks if mark.startswith("update")]
    # Only the batches of the training from random weights: a later swap or fine-tuning does not
    # change them.
    return str([result.file_type, batches[-1][:-1], unfinished,
                result.evaluation["data"]["digest"], asked])


# -----------------------------------------------------------------------------
# records -> samples: a reader for each type of file, and one for all other types


def read_numbers(result, records, names=None, paired=True):
    """Yield the Samples of every number of the records. names: {name in a record: measure}; of
    these numbers alone."""
    prompt = ["i"]
    if "asked_depth" in records:
        depth = records["asked_depth"].astype(float).fillna(-1)  # -1: a task without depths
        records, prompt = records.assign(asked_depth=depth), ["asked_depth", "i"]
    if names is None:
        numbers = records.select_dtypes(["number", "bool"]).columns.difference(Job._fields)
        names = {name: name for name in numbers}
    for name, measure in names.items():
        values = records.pivot(index=prompt, columns="size", values=name).astype(float)
        yield Samples(measure, "tokens", values, paired)


def read_posloss(result, records):
    ends = pd.Index(result.header["ends"], dtype="int64")
    losses = pd.DataFrame(records["losses"].tolist(), records["i"], ends, dtype=float)
    yield Samples(f"{result.evaluation['split']} loss", "position", losses, paired=True)


def read_niah(result, records):
    task = result.evaluation.get("task", "needle")
    measure, letter = f"{task} answers", "character"
    if task == "needle":
        measure, letter = "needles", "digit"
    if task == "multikey":
        measure = f"needles among {result.evaluation['n_needles'] or 3} others"
    whole, = read_numbers(result, records, {"exact": measure})
    yield whole
    for depth, values in whole.values.groupby("asked_depth"):
        at = f"{depth:g} %" if depth >= 0 else "any depth"
        yield Samples(measure, f"tokens at {at}", values)
    in_part = {"first": f"{measure}, first {letter}", "substring": f"{measure}, anywhere"}
    yield from read_numbers(result, records, in_part, paired=False)


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
    trials = records[~records["chooses_heads"] & (records["i"] >= 0)]
    yield from read_numbers(result, trials, {"weight": "weight"})
    others = {"top": "score", "ranked first": "ranked first", "chance": "chance"}
    yield from read_numbers(result, trials, others, paired=False)

    longest = trials["size"].max()
    # Heads are sorted by score, because it is chance which heads of a run learn to retrieve.
    example = scores[(records["i"] == PAPER_EXAMPLE) & (records["size"] == longest)]
    highest = np.sort(example.ravel())[::-1][:25]
    yield Samples(at_length("score", longest), "rank", one_line(highest))
    for size, of_size in trials.groupby("size"):
        yield Samples(at_length("score", size), "trial", one_line(of_size["top"]))
        right = 1 * of_size["first"] + of_size["exact"]  # 2: all of it, 1: only the beginning
        yield Samples(at_length("right", size), "trial", one_line(right))


def read_log(result, records):
    # the losses of fine-tuning are of other text
    kind = "fine-tuning " if "squad" in result.texts[0]["source"] else ""
    updates = records.groupby("iter").last(numeric_only=True)  # an update and its validation
    for name in updates:
        yield Samples(kind + name, "update", updates[[name]].dropna().T, paired=name == "loss")
    end = updates.index[-1]
    losses = updates["loss"].dropna()
    losses = losses.tail(max(1, len(losses) // 10))  # because single updates are noisy
    yield Samples(f"{kind}training loss", "end", one_line([losses.mean()], [end]), paired=True)
    if "val_loss" in updates:
        validation = updates["val_loss"].dropna().iloc[-1]
        yield Samples(f"{kind}validation loss", "end", one_line([validation], [end]))
    # The s of each layer's heads at the end; windows have none, and (f) has none before its switch.
    if "s" in records:
        for layers in records["s"].dropna().tail(1):
            for layer, heads in enumerate(layers, 1):
                for head, s in enumerate(heads or (), 1):
                    yield Samples(f"s {layer}.{head}", "end", one_line([s], [end]))


READERS = {"posloss": read_posloss, "niah": read_niah, "scores": read_scores, "log": read_log}


def one_line(values, columns=None):
    """Return values of which each was measured once. columns: without them, they are counted."""
    columns = range(1, len(values) + 1) if columns is None else columns
    return pd.DataFrame([list(values)], columns=columns, dtype=float)


def at_length(measure, tokens):
    return f"{measure} at {tokens:,} tokens"


def learned_p_n(rows):
    """Yield (row of the table, p_n as an array) of each run with p_n (Eq. 3) and a checkpoint. The
    log does not have p_n."""
    for row in rows.query("by == 'end'").drop_duplicates("path").itertuples():
        types = [row.settings.get(name) for name in ("attention_type", "switch_attention_type")]
        if "pn" in types and row.path.with_name("ckpt.pt").exists():
            weights = checkpoint.load(row.path.parent)["model"]
            # A run that was killed after the switch to p_n may have a checkpoint from before it.
            if "p_n" in weights:
                yield row, weights["p_n"].numpy()


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
    n_lines = Counter(key[:3] for key in lines)  # by file type, variant and tag
    shared = {key[1:] for key, n in n_lines.items() if n > 1}
    names = {}
    for key, (first, *_) in lines.items():
        name = VARIANTS.get(first.variant, first.variant) + f" [{first.tag}]" * bool(first.tag)
        if (first.variant, first.tag) in shared:
            name += f": {first.run}"
        names[key] = first.file_type, ", ".join([name, *first.marks])
    n_names = Counter(names.values())
    for key, of_line in lines.items():
        name_seeds(of_line)
        _, name = names[key]
        if n_names[names[key]] > 1:  # folders that differ in their -SEED alone
            name += f" ({of_line[0].path})"
        for result in of_line:
            result.line = name


def name_seeds(results):
    """
    Name the seed of the results of a line: the training's own, if it tells them apart; else that of
    the training from random weights or of a generated corpus; else all of these.
    """
    different = {result.seeds for result in results}
    for place in range(len(results[0].seeds)):
        if len({seeds[place] for seeds in different}) == len(different):
            for result in results:
                result.seed = result.seeds[place]
            return
    for result in results:
        result.seed = "/".join(map(str, result.seeds))


def subtract_softmax(results):
    """Add the paired differences from (a): in the same pieces, prompts or batches."""
    softmax = [result for result in results if result.variant == "softmax"]
    for result in results:
        def likeness(other, result=result):
            differing = result.settings.items() ^ other.settings.items()
            return -len(differing), other.samples[0].values.size

        # of several runs of softmax the one with the most equal settings, and then the longest
        alike = [other for other in softmax if other.pair == result.pair]
        baseline = max(alike, key=likeness, default=result)
        if baseline is result:
            continue
        of_softmax = {samples[:2]: samples.values for samples in baseline.samples}
        for measure, by, values, paired in list(result.samples):
            if paired and (measure, by) in of_softmax:
                # Lengths or updates that one of the two lacks are missing in the difference.
                difference = values - of_softmax[measure, by]
                difference = difference.dropna(how="all").dropna(how="all", axis=1)
                result.samples.append(Samples(measure + MINUS, by, difference))


def rows_of(result, samples):
    """Return the rows of the table of some Samples."""
    values = samples.values
    mean, error = values.mean(), error_of(values, samples.measure.endswith(MINUS))
    if samples.measure == "score":
        mean, error = values.median(), math.nan
    rows = pd.DataFrame({"tokens": values.columns, "value": mean, "error": error,
                         "n": values.count()})
    if samples.by == "update":  # a row is the mean of so many updates, which are noisy
        step = max(1, len(rows) // 100)
        rows = rows.iloc[:len(rows) // step * step]
        rows = rows.groupby(np.arange(len(rows)) // step).mean()
    for name in ("line", "run", "variant", "tag", "seed", "block", "path"):
        rows[name] = getattr(result, name)
    rows["settings"] = [result.settings] * len(rows)
    return rows.assign(measure=samples.measure, by=samples.by)


def error_of(values, is_difference):
    """Return the standard error of the mean of each column. That of a share is not 0."""
    n = values.count()
    error = values.sem()  # pieces and prompts are independent
    is_share = (values.isin([0, 1]).sum() == n) & (n > 1)
    if is_difference:  # two shares that are as far apart in each prompt
        is_share = (values.abs().isin([0, 1]).sum() == n) & (error == 0)
    # Half a 95 % interval is 1.96 errors wide. Wilson's has a width even for shares of 0 and 1.
    for tokens in values.columns[is_share]:
        hits = values[tokens].sum()
        error[tokens] = np.ptp(wilson(abs(hits), n[tokens])) / (2 * 1.96)
    return error


def wilson(hits, n, z=1.96):
    """Return the 95 % interval of the share hits / n, after Wilson."""
    # The usual interval, hits / n +- z * stderr, has no width if all or none are hits.
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


# -----------------------------------------------------------------------------
# what tables and figures share


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
        nest, _, last = name.rpartition(" ")
        # Settings of a base, say, are compared among the lines that have one.
        compared = lines[[not nest or nest in nests_of(settings) for settings in lines]]
        values = compared.str.get(name).fillna("off")
        if last.endswith("attention_type") or values.nunique() == 1:
            continue
        usual = values.value_counts(sort=False).idxmax()
        others = [f"{value} in {', '.join(values.index[values == value])}"
                  for value in values.unique() if value != usual]
        texts.append(f"{name}={usual}, but {' and '.join(others)}")
    return texts


def nests_of(settings):
    """Return the names of the dicts that the settings were in, see `flatten`."""
    return {name.rpartition(" ")[0] for name in settings}
