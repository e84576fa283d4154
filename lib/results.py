"""
Result files -> one table of numbers -> printed tables. plot.py draws from the same table.

A result is a file X.jsonl with a record for each prompt, piece of text or update of a training.
X.json beside it says what the numbers depend on. A record says whose it is and what was asked:

    variant, tag, seed     the results of one variant and tag are a line of tables and figures
    task, size, depth, i   size in tokens, depth in percent or null, number of the prompt or piece
    iter                   number of the update, in a log.jsonl instead of the row above
    digest                 of the prompt, piece or batch of text

Every other number of a record is a measure, and so is a dict {position: number}.

`load` makes a DataFrame with a row for each number, averaged over the prompts or pieces. It has the
columns of an experiment's results.csv (run: the folder of the file, without -SEED; measure: the
difference from a line is "MEASURE minus LINE"; n: number of prompts or pieces; error: the standard
error over them), the training length (block), the path, and

    by      what `tokens` counts: tokens, depth (tokens, at one depth), position, update, end
            (updates, at the end of the training), rank (of a head), or trial
"""
import glob
import json
import math
import os
import statistics
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import MALFORMED, UserError, check_types, explain

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
COLUMNS = ["line", "run", "variant", "tag", "seed", "measure", "tokens", "value", "error", "n"]
ASKED = ("seed", "task", "depth", "i", "digest")  # equal in records that are subtracted
NO_MEASURES = {*ASKED, "size", "iter", "variant", "tag"}
FACTS = {"evaluation": str, "variant": str, "tag": str, "seed": int, "settings": dict,
         "data": dict, "block_size": int}  # keys of X.json that are checked, with their types
MINUS = " minus "
UNPAIRED = ("score", "ranked first", "chance")  # measures of which no difference is shown
# Settings in which the results of one line may differ: seeds, paths, the machine, what the name of
# the variant says, and how much is measured
FREE = {
    "seed", "init_from", "out_dir", "data_dir", "haystack", "device", "compile", "loss_chunk",
    "micro_batch_size", "eval_interval", "save_interval", "log_interval", "wandb_log",
    "wandb_project", "wandb_run_name", "variant", "attention_type", "switch_attention_type",
    "context_sizes", "n_samples", "n_seqs"}


def name_of(variant, tag=""):
    """Return the name of a line."""
    name, _ = VARIANTS.get(variant, (variant, None))
    return f"{name} [{tag}]" if tag else name


# -----------------------------------------------------------------------------
# files -> table


def load(inputs, baseline="softmax"):
    """
    Return the table of the results in files and folders: logs, finished evaluations, and .csv,
    which are tables already. It has the differences from the line `baseline`, which is the name of
    a variant or of a line. UserError for a damaged file, and if results contradict each other.
    """
    results, tables = [], []  # of (path, facts, values)
    for path in find(inputs):
        with explain(f"{path} is damaged, or not a result of this program; move it away",
                     (*MALFORMED, ArithmeticError)):
            if path.suffix == ".csv":
                tables.append(read_table(path))
            elif result := read(path):
                results.append((path, *result))
    check_lines({path: facts for path, facts, _ in results})

    of_baseline, baseline_line = {}, ""
    for _, facts, values in results:
        if baseline == facts["line"] or baseline == facts["variant"] and not facts["tag"]:
            baseline_line = facts["line"]
            for cell, of_cell in values.items():
                of_baseline.setdefault(cell, {}).update(of_cell)

    variants = [*VARIANTS, *sorted({facts["variant"] for _, facts, _ in results})]
    results.sort(key=lambda x: (variants.index(x[1]["variant"]), x[1]["tag"], x[1]["seed"]))
    rows = []
    for path, facts, values in results:
        if facts["line"] != baseline_line:
            values |= minus(values, of_baseline, baseline_line)
        run = path.parent.name.removesuffix(f"-{facts['seed']}")
        whose = facts["line"], run, facts["variant"], facts["tag"], facts["seed"]
        rows += [(*whose, *row, facts["block_size"], path) for row in rows_of(values)]
    if rows or not tables:
        tables.append(pd.DataFrame(rows, columns=[*COLUMNS, "by", "depth", "block", "path"]))
    return without_copies(pd.concat(tables, ignore_index=True))


