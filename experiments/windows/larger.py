"""
Does a row of the gallery predict a model that is eight times larger? The rank correlations between
the small models of results.csv and those of larger.sh, and a picture.

    python -m experiments.windows.larger                  of the stored larger.csv
    python -m experiments.windows.larger out/larger --out=experiments/windows
                                                          of new results, which are then stored

Spearman's rho compares the order of the rows in both: 1 if it is the same, 0 if they have nothing
in common. The 95 % interval is a bootstrap over attentions: an attention is drawn together with the
clip put into it. p is the share of the draws in which rho is at most .5.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import plot
from experiments.tables import HERE, collect
from lib.config import configure
from lib.errors import launch
from lib.storage import atomic_write

COMPARED = (("needles", 1), ("needles", 16), ("needles", 64), ("loss", 1), ("loss", 16))
BLOCK_SMALL, BLOCK_LARGE = 128, 256  # training lengths in tokens; a measure is taken at multiples
DRAWS = 10_000


@dataclass(frozen=True)
class LargerConfig:
    # arguments
    files: tuple = ()  # folder of new results that larger.sh has made
    # output
    out: str = ""  # folder for larger.csv and the picture; empty: they are not written


def pairs(small, large, measure, times):
    """Return a DataFrame with a row for each line that both tables have: the mean over the seeds of
    a measure in the small and the large models, and the line's attention."""
    def means(table, tokens):
        is_asked = (table["measure"] == measure) & (table["tokens"] == tokens)
        return table[is_asked].groupby("line")["value"].mean()

    both = pd.DataFrame({"small": means(small, times * BLOCK_SMALL),
                         "large": means(large, times * BLOCK_LARGE)}).dropna()
    return both.assign(attention=both.index.str.split("|").str[0])


def rank_correlation(both):
    """Return (rho, low, high, p): Spearman's rho, its 95 % interval, and the share of the draws in
    which it is at most .5."""
    rng = np.random.default_rng(0)
    groups = [group[["small", "large"]].to_numpy() for _, group in both.groupby("attention")]
    draws = []
    for _ in range(DRAWS):
        small, large = np.concatenate(
            [groups[i] for i in rng.integers(len(groups), size=len(groups))]).T
        if np.ptp(small) and np.ptp(large):  # in equal numbers there is no order
            draws.append(stats.spearmanr(small, large).statistic)
    rho = stats.spearmanr(both["small"], both["large"]).statistic
    return rho, *np.percentile(draws, (2.5, 97.5)), np.mean(np.array(draws) <= 0.5)


def main():
    cfg = configure(LargerConfig)
    folder = HERE / "windows"
    small = pd.read_csv(folder / "results.csv")
    large = pd.concat(map(collect, cfg.files)) if cfg.files else pd.read_csv(folder / "larger.csv")

    figure = plot.new_figure(figsize=(12, 4), layout="constrained")
    shown = [asked for asked in COMPARED if asked[1] > 1]  # what lies beyond the training length
    axes = dict(zip(shown, figure.subplots(1, len(shown)), strict=True))
    for measure, times in COMPARED:
        both = pairs(small, large, measure, times)
        rho, low, high, p = rank_correlation(both)
        title = f"{measure} at {times}x: rho = {rho:.2f} ({low:.2f} to {high:.2f})"
        print(f"\n{title}, p = {p:.3f}, {len(both)} rows of {both['attention'].nunique()} "
              "attentions")
        # the best has rank 1
        ranks = both[["small", "large"]].rank(ascending=measure == "loss")
        print(both[["small", "large"]].round(3).join(ranks, rsuffix=", rank")
              .sort_values("small, rank").to_string())
        if axis := axes.get((measure, times)):
            axis.scatter(both["small"], both["large"], s=14)
            for name, row in both.iterrows():
                axis.annotate(name.replace("|", ", "), (row["small"], row["large"]), fontsize=6,
                              xytext=(3, 2), textcoords="offset points")
            axis.set(title=title, xlabel="0.15 M parameters", ylabel="1.2 M parameters")
    if cfg.out:
        with atomic_write(Path(cfg.out) / "larger.csv", "w") as file:
            large.to_csv(file, index=False)
        plot.save(figure, Path(cfg.out) / "larger.png")


if __name__ == "__main__":
    launch(main)
