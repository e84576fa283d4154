"""
The reference table: attention types by positions, from the runs of experiments/matrix/run.sh.

    python -m experiments.matrix.matrix out/matrix --out=experiments/matrix     tables and figure
    python -m experiments.matrix.matrix experiments/matrix      the tables again, from matrix.json

--out adds the results in out/matrix to matrix.json, so it is enough to repeat a part of the runs.

A row is named "trained model|swapped-in type, or nothing|position at evaluation". The verdicts are
those of experiments/verdicts.py.
"""
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.verdicts import (
    LEARNED,
    Prediction,
    markdown,
    merge,
    minus,
    print_verdicts,
    spread,
)
from lib import runtime
from lib.config import configure
from lib.runtime import UserError
from plot import Figure  # with the style of all figures

MULTIPLES = (1, 4, 10, 16)  # of the training length
TYPES = ("softmax", "ssmax", "ssmax_bias", "residual", "head_scale", "asentmax", "scale_invariant")
COLUMNS = {  # columns of the figure: {title: end of the names of its rows}
    "RoPE": "rope||as_trained", "RoPE, theta x 50": "rope||theta50", "RoPE, YaRN": "rope||yarn",
    "p-RoPE": "prope||as_trained", "p-RoPE, theta x 50": "prope||theta50",
    "NoPE": "nope||as_trained"}
# Runs taken from experiments/mini_cpu: {name there: name here}
OF_MINI_CPU = {"a_softmax": "softmax-rope", "b_ssmax": "ssmax-rope",
               "d_ssmax_bias": "ssmax_bias-rope", "head_scale": "head_scale-rope"}


@dataclass(frozen=True)
class MatrixConfig:
    # arguments
    files: tuple = ()  # out/matrix, or a folder with matrix.json
    # output
    out: str = ""  # folder for matrix.json and matrix.png