def find(inputs):
    """
    Return the paths of result files. inputs: files, or folders that are searched with all folders
    in them. A .jsonl in a folder is a result if it has its .json beside it. UserError for an input
    that does not exist.
    """
    paths = {}  # by where a link leads to: each file once
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        files = [path]
        if path.is_dir():
            names = sorted(glob.glob("**/*.jsonl", root_dir=path, recursive=True))
            files = [path / name for name in names if (path / name).with_suffix(".json").exists()]
        paths |= {os.path.realpath(file): file for file in files}
    return list(paths.values())


def read(path):
    """Return (content of X.json with the name of the line, values of X.jsonl, see `values_of`), or
    None if the result is not finished or the file is of another program."""
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if "evaluation" not in facts:
        return None
    check_types(facts, FACTS)
    lines, _, _ = path.read_text(encoding="utf-8").rpartition("\n")  # no line that was cut short
    records = json.loads(f"[{lines.replace(chr(10), ',')}]")  # at once takes two thirds of the time
    wanted = facts.get("records", 1)
    if len(records) < wanted:
        print(f"left out, because it has {len(records):,} of {wanted:,} records: {path}")
        return None
    facts["line"] = name_of(facts["variant"], facts["tag"])
    return facts, values_of(facts, records)


def read_table(path):
    """Return the table in a results.csv."""
    table = pd.read_csv(path, keep_default_na=False, na_values={"error": [""], "n": [""]})
    table = table[COLUMNS].astype({"value": float})
    return table.assign(by="tokens", depth=math.nan, block=math.nan, path=path)


def settings_of(facts):
    """Return {name: value} of the settings that all results of a line have in common. facts: the
    content of X.json."""
    def named(settings, data, prefix=""):
        # text that was generated with another seed counts as the same
        source = {key: value for key, value in data["source"].items() if key != "seed"}
        text = source if source != data["source"] else data["digest"]
        return {prefix + name: value for name, value in (settings | {"text": text}).items()
                if name not in FREE}

    if "run" not in facts:  # of a training
        return named(facts["settings"], facts["data"])
    run = facts["run"]
    trained = run["settings"] | {"updates": run["iter"]}
    return named(trained, run["data"]) | named(facts["settings"], facts["data"], "eval ")


def check_lines(facts_of):
    """Raise a UserError if two results of one line have other settings. facts_of: {path: content of
    X.json}."""
    firsts = {}  # of each line
    for path, facts in facts_of.items():
        line = name_of(facts["variant"], facts["tag"])
        first = firsts.setdefault((facts["evaluation"], line), path)
        one, other = settings_of(facts_of[first]), settings_of(facts)
        differ = [f"{name} ({one.get(name)}, {other.get(name)})" for name in {**one, **other}
                  if one.get(name) != other.get(name)]
        if differ:
            raise UserError(f"{first} and {path} are both called {line}, but differ in "
                            f"{', '.join(differ)[:300]}; name one of them alone, or give it "
                            "another --variant (train.py) or --tag (an evaluation)")


def without_copies(table):
    """Return the table with each number once. UserError if it has two for one line and seed."""
    number = ["line", "seed", "measure", "by", "tokens", "depth"]
    table = table[~table.duplicated([*number, "value"])]
    twice = table[table.duplicated(number, keep=False)].sort_values(number)
    if len(twice):
        one, other = twice["path"][:2]
        raise UserError(f"{one} and {other} are both {twice['line'].iloc[0]} with seed "
                        f"{twice['seed'].iloc[0]}, and have other numbers; leave one of them out, "
                        "or give it another --variant or --seed (train.py) or --tag")
    return table


