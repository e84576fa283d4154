"""
What the experiments share: their tables of numbers, predictions and verdicts, and a figure.

An experiment is a folder with run.sh, README.md, predictions.csv (committed before the first run)
and a script. The script makes the rest from the folders that run.sh wrote:

    def collect(folder):
        rows = verdicts.named(results.load([folder]))  # one for each number, see lib/results.py
        return verdicts.collect(rows, {"needles": "needles"}, sizes)  # those to keep

    table = verdicts.with_new(HERE / "results.csv", cfg.files, collect)
    verdicts.print_verdicts(verdicts.read_predictions(HERE / "predictions.csv", table))
    verdicts.print_by_size(table, {"ssmax": "(b) SSMax"}, "Needles found", "needles", sizes)
    verdicts.draw_panels(HERE / "figure.png", {"Needles found": (
        table, "needles", sizes, {"ssmax": ("SSMax", "#0072B2")})}, block=128)
    verdicts.write_stored(table, HERE / "results.csv")

A line of a table is named by the folder of its runs without -SEED, and |TAG for an evaluation with
a tag, as in "softmax|e". plot.py draws results.csv, too.

The `values` of a Prediction are a Series with a number for each seed. Its verdict depends on the
95 % interval of their mean (Student's t over the seeds):

    holds       the interval is above 0; for "about equal", it is within a margin
    does not    the interval is below 0; for "about equal", it is outside of the margin
    undecided   otherwise

A second verdict is corrected for the number of predictions in the table (Holm).
"""
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

import plot
from lib import results
from lib.errors import UserError, explain
from lib.measures import MINUS
from lib.results import COLUMNS
from lib.storage import atomic_write

INDEX = ["line", "measure", "tokens", "seed"]  # of a table, which has the other COLUMNS
LEARNED = 0.95  # share of needles found at the training length by a run that learned to look up
FEWEST = 3  # seeds needed for a verdict: two that agree have no spread and would look certain


@dataclass(frozen=True)
class ExperimentConfig:
    """Settings of an experiment's script."""
    # arguments
    files: tuple = ()  # folders of new results, which run.sh made; nothing: only the stored ones
    # output
    out: str = ""  # folder for results.csv and the figure; empty: neither is written


class Prediction(NamedTuple):
    """
    A prediction, with a number for each seed that is positive if the seed agrees. For "about equal"
    the number is a difference, and it should lie within a margin.
    """
    number: int  # in the experiment's protocol
    text: str
    unit: str
    values: pd.Series
    margin: float | None = None


# -----------------------------------------------------------------------------
# tables


def table_of(rows):
    """
    Return a table: a DataFrame with the index INDEX, from rows that have these columns and a value,
    or from lists of (line, measure, tokens, seed, value). UserError if a number is there twice.
    """
    if isinstance(rows, list):
        rows = pd.DataFrame(rows, columns=[*INDEX, "value"])
        rows = rows.assign(run="", variant="", tag="", error=math.nan, n=None)
    types = {"tokens": int, "seed": int, "value": float, "error": float, "n": "Int64"}
    rows = rows[COLUMNS].astype(types)
    table = rows.set_index(INDEX).sort_index()
    if table.index.has_duplicates:
        line, measure, tokens, seed = table.index[table.index.duplicated()][0]
        raise UserError(f"{line}, seed {seed}, has {measure} at {tokens:,} twice; name the folder "
                        "of one experiment")
    return table


def named(rows):
    """Return rows of lib/results.py whose line is the last folder of the run and |tag."""
    run = rows["run"].str.split("/").str[-1]
    return rows.assign(run=run, line=run.where(rows["tag"] == "", run + "|" + rows["tag"]))


def collect(rows, names, sizes):
    """
    Return the table of an experiment. rows: named rows of lib/results.py. names: {measure: its name
    in the table}; the others are left out. The losses by position of any split are "loss". sizes:
    the numbers of tokens to take.
    """
    measure = rows["measure"].map(names)
    is_loss = (rows["by"] == "position") & ~rows["measure"].str.endswith(MINUS)
    measure = measure.mask(is_loss, "loss")
    rows = rows.assign(measure=measure).round({"value": 4, "error": 4})
    by_tokens = (rows["by"] == "tokens") | is_loss
    return table_of(rows[by_tokens & rows["tokens"].isin(sizes) & measure.notna()])


