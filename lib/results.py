"""
Result files -> one table of numbers -> printed tables. plot.py draws from the same table.

A result is a file X.jsonl with a record for each prompt, piece of text or update of a training.
X.json beside it says what the numbers depend on. A record says whose it is and what was asked:

    variant, tag, seed     the results of one variant and tag are a line of tables and figures
    task, size, depth, i   size in tokens, depth in percent or null, number of the prompt or piece
    iter                   number of the update; a log.jsonl has it instead of task to i
    digest                 of the prompt, piece or batch of text

Every other number, or dict {position: number}, is a measure. The mean of booleans is a share.

`load` makes a DataFrame with a row for each number, averaged over the prompts or pieces:

    line, variant, tag, seed, path, settings    of the file
    block               training length in tokens
    measure             its name; of a difference from a line, "MEASURE minus LINE"
    tokens, unit        a number, and its unit: tokens, depth (tokens, at one depth),
                        position, update, end (updates, at the end), rank (of a head), trial
    value, error, n     mean, its standard error, number of prompts or pieces
"""
import glob
import itertools
import json
import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from lib import storage
from lib.config import NOT_IN_A_RESULT
from lib.errors import MALFORMED, UserError, explain

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
}
COLUMNS = ["line", "variant", "tag", "seed", "measure", "tokens", "value", "error", "n"]
NO_MEASURES = ("size", "depth", "i", "iter", "seed")
# A number of a file. `prompt` identifies its prompt or piece of text: only numbers with the same
# one are subtracted (None: never).
NUMBER = ["measure", "unit", "tokens", "depth", "prompt", "value"]
MINUS = " minus "
UNPAIRED = ("score", "ranked first", "chance")  # measures of which no difference is shown
# settings in which the runs of one line may differ: of the machine, the seed, and those that
# `settings_of` replaces
MAY_DIFFER_IN_A_LINE = NOT_IN_A_RESULT | {"seed", "init_from", "variant", "vocab_size"}


def name_of(variant, tag=""):
    """Return the name of a line."""
    name, _ = VARIANTS.get(variant, (variant, None))
    return f"{name} [{tag}]" if tag else name


# -----------------------------------------------------------------------------
# files -> table


def load(inputs, baseline="softmax"):
    """
    Return the table of the results in files and folders: logs, and finished evaluations. It has the
    differences from the line `baseline`, which is the name of a variant or of a line. UserError for
    a damaged file, and if results contradict each other.
    """
    results = []
    for path in find(inputs):
        with explain(f"{path} or {path.stem}.json is damaged, or not a result of this program; "
                     "move both away", MALFORMED):
            if result := read(path):
                results.append(result)
    if not results:
        return pd.DataFrame(columns=[*COLUMNS, "unit", "depth", "block", "path", "settings"])
    table = table_of(results, name_of(baseline))
    check(table)
    return table


def find(inputs):
    """Return the paths of files, and of all .jsonl in folders and the folders in them. UserError
    for an input that does not exist."""
    paths = {}  # by where a link leads to: each file once
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        files = [path]
        if path.is_dir():
            files = [path / name for name in
                     sorted(glob.glob("**/*.jsonl", root_dir=path, recursive=True))]
        paths |= {os.path.realpath(file): file for file in files}
    return list(paths.values())


def read(path):
    """
    Return (what the table says of the file, its numbers), or None if the result is not finished or
    the file is of another program. The numbers are tuples, see NUMBER.
    """
    meta_path = path.with_suffix(".json")
    if path.suffix != ".jsonl" or not meta_path.exists():  # a shell's * names both files
        return None
    meta = json.loads(meta_path.read_text(encoding="utf-8"))
    if "evaluation" not in meta:
        return None
    file = {key: meta[key] for key in ("evaluation", "variant", "tag", "seed")}
    file |= {"line": name_of(file["variant"], file["tag"]), "settings": settings_of(meta),
             "block": meta["block_size"], "path": path,
             "updates": meta.get("run", {}).get("iter")}
    records = storage.read_lines(path)
    n_records = Counter(str(record["size"]) for record in records if "size" in record)
    for size, wanted in meta.get("records", {}).items():
        if n_records[size] < wanted:  # it is not measured to its end
            print(f"left out: only {n_records[size]:,} of {wanted:,} prompts of {size} tokens are "
                  f"measured in {path}; the same command continues")
            if meta["evaluation"] == "scores":  # other prompts would choose other heads
                return None
            records = [record for record in records if str(record["size"]) != size]
    if not records:
        return None
    if file["evaluation"] == "log":
        # a run and its fine-tuning have the same line, and losses of different text
        kind = "fine-tuning " if "squad" in meta["data"]["source"] else ""
        file["evaluation"] = f"{kind}log"
        file["updates"] = records[-1]["iter"]
        wanted = meta["settings"]["max_iters"]
        logged = sum("loss" in record for record in records)
        if logged < wanted:
            print(f"no losses at the end, because {path} has only {logged:,} of {wanted:,} updates")
        return file, numbers_of_log(meta, records, kind, is_finished=logged >= wanted)
    if file["evaluation"] == "scores":
        return file, numbers_of_trials(records)
    return file, numbers_of(records)


