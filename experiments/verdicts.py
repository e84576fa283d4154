"""
Predictions and their verdicts. `python -m experiments.tables NAME` prints those of an experiment.

Its predictions.csv is committed before the first run. A formula gives a number for each seed, which
is positive if the seed agrees. In it `line; measure; tokens`, in backticks, is a number of
results.csv, and the rest is arithmetic as pandas evaluates it:

    `ssmax; needles; 65536` - `softmax; needles; 65536`

If there is a margin, the number is a difference that should lie within it. A verdict depends on the
95 % interval of the number's mean (Student's t over the seeds):

    holds       the interval is above 0; with a margin, it is within the margin
    failed      the interval is below 0; with a margin, it is outside of the margin
    undecided   otherwise
    no verdict  fewer than three seeds, or one that failed with NaN

Among many such intervals some miss by chance. So a second verdict is corrected for the number of
predictions in the family (Holm). A claim is undecided if either verdict is. If all seeds gave one
number, the second verdict is "holds, no spread": the interval has no width and proves little.
"""
import math
import re
from typing import NamedTuple

import pandas as pd
from scipy import stats

FEWEST = 3  # seeds needed for a verdict: two that agree have no spread and would look certain


class Prediction(NamedTuple):
    number: int | str  # in the experiment's protocol
    text: str
    unit: str
    values: pd.Series  # a number for each seed
    margin: float | None = None


def by_seed(table, line, measure, tokens):
    """
    Return the values of a measure by seed, which are empty if it was not measured. table: a Series
    with the index (line, measure, tokens, seed).
    """
    key = (line, measure, tokens)
    return table[key] if key in table.index else pd.Series(dtype=float)


def read_predictions(path, table):
    """
    Return {family: its Predictions} of a predictions.csv. A number in its column first_seed, if it
    has one, leaves out the seeds before this one, which were known when the prediction was made.
    A prediction whose numbers are not in the table yet has no seeds.
    """
    families = {}
    for row in pd.read_csv(path, keep_default_na=False).itertuples():
        values = evaluate(row.formula, table)
        values = values[values.index >= int(getattr(row, "first_seed", "") or 0)]
        margin = float(row.margin) if row.margin else None
        prediction = Prediction(row.number, row.prediction, row.unit, values, margin)
        families.setdefault(row.family, []).append(prediction)
    return families


def evaluate(formula, table):
    """Return the value of a prediction's formula for each seed that has all numbers in it."""
    columns = {}  # names that pandas can parse, whatever characters a line's name has

    def column_of(match):
        line, measure, tokens = match[1].rsplit("; ", 2)
        name = f"number_{len(columns)}"
        columns[name] = by_seed(table, line, measure, int(tokens))
        return name

    formula = re.sub("`(.*?)`", column_of, formula)
    # the seeds that every number has; one that failed with NaN is among them
    seeds = set.intersection(*(set(values.index) for values in columns.values()))
    return pd.DataFrame(columns).loc[sorted(seeds)].eval(formula)


def p_value(values, margin=None):
    """
    Return the two-sided p of Student's t, with the sign of the tested number, or None for too few
    seeds, or if one failed with NaN. The mean is tested; with a margin, margin - |mean|.
    """
    if len(values) < FEWEST or values.isna().any():
        return None
    x = values.mean() if margin is None else margin - abs(values.mean())
    error = values.sem()
    if error:
        t = x / error
    else:  # all seeds gave one number
        t = math.copysign(math.inf, x) if x else 0.0
    return math.copysign(2 * stats.t.sf(abs(t), len(values) - 1), x)


def holm(ps):
    """Return signed p's corrected for their number by Holm's step-down method."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: abs(ps[i]))
    corrected, largest = list(ps), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, abs(ps[i]) * (len(ps) - place)))
        corrected[i] = math.copysign(largest, ps[i])
    return corrected


def verdict(p):
    """Return the verdict on a prediction with this signed p."""
    if p is None:
        return "no verdict"
    if abs(p) >= 0.05:
        return "undecided"
    return "holds" if math.copysign(1, p) > 0 else "failed"  # 0.0 has a sign, too


def judge(predictions):
    """Return (verdict, verdict corrected by Holm) for each prediction of a family."""
    ps = [p_value(prediction.values, prediction.margin) for prediction in predictions]
    verdicts = []
    for prediction, p, corrected in zip(predictions, ps, holm(ps), strict=True):
        counts = verdict(corrected)
        one_number = prediction.values.round(9).nunique() == 1  # .8 - .2 is not quite 1 - .4
        if one_number and counts in ("holds", "failed"):
            counts += ", no spread"
        verdicts.append((verdict(p), counts))
    return verdicts