# -----------------------------------------------------------------------------
# records -> values of each measure -> rows


def values_of(facts, records):
    """
    Return {(measure, by, tokens, depth): {what was asked: value}} of records. What was asked is
    equal in the records of two models only if these were asked the same, or trained on the same.
    """
    if facts["evaluation"] == "log":
        return values_of_log(records, "squad" in facts["data"]["source"])
    values = {}
    if "scores" in records[0]:
        records, values = of_trials(records)
    for record in records:
        asked, size, depth = tuple(map(record.get, ASKED)), int(record["size"]), record["depth"]
        for name, value in record.items():
            if isinstance(value, dict):
                for position, x in value.items():
                    cell = name, "position", int(position), None
                    values.setdefault(cell, {})[asked] = float(x)
            elif isinstance(value, int | float) and name not in NO_MEASURES:
                values.setdefault((name, "tokens", size, None), {})[asked] = float(value)
                if depth is not None:
                    values.setdefault((name, "depth", size, depth), {})[asked] = float(value)
    return values


def of_trials(records):
    """
    Return (records, values) of eval_niah.py --trials, whose records have the attention on the
    needle in all heads. The new records have that of the retrieval heads, which have at least half
    of the largest mean score in the prompts that choose them.
    """
    scores = np.array([record["scores"] for record in records])  # (records, layers, heads)
    chooses = [record["role"] == "chooses heads" for record in records]
    means = scores[chooses].mean(axis=0)
    is_retrieval = means >= means.max() / 2
    trials, values = [], {}
    longest = max(record["size"] for record in records if record["role"] == "trial")
    for record, of_heads in zip(records, scores, strict=True):
        at = f"at {record['size']:,} tokens"
        if record["role"] == "example" and record["size"] == longest:
            # by score, because it is chance which heads of a run learn to retrieve
            highest = sorted(of_heads.ravel().tolist(), reverse=True)[:25]
            values |= {(f"score {at}", "rank", i, None): {(): x}
                       for i, x in enumerate(highest, start=1)}
        if record["role"] == "trial":
            values[f"score {at}", "trial", record["i"] + 1, None] = {(): record["score"]}
            values[f"right {at}", "trial", record["i"] + 1, None] = {(): record["right"]}
            share = record["needle_tokens"] / record["size"]
            trials.append({name: record[name] for name in (*ASKED, "size", "score")} | {
                "weight": float(of_heads[is_retrieval].mean()),
                "ranked first": bool((np.array(record["ranks"])[is_retrieval] == 1).any()),
                "chance": 1 - (1 - share) ** int(is_retrieval.sum())})
    return trials, values


