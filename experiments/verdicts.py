"""
Results of the experiments: their tables of numbers, predictions, and verdicts on these. Predictions
are stored in predictions.csv, which is committed before the first run.

A table is a Series with the index INDEX, stored in results.csv. The `values` of a Prediction are a
Series with a number for each seed. Its verdict depends on the 95 % interval of their mean
(Student's t over the seeds):

    holds       the interval is above 0; for "about equal", it is within a margin
    does not    the interval is below 0; for "about equal", it is outside of the margin
    undecided   otherwise

A second verdict is corrected for the number of predictions in the table (Holm).
"""
import math
import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lib.errors import UserError, explain
from lib.storage import atomic_write

COLUMNS = ["row", "seed", "measure", "tokens", "value"]  # of results.csv
INDEX = ["row", "measure", "tokens", "seed"]
LEARNED = 0.95  # share of needles found at the training length by a run that learned to look up
FEWEST = 3  # seeds needed for a verdict: two that agree have no spread and would look certain


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


def table_of(lines):
    """Return a table from lines of (row, seed, measure, tokens, value). UserError if two lines
    differ in their value alone."""
    table = pd.DataFrame(lines, columns=COLUMNS).set_index(INDEX)["value"].sort_index()
    if table.index.has_duplicates:
        row, measure, tokens, seed = table.index[table.index.duplicated()][0]
        raise UserError(f"{row}, seed {seed}, has {measure} at {tokens:,} twice; name the folder "
                        "of one experiment")
    return table


def lines_of(result, row, names, tokens):
    """
    Return the lines of results.csv of a Result. names: {measure of the result: its name in the
    table}. tokens: the lengths to take.
    """
    return [[row, result.seeds[-1], name, size, round(result.values[measure][size], 4)]
            for measure, name in names.items() if measure in result.values
            for size in tokens if size in result.values[measure]]


def read_stored(path):
    """Return the table in a results.csv."""
    with explain(f"{path} is missing or damaged; take that of the repository"):
        return table_of(pd.read_csv(path))


def write_stored(table, path):
    """Write a table to results.csv, all or nothing."""
    with atomic_write(path, "w") as file:
        table.reset_index()[COLUMNS].to_csv(file, index=False)


def merge(stored, measured):
    """Return both tables in one. Where both have a value, it is the new one."""
    return measured.combine_first(stored).sort_index()


def read_predictions(path, table, family="", renamed=None):
    """
    Return the Predictions in a predictions.csv, whose column `formula` gives the number of a seed.
    In a formula `row; measure; tokens`, in backticks, is a number of the table, as in

        `ssmax; needles; 65536` - `softmax; needles; 65536`

    The rest is arithmetic as pandas evaluates it. A seed that lacks one of the numbers is left out.
    family: of these predictions, if the file has several. renamed: {measure in the file: in the
    table}.
    """
    predictions = []
    for line in pd.read_csv(path, keep_default_na=False).itertuples():
        if family in ("", line.family):
            margin = float(line.margin) if line.margin else None
            values = evaluate(line.formula, table, renamed or {})
            predictions.append(Prediction(line.number, line.prediction, line.unit, values, margin))
    return predictions


def evaluate(formula, table, renamed):
    """Return the value of a prediction's formula for each seed that has all numbers in it."""
    columns = {}  # names that pandas can parse, whatever characters a row's name has

    def column_of(match):
        row, measure, tokens = match[1].rsplit("; ", 2)
        name = f"number_{len(columns)}"
        columns[name] = by_seed(table, row, renamed.get(measure, measure), int(tokens))
        return name

    formula = re.sub("`(.*?)`", column_of, formula)
    return pd.DataFrame(columns).eval(formula).dropna()


def by_seed(table, row, measure, tokens):
    """Return the values of a measure; they may be empty. KeyError for an unknown row."""
    if row not in table.index:
        raise KeyError(f"there are no results of {row}")
    key = (row, measure, tokens)
    return table.loc[key] if key in table.index else pd.Series(dtype=float)


def by_size(table, row, measure, sizes):
    """Return a DataFrame of a measure with a line for each size and a column for each seed."""
    seeds = pd.DataFrame({size: by_seed(table, row, measure, size) for size in sizes}).T
    return seeds.dropna(how="all")


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
    """Print a line for each row of `names`, {row: name}, that has this measure, with a column for
    each size. block: training length in tokens; 0: the heads do not name multiples of it."""
    lines = []
    for row, name in names.items():
        of_sizes = [by_seed(table, row, measure, size) for size in sizes]
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
