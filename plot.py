"""
Draw the paper's figures from result files, and print a table of what was measured.

    python plot.py all out/quick                        the table, and every figure that has data
    python plot.py learning_curves out/a_softmax out/b  one figure of some runs
    python plot.py grad_norm out/                       any measure of the logs or an evaluation
    python plot.py table out/                           only the table, with intervals
    python plot.py table out/ --out=out                 the same, and its numbers in out/table.csv

Figures, with their numbers in the paper: fading (1), p_n (2), z_max (3), learning_curves (4),
posloss (5), niah and retrieval (6), needle_scores (7), top_scores (8); and of our own:
needle_weight (the weight on the needle and its rank by context size). fading and z_max are computed
from formulas, so `all` draws them only without results. Pictures are saved in --out, or by default
in the first folder of results.

lib/results.py turns result files into the table from which every figure is drawn.
"""
import itertools
import json
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lib import results
from lib.config import configure, did_you_mean
from lib.errors import UserError, explain, launch
from lib.results import VARIANTS, labels_of, over_seeds
from lib.storage import atomic_write

STYLE = {
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight",
    "font.size": 8, "figure.labelsize": 8, "axes.titlesize": 8,
    "axes.grid": True, "grid.alpha": 0.25, "legend.edgecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False}
# colours of variants that lib/results.py has none for
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00")
LINE_STYLES = ("-", "--", "-.", ":")  # line styles of the lines of one colour
X_LABELS = {"tokens": "context size (tokens)", "position": "position (tokens)", "update": "update",
            "rank": "head, by rank"}


@dataclass(frozen=True)
class PlotConfig:
    # arguments
    files: tuple = ()  # name of a figure or measure, all or table; then folders or files of results
    # output
    baseline: str = "softmax"  # variant or line from which the differences are taken
    out: str = ""  # folder for pictures and table.csv; empty: the first folder of results, or out
    format: Literal["png", "svg", "pdf"] = "png"  # of the pictures
    title: str = ""  # a line above the picture

    def __post_init__(self):
        if self.files[:1] == ("table",) and self.title:
            raise ValueError("table draws no picture: leave --title out")

    EFFECTIVE_IF = {"baseline": "len(files) > 1", "format": "files[:1] != ('table',)"}


# -----------------------------------------------------------------------------
# what figures share


def new_figure(**options):
    """Return an empty figure in the style of all figures. options: those of matplotlib's Figure."""
    matplotlib.rcParams.update(STYLE)
    return Figure(**options)


def select(rows, measure, unit="tokens"):
    """Return the rows of a measure."""
    return rows[(rows["measure"] == measure) & (rows["unit"] == unit)]


def with_difference(rows, measure, unit):
    """Return {label: rows} of a measure, and of its difference from the baseline if there is one.
    """
    is_shown = (rows["measure"] == measure) | rows["measure"].str.startswith(f"{measure} minus ")
    return dict(iter(rows[is_shown & (rows["unit"] == unit)].groupby("measure")))


def styles_of(rows):
    """Return {line: its colour, line style and label for matplotlib}, of all lines of a table."""
    lines = rows.drop_duplicates("line").set_index("line")
    colors = {variant: color for variant, (_, color) in VARIANTS.items()}
    others = [variant for variant in lines["variant"].unique() if variant not in colors]
    colors |= zip(others, itertools.cycle(PALETTE), strict=False)
    numbers = lines.groupby(lines["variant"].map(colors)).cumcount()  # of the lines of a colour
    styles = {}
    for line, label in labels_of(rows).items():
        styles[line] = {
            "color": colors[lines["variant"][line]],
            "linestyle": LINE_STYLES[numbers[line] % len(LINE_STYLES)],
            "label": label}
    return styles


def draw_panels(table, panels, note="", height=2.9, ylim=None):
    """
    Return a figure with a panel for each measure above each other, or None if there is nothing.

    table: of all results, which gives the lines their styles. panels: {label: rows of one measure}.
    note: text above the legend. height: of a panel in inches.
    """
    panels = {label: rows for label, rows in panels.items() if len(rows)}
    if not panels:
        return None
    figure = new_figure(figsize=(5.6, 0.8 + height * len(panels)))
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axis, (label, rows) in zip(axes, panels.items(), strict=True):
        draw(axis, rows, styles_of(table))
        unit = rows["unit"].iloc[0]
        if unit in ("tokens", "position"):
            axis.set_xscale("log", base=2)  # training lengths are powers of two
            axis.xaxis.set_major_formatter("{x:,.0f}")
            for block in sorted(rows["block"].dropna().unique()):
                axis.axvline(block, color="0.4", linestyle=":", label=f"trained on {block:,.0f}")
        axis.set(xlabel=X_LABELS[unit] if axis is axes[-1] else "", ylabel=textwrap.fill(label, 40))
        if ylim:  # even None would keep the limits from what is drawn later
            axis.set_ylim(ylim)
    return add_legend(figure, f"line: mean of the seeds; faint: each seed,\n"
                      f"or the 95 % interval of a single one\n{note}".strip())


def draw(axis, rows, styles):
    """Draw the lines of one measure: the mean over the seeds, and each seed, as dots or (beyond 20
    points) thin lines. The mean ends with the shortest seed. A single seed has the interval of its
    prompts."""
    for line, style in styles.items():
        line_rows = rows[rows["line"] == line].sort_values("tokens")
        if len(line_rows):
            seeds = line_rows.pivot(index="tokens", columns="seed", values="value")
            cells, is_curve = over_seeds(line_rows).loc[line], len(seeds) > 20
            if is_curve:  # the mean would jump where a seed ends
                cells = cells[cells["n"] == cells["n"].max()]
            axis.plot(cells.index, cells["mean"], **style)
            axis.plot(seeds.index, seeds, "-" if is_curve else "o", color=style["color"], ms=2.5,
                      lw=0.5, alpha=0.4)
            if seeds.shape[1] == 1:
                low, high = cells["mean"] - cells["half"], cells["mean"] + cells["half"]
                axis.fill_between(cells.index, low, high, color=style["color"], alpha=0.15, lw=0)


def labelled(figure):
    """Return {label: line} of all axes of a figure."""
    return {line.get_label(): line for axis in figure.axes
            for line in axis.get_legend_handles_labels()[0]}


def add_legend(figure, note=""):
    """Put a legend of all lines beside the first axis. Return the figure."""
    lines = labelled(figure)
    figure.axes[0].legend(lines.values(), lines, title=note, alignment="left", loc="upper left",
                          bbox_to_anchor=(1, 1))
    return figure


def save(figure, path):
    """Write a picture, all or nothing: if the disk is full, the old picture stays."""
    advice = "matplotlib cannot draw --title or the name of a line; between two $ must be a formula"
    with atomic_write(path) as file, explain(advice, ValueError):
        figure.savefig(file, format=path.suffix[1:])
    print(path)


# -----------------------------------------------------------------------------
# Figures. Each function gets the table of results, and returns a figure of matplotlib, or None if
# the table has nothing to draw.


def fading(rows):
    """Fig. 1: the largest weight under softmax and SSMax, if one logit is +3 and all others -2."""
    axis = new_figure().subplots()
    n = np.logspace(0.5, 5, 200)
    for variant, factor in (("softmax", 1.0), ("ssmax", 0.43 * np.log(n))):
        # one logit is 5 above the n - 1 others
        weight = 1 / (1 + (n - 1) * np.exp(-5 * factor))
        name, color = VARIANTS[variant]
        axis.plot(n, weight, color=color, label=name)
    axis.set(xscale="log", xlabel="number of keys n", ylabel="largest attention weight")
    return add_legend(axis.figure, "SSMax: s = 0.43")


def z_max(rows):
    """
    Fig. 3: the weight of the logit z_max among the n - 1 others 0, 1/(n-2), ..., 1. With SSMax it
    has to be 1/s above them to get the attention, at any n.
    """
    axis = new_figure().subplots()
    z = np.linspace(0, 12, 400)
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        # n^(s z) with s = 1 / log n is e^z: softmax
        for variant, s in (("softmax", 1 / np.log(n)), ("ssmax", 0.43), ("ssmax_s1", 1)):
            others = np.linspace(0, 1, n - 1)[:, None]
            weight = 1 / (1 + np.exp(s * np.log(n) * (others - z)).sum(0))
            name, color = VARIANTS[variant]
            axis.plot(z, weight, line, color=color, label=f"{name}, n = {n:,}")
    axis.set(xlabel="$z_{max}$", ylabel="weight of $z_{max}$")
    return add_legend(axis.figure, "(b): s = 0.43")


def p_n(rows):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    axis, runs = new_figure().subplots(), []
    for path in rows.loc[rows["unit"] == "end", "path"].unique():
        settings = json.loads(path.with_suffix(".json").read_text())["settings"]
        # the log does not have p_n
        if "pn" in settings.values():
            from lib import checkpoint

            saved = checkpoint.checkpoints_in(path.parent)
            weights = checkpoint.load(path.parent)["model"] if saved else {}
            if "p_n" in weights:  # killed before it was swapped in, a run has none
                runs.append((path.parent.name, weights["p_n"].numpy()))
    # up to 0.8 only, because the yellow at the end of this map is hard to see on white
    colors = matplotlib.colormaps["plasma"](np.linspace(0, 0.8, len(runs)))
    for (name, p), color in zip(runs, colors, strict=True):
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color)
        for first, line in ((1, ":"), (4, "-")):
            log, y = np.log(n[first - 1:]), p[first - 1:]
            a1, a2 = np.polyfit(log, y, 1)
            r2 = np.corrcoef(log, y)[0, 1] ** 2
            axis.plot(n[first - 1:], a1 * log + a2, line, color=color,
                      label=f"{name}, n ≥ {first}: {a1:.3f} log n {a2:+.3f}, "
                            f"R² = {r2:.2f}")
    axis.set(xscale="log", xlabel="number of keys n", ylabel="$p_n$")
    return add_legend(axis.figure) if runs else None