def values_of_log(records, of_sft):
    """Return the values of a training, as `values_of` does. of_sft: whether it was fine-tuning,
    whose losses are of other text."""
    kind = "fine-tuning " if of_sft else ""
    values = {}
    for loss, at_end in (("loss", "training loss"), ("val_loss", "validation loss")):
        some = [record for record in records if loss in record]
        asked = [(record["seed"], record["iter"], record["digest"]) for record in some]
        iters = thinned([record["iter"] for record in some])
        for name, value in (some[0] if some else {}).items():
            if not isinstance(value, int | float) or name in NO_MEASURES:
                continue
            numbers = [record.get(name, math.nan) for record in some]
            if name != loss:
                values |= {(kind + name, "update", at, None): {(): mean}
                           for at, mean in zip(iters, thinned(numbers), strict=True)}
                continue
            values[kind + loss, "update", 0, None] = dict(zip(asked, numbers, strict=True))
            # single updates are noisy: the mean of the last tenth of them
            late = numbers[-max(1, len(numbers) // 10):] if loss == "loss" else numbers[-1:]
            end = kind + at_end, "end", some[-1]["iter"], None
            values[end] = {asked[-1]: statistics.fmean(late)}
    for record in [record for record in records if "s" in record][-1:]:
        # windows have no s, and (f) has none before its switch
        for layer, heads in enumerate(record["s"], start=1):
            for head, s in enumerate(heads or (), start=1):
                values[f"s {layer}.{head}", "end", record["iter"], None] = {(): float(s)}
    return values


def minus(values, of_baseline, line):
    """Return `values` minus those of the baseline, called `line`, for what was asked of both."""
    differences = {}
    for cell, of_cell in values.items():
        measure, by, tokens, _ = cell
        is_loss = by in ("update", "end") and measure.endswith("loss")
        paired = by in ("tokens", "position") and measure not in UNPAIRED and ", " not in measure
        if is_loss or paired:
            base = of_baseline.get(cell, {})
            difference = {asked: x - base[asked] for asked, x in of_cell.items() if asked in base}
            if difference:
                differences[measure + MINUS + line, by, tokens, None] = difference
    return differences


def rows_of(values):
    """Return rows of the table, (measure, tokens, value, error, n, by, depth), of values."""
    rows = []
    for (measure, by, tokens, depth), of_cell in values.items():
        numbers = list(of_cell.values())
        if by == "update" and tokens == 0:  # a loss in all updates
            points = zip(thinned([update for _, update, _ in of_cell]), thinned(numbers),
                         strict=True)
            rows += [(measure, at, mean, math.nan, 1, by, depth) for at, mean in points]
        else:
            rows.append((measure, tokens, *mean_and_error(measure, numbers), by, depth))
    return rows


def thinned(numbers):
    """Return about 100 numbers at most, each the mean of as many in a row."""
    step = max(1, len(numbers) // 100)
    whole = numbers[:len(numbers) // step * step]
    return np.array(whole, dtype=float).reshape(-1, step).mean(axis=1).tolist()


def mean_and_error(measure, numbers):
    """Return the mean of the numbers (the median, if it is a score, as in the paper), its standard
    error (NaN if there is none) and n."""
    n = len(numbers)
    if measure == "score":
        return statistics.median(numbers), math.nan, n
    mean = statistics.fmean(numbers)
    if n == 1:
        return mean, math.nan, n
    error = math.sqrt(sum((x - mean) ** 2 for x in numbers) / (n - 1) / n)
    # Of two shares that are as far apart in each prompt the difference is a share, too.
    is_share = all(abs(x) in (0, 1) for x in numbers) and (MINUS not in measure or error == 0)
    if is_share:
        error = error_of_share(abs(sum(numbers)), n)
    return mean, error, n


def error_of_share(hits, n):
    """Return the standard error of the share hits / n: half of Wilson's 95 % interval, divided by
    1.96. The usual one would be 0 if all or none are hits."""
    z = 1.96
    return (hits * (n - hits) / n + z * z / 4) ** 0.5 / (n + z * z)


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
    """Return a text for each setting in which the lines differ, as "window: 32, but 64 in (b)"."""
    settings = {}  # {line: {name: text}}
    for line, path in rows[["line", "path"]].drop_duplicates().itertuples(index=False):
        if path.suffix != ".csv":
            facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            settings.setdefault(line, {}).update(settings_of(facts))
    texts = []
    for name in sorted(set().union(*settings.values())):
        values = pd.Series({line: str(known[name]) for line, known in settings.items()
                            if name in known})
        usual = values.value_counts(sort=False).idxmax()
        others = [f"{value} in {', '.join(values.index[values == value])}"
                  for value in values.unique() if value != usual]
        if others:
            texts.append(f"{name}: {usual}, but {' and '.join(others)}")
    return texts


# -----------------------------------------------------------------------------
# printed tables

MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper ends at 20
# {measure: its title}, in the order of the tables. A measure that is not here is its own title.
TITLES = {
    "needles": "needles found, all digits right, by context size",
    "needles, anywhere": "needles found anywhere in the text, by context size",
    "weight": "weight on the needle, mean of the retrieval heads",
    "score": "top needle score by context size, median of the trials",
    "ranked first": "needle ranked first by a retrieval head, share of the trials",
    "chance": "needle ranked first by chance, share of the trials",
}
WIDTH = 110  # characters


def title_of(measure, by="tokens"):
    """Return the title of the table of a measure."""
    if MINUS in measure:
        return f"{measure}, with the same seed, on the same text"
    if by == "position":
        return f"{measure} (nats), mean of the tenth before a position"
    return TITLES.get(measure, measure)


def place_of(measure):
    """Return a key that sorts measures: those of TITLES, others, losses. Differences follow."""
    name, minus, _ = measure.partition(MINUS)
    return name.endswith(" loss"), [*TITLES, name].index(name), name, minus


def print_tables(rows):
    """Print a table for each measure, with mean ± standard error of each line, and then the
    settings in which the lines differ."""
    print("mean ± standard error: over the seeds; for a single seed, over its prompts or pieces of "
          "text")
    # a loss is known at many positions; the table shows some
    is_shown = rows["by"] == "tokens"
    is_shown |= (rows["by"] == "position") & (rows["tokens"] / rows["block"]).isin(MULTIPLES)
    shown = rows[is_shown & ~rows["measure"].str.contains(", first")]
    for measure in sorted(shown["measure"].unique(), key=place_of):
        of_measure = shown[shown["measure"] == measure]
        print_lines(title_of(measure, of_measure["by"].iloc[0]), of_measure, "{:,.0f}".format)
    at_end = rows[(rows["by"] == "end") & rows["measure"].str.contains(" loss")]
    parts = at_end["measure"].str.extract(f"(.*) loss(?:({MINUS}.*))?")
    for minus, part in at_end.assign(tokens=parts[0]).groupby(parts[1].fillna("")):
        print_lines(f"losses at the end{minus} (nats; training: mean of the last tenth)", part, str)
    if texts := differences(rows):
        print("\nsettings that differ")
        for text in texts:
            print(textwrap.fill(text, WIDTH, subsequent_indent="    "))


def print_lines(title, rows, head_of):
    """Print a table with a line for each line of `rows` and a column for each of their tokens, or
    several below each other if it would be wider than WIDTH."""
    table = {}  # {label: {tokens: text}}
    for line, label in labels_of(rows).items():
        cells = over_seeds(rows[rows["line"] == line])
        most = cells["n"].max()
        table[label] = {tokens: plus_minus(mean, error) + (f" (of {n})" if n < most else "")
                        for tokens, mean, error, n in cells.itertuples()}
    frame = pd.DataFrame(table).sort_index().rename(index=head_of).fillna("-").T
    labels = min(WIDTH // 2, max(map(len, table)))
    width = 2 + max(map(len, [*frame.columns, *frame.to_numpy().ravel()]))
    at_once = max(1, (WIDTH - labels) // width)
    print(f"\n{title}")
    for i in range(0, len(frame.columns), at_once):
        part = frame.iloc[:, i:i + at_once]
        print(" " * labels + "".join(head.rjust(width) for head in part))
        for label, *texts in part.itertuples():
            *above, last = textwrap.wrap(label, labels)
            cells = "".join(text.rjust(width) for text in texts)
            print("\n".join([*above, last.ljust(labels) + cells]))


def plus_minus(mean, error):
    """Return "mean ± error" with two digits of the error, but four decimals where these show it.
    Without an error, which is NaN, or with one of rounding alone, return the mean."""
    if not error >= 1e-7:
        return f"{round(mean, 4) + 0.0:,.4f}".rstrip("0").rstrip(".")  # + 0.0: never -0
    digits = max(0, 1 - math.floor(math.log10(error)))
    if error >= 0.00005:
        digits = min(4, digits)
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