def settings_of(meta):
    """Return {name: value} of the settings that all results of a line have in common. meta: the
    content of X.json."""
    run = meta.get("run", meta)  # a training is described by X.json itself
    settings = {name: value for name, value in (run["settings"] | text_of(run["data"])).items()
                if name not in MAY_DIFFER_IN_A_LINE}
    # the name of an own file, wherever it is; its code is among the settings
    settings["attention"] = Path(settings.get("attention", "")).stem
    settings["begins with a checkpoint"] = bool(run["settings"].get("init_from"))
    # The runs of a line may begin with different checkpoints, if these were trained alike.
    if run.get("base"):
        settings |= {f"base {name}": value for name, value in settings_of(run["base"]).items()}
    if "iter" in run:  # not in a log.json, whose run may go on
        settings["updates"] = run["iter"]
    if "run" in meta:
        eval_settings = meta["settings"] | text_of(meta["data"])
        settings |= {f"eval {name}": value for name, value in eval_settings.items()}
    return settings


def text_of(data):
    """Return {name: what identifies a text}. Text that was generated with another seed counts as
    the same."""
    source = data["source"]
    if "seed" in source:
        return {f"text {key}": value for key, value in source.items() if key != "seed"}
    of_validation = {"validation text": data["validation"]} if "validation" in data else {}
    return {"text": data["digest"]} | of_validation


ADVICE = ("leave one of them out, or give it another --variant or --seed (train.py) or --tag (an "
          "evaluation)")


def check(table):
    """Raise a UserError if the results of a line have different settings, or two numbers for one
    seed. Print a note if a run has gone on since it was evaluated."""
    files = table.drop_duplicates("path")
    runs = {file.path.parent: file.updates for file in files.itertuples()
            if file.evaluation.endswith("log")}
    for file in files.itertuples():
        if file.updates < runs.get(file.path.parent, 0):
            print(f"note: {file.path} was measured after {file.updates:,.0f} updates, and the run "
                  f"has {runs[file.path.parent]:,.0f} now; measure it again with --overwrite")
    for (line, _), part in files.groupby(["line", "evaluation"]):
        check_settings(line, {file.path: file.settings for file in part.itertuples()})
    number = ["line", "seed", "measure", "unit", "tokens", "depth"]
    twice = table[table.duplicated(number, keep=False)].sort_values(number)
    if len(twice):
        one, other = twice["path"][:2]
        raise UserError(f"{one} and {other} are both {twice['line'].iloc[0]} with seed "
                        f"{twice['seed'].iloc[0]}; {ADVICE}")


def check_settings(line, settings):
    """Raise a UserError if results of a line differ. settings: {name of a result: its settings}."""
    texts = []
    # "-": the result lacks the setting
    for name, values in pd.DataFrame(settings).fillna("-").astype(str).iterrows():
        # older results lack newer settings, which is no difference; but all name their text
        is_of_text = name.removeprefix("eval ").startswith("text")
        known = values if is_of_text else values[values != "-"]
        if known.nunique() > 1:
            texts.append(f"{name} ({', '.join(known.unique())})")
    if texts:
        raise UserError(f"results that are called {line} differ in {', '.join(texts)[:300]}: "
                        f"{', '.join(map(str, settings))}; {ADVICE}")


# -----------------------------------------------------------------------------
# records -> numbers