def learning_curves(rows):
    """
    Fig. 4: training and validation loss; the same enlarged; the training loss minus that of the
    baseline on the same batches. Logs of fine-tuning are drawn if there are no others.
    """
    kind = "" if len(select(rows, "loss", "update")) else "fine-tuning "
    panels = with_difference(rows, f"{kind}loss", "update")
    if not panels:
        return None
    loss = panels.pop(f"{kind}loss")
    # beside the high losses of the beginning all later ones would look flat
    begin = 0.4 * loss["tokens"].max()
    late = {label: part[part["tokens"] >= begin]
            for label, part in {"loss, enlarged": loss, **panels}.items()}
    figure = draw_panels(rows, {f"{kind}loss": loss} | late,
                         "loss in nats per token\ndots: validation", height=1.6)
    styles = styles_of(rows)
    validation = select(rows, f"{kind}val_loss", "update")
    late_validation = validation[validation["tokens"] >= begin]
    for axis, shown in zip(figure.axes, (validation, late_validation), strict=False):
        for line, line_rows in shown.groupby("line"):
            axis.plot(line_rows["tokens"], line_rows["value"], "o", ms=2.5,
                      color=styles[line]["color"])
    return figure


def posloss(rows):
    """
    Fig. 5: loss by position, and the same minus that of the baseline. The point at n is the mean
    over the last n/10 positions.
    """
    by_position = rows[rows["unit"] == "position"].groupby("measure")
    return draw_panels(rows, dict(iter(by_position)), "nats per token")


