"""
Tables, verdicts and figures of the paper's arrangement in a small model: RoPE in every layer.
README.md in this folder discusses them.

    python -m experiments.rope.rope                  of the stored results
    python -m experiments.rope.rope out/rope_runs --out=FOLDER
                            of these and new ones; writes results.csv and needles.png

A line is named "model position". The model is an attention type, with "-nope" if it was trained
without RoPE and ">type" if a type was swapped in. The position is how RoPE was stretched.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import plot
from experiments import verdicts
from experiments.verdicts import by_seed, markdown, minus, number, spread
from lib import results
from lib.config import configure
from lib.errors import launch
from lib.measures import MINUS, at_length

HERE = Path(__file__).parent
BLOCK = 128  # training length in tokens
SIZES = tuple(BLOCK * multiple for multiple in (1, 2, 4, 8, 10, 16))
HEADS = ("1.1", "1.2", "2.1", "2.2")  # layer.head
SCORED = 8 * BLOCK  # length at which scores are compared with success
LOSS, LOSS_IN_PIECES = "loss, last eighth", "loss, last eighth, of 2,048"  # stored measures
STYLES = {  # {type: (name, colour)} in the figure
    "softmax": ("softmax", "#D55E00"), "ssmax": ("SSMax", "#0072B2"),
    "head_scale": ("control: learned constant", "#8C8C8C"),
    "scale_invariant": ("scale-invariant", "#009E73"),
    "softmax>constant": ("softmax, constant 2.02 put in", "#E69F00")}
YARN = "RoPE, YaRN (softmax: as published)"
PANELS = {  # of the figure: {title: {type: row}}
    "RoPE, theta x 50": {}, YARN: {"softmax": "softmax yarn"}, "no RoPE": {}}
for _type in STYLES:
    PANELS["RoPE, theta x 50"][_type] = f"{_type} theta50"
    PANELS[YARN].setdefault(_type, f"{_type} yarn_no_temperature")
    if _type != "softmax>constant":
        PANELS["no RoPE"][_type] = f"{_type}-nope trained"
AGAIN = range(6, 11)  # seeds of the predictions that were made after seed 1


@dataclass(frozen=True)
class RopeConfig(verdicts.ExperimentConfig):
    """Settings of this program."""


# -----------------------------------------------------------------------------
# new results


def collect(folder):
    """Return the table of the results in out/rope_runs."""
    rows = results.load([folder])
    model = rows["run"].str.split("/").str[-1].str.replace("_to_", ">>")
    model = model.where(rows["tag"] == "", model + ">" + rows["tag"])
    position = rows["path"].map(lambda path: path.parent.parent.name)
    rows = rows.assign(run=model, position=position, line=model + " " + position)

    measures = {name: name for name in ("needles", "score")}
    table = verdicts.collect(rows, measures, SIZES)
    asked = rows[position == "trained"]
    learned = verdicts.collect(asked, {"needles": "learned"}, [BLOCK])
    at_end = rows[(rows["by"] == "end") & ~rows["measure"].str.endswith(MINUS)]
    of_training = verdicts.table_of(at_end.assign(tokens=BLOCK))
    for more in (of_training, learned, fits_of_p_n(rows),
                 rank_correlations(rows[position == "theta50"], learned_runs(learned))):
        table = verdicts.merge(table, more)
    return table


def fits_of_p_n(rows):
    """Return the table of how well laws fit the p_n of each run."""
    lines = []
    for run, p in plot.learned_p_n(rows):
        n = np.arange(1, len(p) + 1)
        laws = {"log": np.log(n), "line": n, "root": np.sqrt(n)}
        for first in (1, 4):
            r2 = {"constant": 0.0}
            for law, f in laws.items():
                r2[law] = np.corrcoef(f[first - 1:], p[first - 1:])[0, 1] ** 2
            lines += [[run.line, f"R2 of {law}, n >= {first}", BLOCK, run.seed, value]
                      for law, value in r2.items()]
    return verdicts.table_of(lines)


def rank_correlations(rows, learned):
    """
    Return the table of how top score and success go together, over the trials of all runs of a
    seed, and over those of the runs in `learned`.
    """
    top, right = (at_length(name, SCORED) for name in ("score", "right"))
    trials = rows[(rows["by"] == "trial") & rows["measure"].isin([top, right])]
    trials = trials.pivot(index=["run", "seed", "tokens"], columns="measure", values="value")
    trials = trials.rename(columns={top: "top", right: "right"}).reset_index()
    has_learned = [run in learned for run in zip(trials["run"], trials["seed"], strict=True)]
    pools = {"all theta50": trials, "all that learned theta50": trials.loc[has_learned]}
    lines = []
    for line, pool in pools.items():
        for seed, of_seed in pool.groupby("seed"):
            top, exact = of_seed["top"], of_seed["right"] == 2
            if top.nunique() > 1 and exact.nunique() > 1:  # else there is no correlation
                correlation = top.corr(exact.astype(float), method="spearman")
                lines.append([line, "rank correlation", SCORED, seed, correlation])
    return verdicts.table_of(lines)


def learned_runs(table):
    """Return {(model, seed)} of the runs that have learned to look up."""
    runs = table.query("measure == 'learned' and value >= @verdicts.LEARNED").index
    return {(line.removesuffix(" trained"), seed) for line, _, _, seed in runs}


def of_learned_runs(table):
    """Return the part of a table that is of runs that have learned to look up."""
    learned = learned_runs(table)
    # p_n cannot be asked, because it is not defined for the answer
    always = ("pn", "all that learned")
    kept = []
    for line, _, _, seed in table.index:
        model = line.rpartition(" ")[0]
        kept.append(model in always or (model, seed) in learned)
    return table[kept].rename({"all that learned theta50": "all theta50"}, level="line")


# -----------------------------------------------------------------------------
# predictions


def predictions(table, family):
    """
    Return the Predictions of a family in predictions.csv: "paper" and "positions" (other attention
    types and positions), which were made before the runs; "yarn", made after seed 1 and judged on
    the seeds AGAIN.
    """
    losses = losses_of(table)
    measure, tokens = losses[LOSS_IN_PIECES], 16 * BLOCK
    of_softmax = [by_seed(table, line, measure, tokens) for line in table.index.unique("line")
                  if line.startswith("softmax") and line != "softmax-alibi trained"]
    least = pd.concat(of_softmax, axis=1).min(axis=1).dropna()
    lines = [["softmax, the least", measure, tokens, seed, loss] for seed, loss in least.items()]
    table = verdicts.merge(table, verdicts.table_of(lines))
    if family == "yarn":
        table = table[table.index.isin(AGAIN, level="seed")]
    return verdicts.read_predictions(HERE / "predictions.csv", table, family, losses)


def losses_of(table):
    """
    Return {stored measure: measure that holds losses in this table}. The stored results have means
    over the last eighth of the positions before a length, which are not compared with new ones:
    these are over the last tenth.
    """
    has_new = "loss" in table.index.unique("measure")
    return {name: "loss" if has_new else name for name in (LOSS, LOSS_IN_PIECES)}


# -----------------------------------------------------------------------------
# tables and figures


def print_tables(table):
    print_verdicts = verdicts.print_verdicts
    print_verdicts(predictions(table, "paper"), ", all seeds")
    print_verdicts(predictions(of_learned_runs(table), "paper"), ", runs that learned")
    print_verdicts(predictions(table, "positions"), " about positions")
    print_verdicts(predictions(table, "yarn"), " made after seed 1, of seeds 6 to 10")
    losses = losses_of(table)
    measures = {"needles": "Needles found, all digits right",
                losses[LOSS]: "Test loss (nats) before a position",
                losses[LOSS_IN_PIECES]: "The same in pieces of 2,048 tokens",
                "score": "Top needle score, median of the trials"}
    rows = sorted(table.index.unique("line"), key=lambda row: row.split()[::-1])  # by position
    for measure, title in measures.items():
        verdicts.print_by_size(table, {row: row for row in rows}, title, measure, SIZES)
    print_training(table)


def print_training(table):
    lines, of_s = [], []
    softmax = by_seed(table, "softmax trained", "training loss", BLOCK)
    for row in table.index.unique("line"):
        training = by_seed(table, row, "training loss", BLOCK)
        if training.empty:
            continue
        model = row.split()[0]
        validation = by_seed(table, row, "validation loss", BLOCK)
        asked = by_seed(table, row, "learned", BLOCK)
        n_learned = (asked >= verdicts.LEARNED).sum()
        lines.append([model, spread(training, 3), number(minus(training, softmax)),
                      spread(validation, 3), f"{n_learned} of {len(asked)}"])
        heads = [by_seed(table, row, f"s {head}", BLOCK) for head in HEADS]
        if not heads[0].empty:
            of_s.append([model, *map(spread, heads)])
    markdown("Training loss (last tenth of the updates), validation loss, and how many runs learned"
             " to look up (.95 of the needles at 1x, theta as trained)",
             ["", "training", "minus (a)", "validation", "learned"], lines)
    markdown("Learned s by layer and head: mean over the seeds (least–largest)", ["", *HEADS], of_s)


def draw(table, folder):
    """Draw the needles found, with a panel for each position."""
    verdicts.draw_panels(folder / "needles.png", {
        title: (table, "needles", SIZES, {line: STYLES[name] for name, line in lines.items()})
        for title, lines in PANELS.items()}, BLOCK)


def main():
    cfg = configure(RopeConfig)
    table = verdicts.with_new(HERE / "results.csv", cfg.files, collect)
    print_tables(table)
    if cfg.out:
        verdicts.write_stored(table, Path(cfg.out) / "results.csv")
        draw(table, Path(cfg.out))


if __name__ == "__main__":
    launch(main)