def numbers_of(records):
    """Return the numbers of an evaluation, see `read`."""
    numbers = []
    for record in records:
        depth = record["depth"]
        prompt = f"{record['task']} {depth} {record['i']} {record['digest']}"
        for measure, value in record.items():
            if isinstance(value, dict):
                numbers += [(measure, "position", int(position), depth, prompt, float(x))
                            for position, x in value.items()]
            elif isinstance(value, int | float) and measure not in NO_MEASURES:
                numbers.append((measure, "tokens", int(record["size"]), depth,
                                None if measure in UNPAIRED else prompt, value))
    return numbers


def numbers_of_trials(records):
    """
    Return the numbers of eval_niah.py --trials, whose records have the attention on the needle in
    all heads. Measured are the retrieval heads, which have at least half of the largest mean score
    in the prompts that choose them.
    """
    scores = np.array([record["scores"] for record in records])  # (records, layers, heads)
    choosing = [i for i, record in enumerate(records) if record["role"] == "chooses heads"]
    # a result that was extended to longer trials also has the shorter prompts that chose heads then
    size = max(records[i]["size"] for i in choosing)
    mean_scores = scores[[i for i in choosing if records[i]["size"] == size]].mean(axis=0)
    is_retrieval = mean_scores >= mean_scores.max() / 2
    longest = max(record["size"] for record in records)
    numbers = []
    for record, head_scores in zip(records, scores, strict=True):
        if record["role"] == "trial":
            ranks = np.array(record["ranks"])[is_retrieval]
            share = record["needle_tokens"] / record["size"]
            measured = {"score": record["score"], "weight": float(head_scores[is_retrieval].mean()),
                        "ranked first": bool((ranks == 1).any()),
                        "chance": 1 - (1 - share) ** len(ranks)}
            asked = {key: record[key] for key in ("task", "size", "depth", "i", "digest")}
            numbers += numbers_of([asked | measured])
        if record["role"] == "trial" and record["size"] == longest:
            numbers += [(name, "trial", record["i"] + 1, None, None, record[name])
                        for name in ("score", "right")]
        if record["role"] == "example" and record["size"] == longest:
            # by score, because it is chance which heads of a run learn to retrieve
            highest = sorted(head_scores.ravel().tolist(), reverse=True)[:25]
            numbers += [(f"score at {longest:,} tokens", "rank", rank, None, None, score)
                        for rank, score in enumerate(highest, start=1)]
    return numbers


