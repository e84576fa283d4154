"""
The rule by which the predictions of all experiments are judged, and the tables that say what came
out.

A prediction is a number for every seed, positive where the seed agrees. It holds if the 95 %
interval of the mean (Student's t over the seeds) lies above 0, does not hold if it lies below, and
else is undecided; "about equal" holds if the interval lies within a margin. Below three seeds there
is no verdict: two that happen to agree would have no spread and so be certain. Beside it stands the
verdict corrected for the number of predictions (Holm). README.md here says it for readers.
"""
import math
from typing import NamedTuple

import numpy as np

LEARNED = 0.95  # of the needles at the training length, theta as trained: a run that looks up
FEWEST = 3  # seeds for a verdict
# Student's t for 0, 1, ... 10 degrees of freedom; the last also for more: a little too wide
T_975 = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Prediction(NamedTuple):
    claim: int  # its number in the README
    text: str
    unit: str
    values: dict  # {seed: number}
    margin: float | None = None  # how far from 0 is "about equal"


# -----------------------------------------------------------------------------
# statistics of {seed: number}


def minus(x, y):
    """Paired differences over the seeds that both have."""
    return {seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())}


def over_prompts(x, y):
    """(mean, half of its 95 % interval, normal, number) of the differences of {prompt: number}."""
    values = list(minus(x, y).values())
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return np.mean(values or [math.nan]), half, len(values)


def mean_and_error(values):
    """The mean and its standard error, which one seed alone does not tell."""
    x = list(values.values())
    return np.mean(x), np.std(x, ddof=1) / math.sqrt(len(x)) if len(x) > 1 else math.inf


def interval(values):
    """(mean, half-width of its 95 % interval)"""
    mean, error = mean_and_error(values)
    return mean, T_975[min(len(values) - 1, 10)] * error


def p_value(values, margin=None):
    """
    Two-sided p of Student's t for the mean, or for how far its size is from `margin`; negative
    where the mean (what is left of the margin) is. None: too few seeds.
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
    """Signed p's -> those corrected for their number by Holm's step-down method."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: abs(ps[i]))
    corrected, least = list(ps), 0.0
    for place, i in enumerate(order):
        least = max(least, min(1.0, abs(ps[i]) * (len(order) - place)))
        corrected[i] = math.copysign(least, ps[i])
    return corrected


def verdict(p):
    """What the rule says of a prediction with this signed p."""
    if p is None:
        return "too few seeds"
    return ("holds" if p > 0 else "does not") if abs(p) < 0.05 else "undecided"


def ranks(values):
    """Ranks from 1; equal values share their mean rank."""
    values = np.asarray(values)
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


def rank_correlation(x, y):
    """Spearman's; None where one is constant, or empty."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


# -----------------------------------------------------------------------------
# output: Markdown, ready for a README


def markdown(title, head, rows):
    if not rows:
        return  # nothing is measured yet
    print(f"{title}\n")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def number(values):
    """Mean and 95 % half-width."""
    if not values:
        return "–"
    mean, half = interval(values)
    return f"{mean:+.3f} ± {half:.3f}" if len(values) > 1 else f"{mean:+.3f}"


def spread(values, digits=2):
    """Mean over the seeds, and in brackets from the least to the largest."""
    x = list(values.values())
    if not x:
        return "–"
    ends = f" ({min(x):.{digits}f}–{max(x):.{digits}f})" if len(x) > 1 else ""
    return f"{np.mean(x):.{digits}f}{ends}"


def print_verdicts(predictions, which=""):
    ps = [p_value(said.values, said.margin) for said in predictions]
    rows = []
    for said, p, corrected in zip(predictions, ps, holm(ps), strict=True):
        rows.append([said.claim, said.text, f"{number(said.values)} {said.unit}",
                     len(said.values), f"**{verdict(p)}**", verdict(corrected)])
    markdown(f"The predictions{which}. A number is positive where the prediction is right: mean "
             "over the seeds ± half of its 95 % interval",
             ["claim", "prediction", "measured", "seeds", "", "by Holm"], rows)