def read_stored(path):
    """Return the table in a results.csv."""
    with explain(f"{path} is missing or damaged; take that of the repository"):
        return table_of(results.read_table(path))


def write_stored(table, path):
    """Write a table to results.csv, all or nothing."""
    with atomic_write(path, "w") as file:
        table.reset_index()[COLUMNS].to_csv(file, index=False)


def merge(stored, new):
    """Return both tables in one. Where both have a number, it is the new one."""
    both = pd.concat([stored, new])
    return both[~both.index.duplicated(keep="last")].sort_index()


def with_new(path, folders, collect):
    """Return the table in a results.csv, with the new results in these folders. collect(folder)
    returns their table."""
    table = read_stored(path)
    for folder in folders:
        table = merge(table, collect(folder))
    return table


def by_seed(table, line, measure, tokens):
    """Return the values of a measure by seed. They are empty if it was not measured."""
    key = (line, measure, tokens)
    return table.loc[key, "value"] if key in table.index else pd.Series(dtype=float)


def by_size(table, line, measure, sizes):
    """Return a DataFrame of a measure with a line for each size and a column for each seed."""
    seeds = pd.DataFrame({size: by_seed(table, line, measure, size) for size in sizes}).T
    return seeds.dropna(how="all")


# -----------------------------------------------------------------------------
# predictions


def read_predictions(path, table, family="", renamed=None):
    """
    Return the Predictions in a predictions.csv, whose column `formula` gives the number of a seed.
    In a formula `line; measure; tokens`, in backticks, is a number of the table, as in

        `ssmax; needles; 65536` - `softmax; needles; 65536`

    The rest is arithmetic as pandas evaluates it. A seed that lacks one of the numbers is left out.
    family: of these predictions, if the file has several. renamed: {measure in the file: in the
    table}.
    """
    predictions = []
    for line in pd.read_csv(path, keep_default_na=False).itertuples():
        if not family or line.family == family:
            margin = float(line.margin) if line.margin else None
            values = evaluate(line.formula, table, renamed or {})
            predictions.append(Prediction(line.number, line.prediction, line.unit, values, margin))
    return predictions


def evaluate(formula, table, renamed):
    """Return the value of a prediction's formula for each seed that has all numbers in it."""
    columns = {}  # names that pandas can parse, whatever characters a line's name has

    def column_of(match):
        line, measure, tokens = match[1].rsplit("; ", 2)
        name = f"number_{len(columns)}"
        columns[name] = by_seed(table, line, renamed.get(measure, measure), int(tokens))
        return name

    formula = re.sub("`(.*?)`", column_of, formula)
    return pd.DataFrame(columns).eval(formula).dropna()


def minus(x, y):
    """Return x - y for the seeds that both have."""
    return (x - y).dropna()


def interval(values):
    """Return (mean, half of its 95 % interval) of a Series, after Student."""
    n = len(values)
    return values.mean(), stats.t.ppf(0.975, n - 1) * values.sem() if n > 1 else math.inf


def p_value(values, margin=None):
    """
    Return the two-sided p of Student's t, with the sign of the tested number, or None for too few
    seeds. The mean is tested; with a margin, margin - |mean|.
    """
    if len(values) < FEWEST:
        return None
    x = values.mean() if margin is None else margin - abs(values.mean())
    error = values.sem()
    t = x / error if error else math.inf * np.sign(x) if x else 0.0
    return math.copysign(2 * stats.t.sf(abs(t), len(values) - 1), x)