def answers(rows):
    """Return the measures of right answers: needles, and those of other tasks."""
    measures = rows["measure"]
    return measures[measures.str.fullmatch(r"needles( among \d+ others)?|\w+ answers")].unique()


def niah(rows):
    """
    Fig. 6: share of needles (or answers of another task) found, by depth and context size. One
    panel for each line, which shows the mean over the seeds.
    """
    cells = rows[(rows["unit"] == "depth") & rows["measure"].isin(answers(rows))]
    panels = list(cells.groupby(["measure", "line"], sort=False))
    if not panels:
        return None
    across = min(len(panels), 4)  # more panels in a row are too small to read
    down = math.ceil(len(panels) / 4)
    width = max(2.4, 0.28 * cells["tokens"].nunique())  # of a panel, in inches
    figure = new_figure(figsize=(width * across + 1, 1.9 * down + 0.6), layout="constrained")
    for i, ((measure, line), line_rows) in enumerate(panels, 1):
        axis = figure.add_subplot(down, across, i)
        shares = line_rows.pivot_table(index="depth", columns="tokens", values="value")
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")  # one scale for all panels
        for (y, x), share in np.ndenumerate(shares):
            color = "white" if share < 0.6 else "black"  # cells with low shares are dark
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6, color=color)
        axis.set_xticks(range(shares.shape[1]), [f"{n:,.0f}" for n in shares], rotation=45)
        axis.set_yticks(range(shares.shape[0]), [f"{depth:g} %" for depth in shares.index])
        axis.set_title(textwrap.fill(f"{line}: {measure}", 36))  # as wide as a panel
        axis.grid(False)
    figure.supxlabel("context size (tokens)")
    figure.supylabel("depth of what is asked for")
    figure.colorbar(image, ax=figure.axes, label="share found")
    return figure


def retrieval(rows):
    """Fig. 6 as lines: share of needles found by context size, mean over depths."""
    panels = {f"{measure}: share found": select(rows, measure) for measure in answers(rows)}
    return draw_panels(rows, panels, ylim=(-0.02, 1.02))


def needle_scores(rows):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    panels = dict(iter(rows[rows["unit"] == "rank"].groupby("measure")))
    return draw_panels(rows, panels, "one prompt per seed", ylim=(-0.02, 1.02))