def collect(folder):
    """Return {row: {"needles at 4x": {seed: share}, "loss at 4x": {seed: nats}, ...}}."""
    rows = {}
    for path in sorted(Path(folder).glob("measured/*/*/*.json")):
        content, (trained, seed) = json.loads(path.read_text()), path.parent.name.rsplit("-", 1)
        trained = OF_MINI_CPU.get(trained, trained)
        row = rows.setdefault(f"{trained}|{content['tag']}|{path.parent.parent.name}", {})
        measure = "needles" if "cells" in content else "loss"
        losses = content.get("mean", ())
        for k in MULTIPLES:
            end = k * content["model_config"]["block_size"]
            numbers = [cell["exact"] for cell in content.get("cells", ()) if cell["size"] == end]
            if end <= len(losses):  # otherwise the evaluation is shorter, or not finished
                numbers = losses[end * 7 // 8:end]
            if numbers:
                by_seed = row.setdefault(f"{measure} at {k}x", {})
                by_seed[seed] = round(float(np.mean(numbers)), 4)
    return rows


def get(rows, measure, row, k):
    """Return {seed: number}; {} if it was not measured."""
    return rows.get(row, {}).get(f"{measure} at {k}x", {})


class Predictions(list):
    """A list of Prediction about the rows."""

    def __init__(self, rows):
        self.rows = rows

    def say(self, claim, text, measure, values, margin=None):
        unit = {"needles": "share", "loss": "nats"}[measure]
        self.append(Prediction(claim, text, unit, values, margin))

    def more(self, claim, text, measure, k, row, other, margin=None):
        """Predict that `row` has a larger measure than `other` at k times the training length."""
        values = minus(get(self.rows, measure, row, k), get(self.rows, measure, other, k))
        self.say(claim, f"{k}x, {text}", measure, values, margin)


def predictions(rows):
    """Return the Predictions of README.md."""
    entries = Predictions(rows)
    say, more = entries.say, entries.more
    prope, swapped = "ssmax-prope||as_trained", "softmax-rope|{}|theta50".format
    softmax50, ssmax50, alibi = swapped(""), "ssmax-rope||theta50", "softmax-alibi||as_trained"
    more(1, "ssmax as trained: p-RoPE finds more than RoPE", "needles", 16, prope,
         "ssmax-rope||as_trained")
    more(2, "RoPE as trained: ssmax has lower loss than softmax", "loss", 16,
         "softmax-rope||as_trained", "ssmax-rope||as_trained")
    ahead = minus(get(rows, "needles", ssmax50, 4), get(rows, "needles", prope, 4))
    say(3, "4x, ssmax: theta x 50 finds no less than p-RoPE, within .1", "needles",
        {seed: share + 0.1 for seed, share in ahead.items()})
    more(4, "p-RoPE: scale_invariant finds more than ssmax", "needles", 16,
         "scale_invariant-prope||as_trained", prope)
    others = [get(rows, "loss", row, 16) for row in rows
              if row.startswith("softmax-") and row != alibi]
    least = {seed: min(loss[seed] for loss in others if seed in loss)
             for seed in set().union(*others)}
    say(5, "16x, ALiBi has lower loss than every other softmax", "loss",
        minus(least, get(rows, "loss", alibi, 16)))
    say(5, "16x, ALiBi finds less than .1", "needles",
        {seed: 0.1 - share for seed, share in get(rows, "needles", alibi, 16).items()})
    more(6, "NoPE: ssmax finds more than softmax", "needles", 4, "ssmax-nope||as_trained",
         "softmax-nope||as_trained")
    for kind in ("residual", "asentmax"):
        more(7, f"{kind} finds as much as ssmax, within .1", "needles", 4,
             f"{kind}-rope||theta50", ssmax50, 0.1)
    clip, e = swapped("logn_clip"), swapped("ssmax")
    more(8, "logn_clip finds as much as (e), within .1", "needles", 10, clip, e, 0.1)
    more(8, "logn_clip has lower loss than (e)", "loss", 1, e, clip)
    for kind in ("llama4", "log_floor"):
        more(9, f"{kind} finds less than logn_clip", "needles", 10, clip, swapped(kind))
    more(10, "softmax: NTK finds as much as theta x 50, within .1", "needles", 4,
         "softmax-rope||ntk", softmax50, 0.1)
    more(11, "softmax: a sink changes little, within .1", "needles", 4, "softmax-sink||theta50",
         softmax50, 0.1)
    return entries


def predicted_again(rows):
    """Return the Predictions about YaRN. They were made after seed 1 and are judged on other seeds.
    """
    entries = Predictions(rows)
    more = entries.more
    softmax, e, constant = map("softmax-rope|{}|yarn_again".format, ("", "ssmax", "constant"))
    ssmax, theta50 = "ssmax-rope||yarn_again", "ssmax-rope||theta50_again"
    for k in (4, 10, 16):
        more(12, "YaRN: ssmax finds more than softmax", "needles", k, ssmax, softmax)
    for k in (10, 16):
        more(13, "ssmax: YaRN finds more than theta x 50", "needles", k, ssmax, theta50)
    more(14, "ssmax: YaRN has lower loss than theta x 50", "loss", 16, theta50, ssmax)
    for k in (10, 16):
        more(15, "YaRN: ssmax finds more than head_scale", "needles", k, ssmax,
             "head_scale-rope||yarn_again")
    more(16, "YaRN: one temperature finds more than (e)", "needles", 10, constant, e)
    for k in (4, 10, 16):
        more(17, "ssmax with YaRN finds more than softmax with YaRN and its temperature",
             "needles", k, ssmax, "softmax-rope|mscale|yarn_again")
    return entries


def print_tables(rows):
    print_verdicts(predictions(rows))
    print_verdicts(predicted_again(rows), " made after seed 1, of seeds 6 to 10")
    for measure, title in (("needles", "Needles found, all digits right"),
                        ("loss", "Test loss (nats) in the last eighth before a position")):
        lines = []
        for row in sorted(rows, key=lambda row: row.split("|")[::-1]):  # by position first
            trained, swapped, position = row.split("|")
            at_1x = get(rows, "needles", f"{trained}||as_trained", 1)
            at_1x = [at_1x[seed] for seed in at_1x.keys() & get(rows, measure, row, 1).keys()]
            learned = f"{sum(share >= LEARNED for share in at_1x)} of {len(at_1x)}"
            lines.append([trained, swapped, position, learned if at_1x else "–",
                          *(spread(get(rows, measure, row, k)) for k in MULTIPLES)])
        markdown(f"{title}: mean over the seeds (least–largest)",
                 ["trained", "swapped in", "position", "learned", *(f"{k}x" for k in MULTIPLES)],
                 lines)


def draw(rows, path):
    """Draw needles by context size as a grid: a row for each type, a column for each position."""
    figure = Figure(figsize=(10.5, 9), layout="constrained")
    axes = figure.subplots(len(TYPES), len(COLUMNS), sharex=True, sharey=True)
    axes[0, 0].set_xscale("log", base=2)  # holds for all panels, which share their axes
    axes[0, 0].set_xticks(MULTIPLES, [f"{k}x" for k in MULTIPLES])
    axes[0, 0].minorticks_off()
    axes[0, 0].set_ylim(-0.05, 1.05)
    for (i, kind), (j, title) in itertools.product(enumerate(TYPES), enumerate(COLUMNS)):
        shares_by_size = [get(rows, "needles", f"{kind}-{COLUMNS[title]}", k) for k in MULTIPLES]
        for k, shares in zip(MULTIPLES, shares_by_size, strict=True):
            axes[i, j].plot([k] * len(shares), shares.values(), ".", color="#0072B2", alpha=0.4)
        means = [np.mean([*shares.values()] or np.nan) for shares in shares_by_size]
        axes[i, j].plot(MULTIPLES, means, color="#0072B2")
        axes[0, j].set_title(title)
        axes[i, 0].set_ylabel(kind)
    figure.supxlabel("context size, as a multiple of the training length")
    figure.supylabel("needles found (line: mean, dots: seeds)")
    with runtime.atomic_write(path) as file:
        figure.savefig(file, format="png")


def main():
    cfg = configure(MatrixConfig)
    if len(cfg.files) != 1:
        raise UserError("name one folder: out/matrix, or that of matrix.json")
    path = Path(cfg.out or cfg.files[0]) / "matrix.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    merge(rows, collect(cfg.files[0]))
    if not rows:
        raise UserError(f"there are no results in {cfg.files[0]}; bash experiments/matrix/run.sh "
                        "makes them")
    print_tables(rows)
    if cfg.out:
        runtime.write_json(path, rows)
        draw(rows, path.with_suffix(".png"))


if __name__ == "__main__":
    runtime.launch(main)