def holm(ps):
    """Return signed p's corrected for their number by Holm's step-down method."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: abs(ps[i]))
    corrected, least = list(ps), 0.0
    for place, i in enumerate(order):
        least = max(least, min(1.0, abs(ps[i]) * (len(order) - place)))
        corrected[i] = math.copysign(least, ps[i])
    return corrected


def verdict(p):
    """Return the verdict on a prediction with this signed p."""
    if p is None:
        return "too few seeds"
    if abs(p) >= 0.05:
        return "undecided"
    return "holds" if math.copysign(1, p) > 0 else "does not"  # 0.0 has a sign, too


# -----------------------------------------------------------------------------
# tables and figure for a page


def markdown(title, head, lines):
    """Print a Markdown table with a title. A table without lines is left out."""
    if lines:
        print(f"{title}\n")
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        for line in lines:
            print("| " + " | ".join(map(str, line)) + " |")
        print()


def number(values):
    """Return "mean ± half of the 95 % interval" of a Series."""
    if not len(values):
        return "–"
    mean, half = interval(values)
    return f"{mean:+.3f} ± {half:.3f}" if len(values) > 1 else f"{mean:+.3f}"


def spread(values, digits=2):
    """Return the mean of a Series, and in brackets the least and largest."""
    if not len(values):
        return "–"
    ends = f" ({values.min():.{digits}f}–{values.max():.{digits}f})" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{ends}"


def print_verdicts(predictions, which=""):
    """Print the table of predictions with their verdicts. which: added to its title."""
    ps = [p_value(prediction.values, prediction.margin) for prediction in predictions]
    lines = []
    for prediction, p, corrected in zip(predictions, ps, holm(ps), strict=True):
        measured = f"{number(prediction.values)} {prediction.unit}"
        lines.append([prediction.number, prediction.text, measured, len(prediction.values),
                      f"**{verdict(p)}**", verdict(corrected)])
    markdown(f"The predictions{which}. A number is positive where the prediction is right, but for "
             "\"equal, within\" it is the difference: mean over the seeds ± half of its 95 % "
             "interval",
             ["no.", "prediction", "measured", "seeds", "", "by Holm"], lines)


def print_by_size(table, names, title, measure, sizes, digits=2, block=128):
    """Print the lines in `names`, {line: its name}, that have this measure, with a column for each
    size. block: training length in tokens; 0: the heads do not name multiples of it."""
    lines = []
    for line, name in names.items():
        of_sizes = [by_seed(table, line, measure, size) for size in sizes]
        if n_seeds := max(map(len, of_sizes)):
            lines.append([name, n_seeds, *(spread(values, digits) for values in of_sizes)])
    heads = [f"{size:,} ({size // block}x)" if block else f"{size:,}" for size in sizes]
    markdown(f"{title}: mean over the seeds (least–largest)", ["", "seeds", *heads], lines)


def print_differences(title, differences):
    """Print differences, {text: Series}, and whether each may be chance."""
    def worth(p):
        return verdict(p) if p is None else "a difference" if abs(p) < 0.05 else "may be chance"

    ps = [p_value(values) for values in differences.values()]
    lines = [[text, len(values), number(values), worth(p), worth(corrected)] for
             (text, values), p, corrected in zip(differences.items(), ps, holm(ps), strict=True)]
    markdown(f"{title}, paired by seed, ± half of the 95 % interval; by Holm: corrected for these "
             f"{len(lines)} comparisons", ["", "seeds", "difference", "", "by Holm"], lines)


def draw_panels(path, panels, block, label="needles found"):
    """
    Draw measures by context size in panels beside each other, with a dot for each seed.

    panels: {title: (table, measure, sizes, {line: (name, colour)})}. block: training length in
    tokens. label: of the first panel's y axis.
    """
    rows, styles = {}, {}
    for title, (table, measure, sizes, shown) in panels.items():
        flat = table.reset_index().assign(by="tokens", block=math.nan)
        is_shown = flat["line"].isin(shown.keys()) & flat["tokens"].isin(sizes)
        rows[title] = flat[is_shown & (flat["measure"] == measure)]
        for line, (name, color) in shown.items():
            # SSMax lies on other lines in places
            dashed = "--" if line.startswith("ssmax") else "-"
            styles[line] = {"label": name, "color": color, "linestyle": dashed}
    figure = plot.draw_panels(styles, rows, beside=True, dots=True, ylim=(-0.03, 1.03))
    for axis, of_panel in zip(figure.axes, rows.values(), strict=True):
        sizes = sorted(of_panel["tokens"].unique())
        axis.set_xticks(sizes, [f"{size // block}" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("context size / training length")
    figure.axes[0].set_ylabel(label)
    plot.save(figure, path)