def top_scores(rows):
    """Fig. 8: the top needle scores of the trials of all seeds, in falling order. Markers show how
    much of the answer was right."""
    trials = rows[rows["unit"] == "trial"]
    if trials.empty:
        return None
    trials = trials.pivot(index=["line", "seed", "tokens"], columns="measure", values="value")
    axis = new_figure().subplots()
    for line, style in styles_of(rows).items():
        if line not in trials.index:
            continue
        line_rows = trials.loc[line].sort_values("score", ascending=False)
        rank = 100 * (np.arange(len(line_rows)) + 0.5) / len(line_rows)
        axis.plot(rank, line_rows["score"], linewidth=0.8, **style)
        for right, marker, fill in ((2, "o", "full"), (1, "^", "none"), (0, "x", "none")):
            top = line_rows["score"].where(line_rows["right"] == right)
            axis.plot(rank, top, marker, color=style["color"], ms=3, fillstyle=fill)
    axis.set(xlabel="trials of all seeds by rank (%)", ylabel="top needle score, longest prompts",
             ylim=(-0.02, 1.02))
    return add_legend(axis.figure, "● all right, △ only the beginning, × the beginning is wrong")


def needle_weight(rows):
    """The weight that the retrieval heads put on the needle, and how often one of them ranks it
    first, by context size."""
    panels = {"weight on the needle (mean of the retrieval heads)": select(rows, "weight"),
              "needle ranked first (share of trials)": select(rows, "ranked first")}
    styles = styles_of(rows)
    figure = draw_panels(rows, panels, "dotted: ranked first by chance", height=2.1,
                         ylim=(-0.02, 1.02))
    for line, chance in select(rows, "chance").groupby("line"):
        by_tokens = chance.groupby("tokens")["value"].mean()
        figure.axes[-1].plot(by_tokens.index, by_tokens, ":", color=styles[line]["color"])
    return figure


def draw_measure(rows, measure):
    """Any measure by tokens, positions or updates, and the same minus that of the baseline."""
    unit = rows.loc[(rows["measure"] == measure) & rows["unit"].isin(X_LABELS), "unit"].iloc[0]
    return draw_panels(rows, with_difference(rows, measure, unit))


FIGURES = {figure.__name__: figure for figure in (
    fading, z_max, p_n, learning_curves, posloss, niah, retrieval, needle_scores, top_scores,
    needle_weight)}


# -----------------------------------------------------------------------------


def main():
    cfg = configure(PlotConfig)
    name, *inputs = cfg.files or ("",)
    rows = results.load(inputs, cfg.baseline)
    minus = results.MINUS + results.name_of(cfg.baseline)
    measures = set(rows["measure"])
    if name in ("all", "table", "learning_curves", "posloss"):
        shows_difference = any(measure.endswith(minus) for measure in measures)
    else:
        shows_difference = name + minus in measures
    if cfg.baseline != PlotConfig.baseline and not shows_difference:
        raise UserError(f"{name} shows no difference from {cfg.baseline}: leave --baseline out, or "
                        f"choose one of {', '.join(rows['line'].unique())}, with the same seeds "
                        "and prompts as others")
    has_axis = rows["unit"].isin(X_LABELS)
    names = ["all", "table", *FIGURES, *rows.loc[has_axis, "measure"].unique()]
    if name not in names:
        raise UserError(f"there is no figure or measure {name!r}{did_you_mean(name, names)}; name "
                        f"one of {', '.join(names)}. Then name folders of results.")
    figures = [] if name == "table" else [name]
    if name == "all":  # figures of formulas are no part of results
        figures = [each for each in FIGURES if not inputs or each not in ("fading", "z_max")]
    folders = [path for path in map(Path, inputs) if path.is_dir()]
    folder = Path(cfg.out or next(iter(folders), "out"))
    is_drawn = False
    for each in figures:
        if each in FIGURES:
            picture = FIGURES[each](rows)
        else:
            picture = draw_measure(rows, each)
        if picture:
            picture.suptitle(cfg.title)
            save(picture, folder / f"{each.replace('/', '_')}.{cfg.format}")
            is_drawn = True
    if name in ("all", "table") and len(rows):
        results.print_tables(rows)
        if name == "table" and cfg.out:
            with atomic_write(folder / "table.csv", "w") as file:
                rows[[*results.COLUMNS, "unit", "depth"]].to_csv(file, index=False)
            print(f"\n{folder / 'table.csv'}")
    elif not is_drawn:
        raise UserError(f"{' '.join(inputs) or name}: there are no results that {name} could show; "
                        "name folders with other results, from train.py or an evaluation")


if __name__ == "__main__":
    launch(main)
