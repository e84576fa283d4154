"""
Tables, verdicts and figures of the paper's arrangement in a small model: RoPE in every layer.
README.md in this folder discusses them.

    python -m experiments.rope.rope                  of the stored results
    python -m experiments.rope.rope out/rope_runs --out=FOLDER
                            of these and new ones; writes results.csv and needles.png

A row is named "model position". The model is an attention type, with "-nope" if it was trained
without RoPE and ">type" if a type was swapped in. The position is how RoPE was stretched.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import verdicts
from experiments.verdicts import by_seed, markdown, minus, number, spread
from experiments.windows.windows import draw_by_size
from lib import checkpoint, results
from lib.config import configure
from lib.errors import launch
from plot import new_figure, save

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
class RopeConfig:
    # arguments
    files: tuple = ()  # out/rope_runs, the folder of new results; nothing: only the stored ones
    # output
    out: str = ""  # folder for results.csv and the figures


# -----------------------------------------------------------------------------
# new results


def collect(folder):
    """Return the table of the results in out/rope_runs."""
    lines, trials = [], []
    for result in results.load([folder]):
        model, seed = result.path.parent.name.replace("_to_", ">>").rsplit("-", 1)
        position = result.path.parent.parent.name
        if result.file_type == "log":
            lines += of_training(result, f"{model} trained")
            continue
        if result.tag:
            model += f">{result.tag}"
        row = f"{model} {position}"
        names = {"loss": "loss", "exact": "needles", "score": "score"}
        lines += verdicts.lines_of(result, row, names, SIZES)
        if position == "trained":
            lines += verdicts.lines_of(result, row, {"exact": "learned"}, [BLOCK])
        if result.file_type == "scores" and position == "theta50":
            of_size = result.trials[result.trials["size"] == SCORED]
            if len(of_size):
                trials.append(of_size[["top", "exact"]].assign(model=model, seed=int(seed)))
    if trials:
        learned = learned_runs(verdicts.table_of(lines))
        lines += rank_correlations(pd.concat(trials), learned)
    return verdicts.table_of(lines)


def rank_correlations(trials, learned):
    """
    Return lines of results.csv: how top score and success go together, over the trials of all runs
    of a seed, and over those of the runs in `learned`.
    """
    lines = []
    runs = zip(trials["model"], trials["seed"], strict=True)
    has_learned = np.array([run in learned for run in runs])
    for row, pool in (("all theta50", trials), ("all that learned theta50", trials[has_learned])):
        for seed, of_seed in pool.groupby("seed"):
            top, exact = of_seed["top"], of_seed["exact"]
            if top.nunique() > 1 and exact.nunique() > 1:  # else there is no correlation
                correlation = top.corr(exact, method="spearman")
                lines.append([row, seed, "rank correlation", SCORED, correlation])
    return lines


def of_training(result, row):
    """Return the lines of results.csv of a run: its losses, its s, fits to its p_n."""
    losses = result.values["loss"]
    numbers = {
        "training loss": losses.iloc[-max(1, len(losses) // 10):].mean(),
        "validation loss": result.values["val_loss"].iloc[-1]}
    if "s" in result.records:
        layers = result.records["s"].dropna().iloc[-1]
        for layer, heads in enumerate(layers, 1):
            for head, s in enumerate(heads, 1):
                numbers[f"s {layer}.{head}"] = s
    if result.variant == "pn":
        p = checkpoint.load(result.path.parent)["model"]["p_n"].numpy()
        n = np.arange(1, len(p) + 1)
        laws = {"log": np.log(n), "line": n, "root": np.sqrt(n)}
        for first in (1, 4):
            for law, f in laws.items():
                correlation = np.corrcoef(f[first - 1:], p[first - 1:])[0, 1]
                numbers[f"R2 of {law}, n >= {first}"] = correlation**2
            numbers[f"R2 of constant, n >= {first}"] = 0.0
    return [[row, result.seeds[0], name, BLOCK, value] for name, value in numbers.items()]


def learned_runs(table):
    """Return {(model, seed)} of the runs that have learned to look up."""
    is_asked = table.index.get_level_values("measure") == "learned"
    shares = table[is_asked]
    runs = shares[shares >= verdicts.LEARNED].index
    return {(row.removesuffix(" trained"), seed) for row, _, _, seed in runs}


def of_learned_runs(table):
    """Return the part of a table that is of runs that have learned to look up."""
    learned = learned_runs(table)
    # p_n cannot be asked, because it is not defined for the answer
    always = ("pn", "all that learned")
    kept = []
    for row, _, _, seed in table.index:
        model = row.rpartition(" ")[0]
        kept.append(model in always or (model, seed) in learned)
    return table[kept].rename({"all that learned theta50": "all theta50"}, level="row")


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
    of_softmax = [by_seed(table, row, measure, tokens) for row in table.index.unique("row")
                  if row.startswith("softmax") and row != "softmax-alibi trained"]
    least = pd.concat(of_softmax, axis=1).min(axis=1).dropna()
    lines = [["softmax, the least", seed, measure, tokens, loss] for seed, loss in least.items()]
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
    rows = sorted(table.index.unique("row"), key=lambda row: row.split()[::-1])  # by position
    for measure, title in measures.items():
        verdicts.print_by_size(table, {row: row for row in rows}, title, measure, SIZES)
    print_training(table)


def print_training(table):
    lines, of_s = [], []
    softmax = by_seed(table, "softmax trained", "training loss", BLOCK)
    for row in table.index.unique("row"):
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
    figure = new_figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    axes[0].set(ylim=(-0.05, 1.05), ylabel="needles found")
    for axis, (title, rows) in zip(axes, PANELS.items(), strict=True):
        draw_by_size(axis, table, {row: STYLES[name] for name, row in rows.items()}, SIZES)
        axis.set_title(title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    save(figure, folder / "needles.png")


def main():
    cfg = configure(RopeConfig)
    table = verdicts.read_stored(HERE / "results.csv")
    for folder in cfg.files:
        table = verdicts.merge(table, collect(folder))
    print_tables(table)
    if cfg.out:
        verdicts.write_stored(table, Path(cfg.out) / "results.csv")
        draw(table, Path(cfg.out))


if __name__ == "__main__":
    launch(main)
