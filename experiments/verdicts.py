"""
The rule that judges the predictions of all experiments, and the tables with the outcome.

A prediction has a number for every seed, which is positive if the seed agrees with it. For "about
equal" the number is the difference itself. The verdict depends on the 95 % interval of the mean
(Student's t over the seeds):

    holds       the interval is above 0; for "about equal", it is within a margin
    does not    the interval is below 0; for "about equal", it is outside of the margin
    undecided   otherwise

With fewer than three seeds there is no verdict, because two seeds that happen to agree would have
no spread and look certain. A second verdict is corrected for the number of predictions (Holm).
README.md in this folder explains the rule to readers.
"""
import math
from typing import NamedTuple

import numpy as np

# A run has learned to look up if it finds this share of the needles at the training length, with
# theta as trained.
LEARNED = 0.95
FEWEST = 3  # seeds needed for a verdict
# Student's t for 0, 1, ..., 10 degrees of freedom. For more, we use the last one, which makes the
# interval a little too wide.
T_975 = (math.inf, 12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216,
         2.22814)


class Prediction(NamedTuple):
    claim: int  # number of the prediction on the experiment's page
    text: str
    unit: str
    values: dict  # {seed: number}, positive if the seed agrees; with a margin a difference
    margin: float | None = None  # for "about equal": the largest distance from 0


# -----------------------------------------------------------------------------
# statistics of {seed: number}


def minus(x, y):
    """Return {seed: x - y} for the seeds that both have."""
    return {seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())}


def over_prompts(x, y):
    """
    Return (mean, half of its normal 95 % interval, number) of the differences x - y, for the
    prompts that both have. x and y: {prompt: number}.
    """
    values = list(minus(x, y).values())
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return np.mean(values or [math.nan]), half, len(values)


def mean_and_error(values):
    """Return (mean, standard error) of {seed: number}. The error of a single seed is infinite."""
    x = list(values.values())
    return np.mean(x), np.std(x, ddof=1) / math.sqrt(len(x)) if len(x) > 1 else math.inf


def interval(values):
    """Return (mean, half of its 95 % interval) of {seed: number}."""
    mean, error = mean_and_error(values)
    return mean, T_975[min(len(values) - 1, 10)] * error


def p_value(values, margin=None):
    """
    Return the two-sided p of Student's t, with the sign of the tested number, or None for too few
    seeds. Without a margin the mean is tested. With one, margin - |mean| is tested: how far inside
    of the margin the mean is.
    """
    if len(values) < FEWEST:
        return None
    mean, error = mean_and_error(values)
    x, df = mean if margin is None else margin - abs(mean), len(values) - 1
    t = x / error if error else math.inf * np.sign(x) if x else 0.0
    # with t = sqrt(df) tan(angle) the density is cos(angle)^(df - 1)
    angles = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (df - 1)
    tail = density[angles >= math.atan(abs(t) / math.sqrt(df))].sum() / density.sum()
    return math.copysign(tail, x)


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
    return ("holds" if p > 0 else "does not") if abs(p) < 0.05 else "undecided"


def ranks(values):
    """Return the ranks of values, from 1. Equal values share their mean rank."""
    values = np.asarray(values)
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


def rank_correlation(x, y):
    """Return Spearman's rank correlation, or None if x or y is constant or empty."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


# -----------------------------------------------------------------------------
# output: Markdown, ready for a README


def markdown(title, head, rows):
    """Print a table with a title. A table without rows is left out."""
    if not rows:
        return
    print(f"{title}\n")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def number(values):
    """Return "mean ± half of the 95 % interval" of {seed: number}."""
    if not values:
        return "–"
    mean, half = interval(values)
    return f"{mean:+.3f} ± {half:.3f}" if len(values) > 1 else f"{mean:+.3f}"


def merge(stored, measured):
    """Add {row: {measure: {seed: number}}} of new runs to that of stored ones, which it replaces
    where a seed is in both. So fewer SEEDS never remove stored results."""
    for row, measures in measured.items():
        for measure, values in measures.items():
            stored.setdefault(row, {}).setdefault(measure, {}).update(values)


def spread(values, digits=2):
    """Return the mean of {seed: number}, and in brackets the least and largest."""
    x = list(values.values())
    if not x:
        return "–"
    ends = f" ({min(x):.{digits}f}–{max(x):.{digits}f})" if len(x) > 1 else ""
    return f"{np.mean(x):.{digits}f}{ends}"


def print_verdicts(predictions, which=""):
    """Print the table of predictions with their verdicts. which: added to its title."""
    ps = [p_value(prediction.values, prediction.margin) for prediction in predictions]
    rows = []
    for prediction, p, corrected in zip(predictions, ps, holm(ps), strict=True):
        measured = f"{number(prediction.values)} {prediction.unit}"
        rows.append([prediction.claim, prediction.text, measured, len(prediction.values),
                     f"**{verdict(p)}**", verdict(corrected)])
    markdown(f"The predictions{which}. A number is positive where the prediction is right, but for "
             "\"equal, within\" it is the difference: mean over the seeds ± half of its 95 % "
             "interval",
             ["no.", "prediction", "measured", "seeds", "", "by Holm"], rows)