def numbers_of_log(meta, records, kind, is_finished):
    """
    Return the numbers of a training, see `read`: the losses at its end, and 40 to 400 points of
    each curve, which are means of as many updates in a row. kind: begins the measures' names.
    """
    # A power of ten: points of two runs are means of the same updates, and so have a difference, if
    # their lengths have the same one (400 to 3,999 updates, 4,000 to 39,999, ...).
    n_updates = 10 ** int(math.log10(max(1, meta["settings"]["max_iters"] / 40)))
    numbers = []

    def mean(name, of):
        return sum(record.get(name, math.nan) for record in of) / len(of)

    # the records of updates have `loss` and other numbers, those of validations have `val_loss`
    for loss, at_end in (("loss", "training loss"), ("val_loss", "validation loss")):
        losses = [record for record in records if loss in record]
        points = itertools.groupby(losses, key=lambda record: (record["iter"] - 1) // n_updates)
        for _, point in points:
            point = list(point)
            # losses of two runs are subtracted where they are means over the same batches
            batches = "".join(record["digest"] for record in point)
            numbers += [(kind + name, "update", mean("iter", point), None,
                         batches if name == loss else None, mean(name, point))
                        for name, value in point[0].items()
                        if isinstance(value, int | float) and name not in NO_MEASURES]
        # a run may have been killed in its last validation
        if losses and is_finished and losses[-1]["iter"] == records[-1]["iter"]:
            # single updates are noisy: the mean of the last tenth of them
            last = losses[-max(1, len(losses) // 10):] if loss == "loss" else losses[-1:]
            numbers.append((kind + at_end, "end", last[-1]["iter"], None, last[-1]["digest"],
                            mean(loss, last)))
    return numbers


# -----------------------------------------------------------------------------
# numbers -> table


def table_of(results, baseline):
    """Return the table of some results, see `load`. results: what `read` returns of each file.
    baseline: name of a line."""
    variants = [*VARIANTS, *sorted({file["variant"] for file, _ in results})]
    results = sorted(results, key=lambda result: (
        variants.index(result[0]["variant"]), result[0]["tag"], result[0]["seed"]))
    files = pd.DataFrame([file for file, _ in results])
    numbers = pd.DataFrame([(i, *number) for i, (_, numbers) in enumerate(results)
                            for number in numbers], columns=["file", *NUMBER])
    numbers["is_share"] = [isinstance(value, bool) for value in numbers["value"]]
    numbers["value"] = numbers["value"].astype(float)
    cells = ["file", "measure", "unit", "tokens"]
    at_depth = numbers[(numbers["unit"] == "tokens") & numbers["depth"].notna()]
    at_depth = at_depth.assign(unit="depth")

    # the difference from the baseline, for what was asked of both
    paired = numbers[numbers["prompt"].notna()].join(files[["seed", "line"]], on="file")
    same = ["seed", "measure", "unit", "tokens", "prompt"]
    is_baseline = paired["line"] == baseline
    minus = paired[~is_baseline].merge(paired.loc[is_baseline, [*same, "value"]], on=same,
                                       suffixes=("", "_of_baseline"))
    minus["value"] -= minus["value_of_baseline"]
    minus["measure"] += MINUS + baseline

    table = pd.concat([summary(numbers, cells), summary(at_depth, [*cells, "depth"]),
                       summary(minus, cells)])
    return table.join(files, on="file")


def summary(numbers, cells):
    """
    Return a row for each cell of the numbers, with their mean (the median, if it is a score, as in
    the paper), its standard error (NaN if there is none) and n. cells: the columns to group by.
    """
    groups = numbers.groupby(cells, sort=False)
    mean, error, n = means(groups["value"])
    measure = mean.index.get_level_values("measure")
    # A share has Wilson's error. A difference that is one number in all prompts gets it, too: its
    # usual error is 0.
    is_share = groups["is_share"].all() & (n > 1)
    is_share &= ~measure.str.contains(MINUS) | (error == 0)
    error = error.mask(is_share, error_of_share(mean.abs() * n, n))
    is_score = measure == "score"
    median = groups["value"].median().where(mean.notna())
    return pd.DataFrame({"value": mean.mask(is_score, median),
                         "error": error.mask(is_score), "n": n}).reset_index()


def means(groups):
    """Return (mean, its standard error, n) of a GroupBy of numbers: a Series each. The error of one
    number is NaN. Numbers that are NaN are not left out, or a model that fails would look good."""
    is_whole = groups.count() == groups.size()
    return groups.mean().where(is_whole), groups.sem().where(is_whole), groups.size()


def half_interval(error, n):
    """Return half of the 95 % interval (Student's t) of a mean of n numbers with this error."""
    from scipy.special import stdtrit  # late: an evaluation that is refused does not need it
    return error * stdtrit(n - 1, 0.975)


def error_of_share(hits, n):
    """Return the error of the share hits / n for which `half_interval` gives the longer half of
    Wilson's 95 % interval. The usual error would be 0 if all or none are hits."""
    z = 1.96
    middle = (hits + z * z / 2) / (n + z * z)  # the share lies nearer to 0 or 1
    half = z * (hits * (n - hits) / n + z * z / 4) ** 0.5 / (n + z * z)
    return (abs(hits / n - middle) + half) / half_interval(1.0, n)


# -----------------------------------------------------------------------------
# what tables and figures share


def labels_of(rows):
    """Return {line: its name, with the number of its seeds if there are several}."""
    n_seeds = rows.groupby("line", sort=False)["seed"].nunique()
    return {line: f"{line}, {n} seeds" if n > 1 else line for line, n in n_seeds.items()}


def over_seeds(rows):
    """
    Return a DataFrame of the rows of a measure, by line and tokens: mean, half of its 95 %
    interval, and n seeds. The interval is over the seeds; for one seed, or if all agree, it is over
    the prompts or pieces in their files.
    """
    square = half_interval(rows["error"], rows["n"]) ** 2
    groups = rows.assign(square=square).groupby(["line", "tokens"])
    mean, error, n = means(groups["value"])
    half, half_in_files = half_interval(error, n), (groups["square"].mean() / n) ** 0.5
    half = half.where(error > 0, half_in_files)  # error: NaN for one seed, 0 if all agree
    return pd.DataFrame({"mean": mean, "half": half.where(mean.notna()), "n": n})


# -----------------------------------------------------------------------------
# printed tables

WIDTH = 110  # characters
MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper ends at 20
TITLES = {  # {measure: its title}; a measure that is not here is its own title
    "needles": "needles found, all digits right, by context size",
    "weight": "weight on the needle, mean of the retrieval heads",
    "score": "top needle score by context size, median of the trials",
    "ranked first": "needle ranked first by a retrieval head, share of the trials",
    "chance": "needle ranked first by chance, share of the trials",
    "every_depth answers": "every_depth answers (± as if questions on one text were independent)",
}


def print_tables(rows):
    """Print a table for each measure, with the mean of each line ± half of its 95 % interval, and
    then the settings in which the lines differ."""
    print("±: half of the 95 % interval over the seeds (with one seed, or if all agree: over\n"
          "prompts or pieces; of a share: its longer half)")
    # A loss is known at about 100 positions. Shown are multiples of N, and the last of each file.
    some = rows["tokens"] == rows.groupby("path")["tokens"].transform("max")
    for multiple in MULTIPLES:
        some |= rows["tokens"] == (multiple * rows["block"]).round()
    is_shown = (rows["unit"] == "tokens") | (rows["unit"] == "position") & some
    for measure, measure_rows in rows[is_shown].groupby("measure", sort=False):
        title = TITLES.get(measure, measure)
        if MINUS in measure:
            title += ", with the same seed, on the same text"
        elif (measure_rows["unit"] == "position").all():
            title += " (nats), mean of the tenth before a position"
        print_table(title, means_of(measure_rows))
    losses = rows[rows["unit"] == "end"]
    # as in "training loss minus (a) softmax"
    parts = losses["measure"].str.extract("(.*?) loss(.*)")
    for minus, part in losses.assign(tokens=parts[0]).groupby(parts[1]):
        print_table(f"losses at the end{minus} (nats; training: mean of the last tenth)",
                    means_of(part))
    differ = differing_of_lines(rows.drop_duplicates("path"))
    if len(differ):
        short = differ.T.map(lambda text: text if len(text) <= 60 else f"{text[:57]}...")
        print_table("settings that differ", short)


def differing_of_lines(files):
    """Return a DataFrame of the settings in which the lines of some files differ, as texts, with a
    column for each line. If two results of a line differ in one, it has both values."""
    texts = {}
    for line, of_line in files.groupby("line", sort=False):
        values = {}  # {setting: {its values, as texts: None}}
        for settings in of_line["settings"]:
            for name, value in settings.items():
                values.setdefault(name, {})[str(value)] = None
        texts[line] = {name: " or ".join(of_name) for name, of_name in values.items()}
    table = pd.DataFrame(texts)
    # a digest says nothing to people, and a run from random weights has no base
    is_left_out = (table.index == "attention_code") | table.index.str.startswith("base ")
    return table[(table.nunique(axis=1) > 1) & ~is_left_out].fillna("")


def means_of(rows):
    """Return a DataFrame of texts, mean ± half of the 95 % interval, with a row for each line of
    `rows` and a column for each of their tokens."""
    cells, labels = over_seeds(rows), labels_of(rows)
    most = cells.groupby("line")["n"].transform("max")
    texts = [plus_minus(row.mean, row.half) + (f" (of {row.n})" if row.n < n else "")
             for row, n in zip(cells.itertuples(), most, strict=True)]
    table = pd.Series(texts, cells.index).unstack("tokens", fill_value="-")
    heads = {tokens: f"{tokens:,.0f}" for tokens in table if not isinstance(tokens, str)}
    return table.loc[list(labels)].rename(index=labels, columns=heads)


def print_table(title, table):
    """Print a DataFrame of texts; columns that do not fit into a line follow below."""
    print(f"\n{title}")
    print(table.rename_axis(index=None, columns=None).to_string(line_width=WIDTH))


def plus_minus(mean, half):
    """Return "mean ± half" with two digits of `half`: at most four decimals, and from .05 on two.
    If `half` is NaN (one number has no interval) or due to rounding alone, return the mean."""
    if not half >= 1e-7:
        return f"{round(mean, 4) + 0.0:,.4f}".rstrip("0").rstrip(".")  # + 0.0: never -0
    digits = max(0, 1 - math.floor(math.log10(half)))
    if half >= 0.00005:
        digits = min(2 if half >= 0.05 else 4, digits)
    return f"{round(mean, digits) + 0.0:.{digits}f} ± {half:.{digits}f}"
