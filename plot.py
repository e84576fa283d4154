"""
Draw the paper's figures from result files, and print a table of what was measured.

    python plot.py all out/quick                        the table, and every figure that has data
    python plot.py learning_curves out/a_softmax out/b  one figure of some runs
    python plot.py table out/                           only the table, with standard errors

Figures, with their numbers in the paper: fading (1), p_n (2), z_max (3), learning_curves (4),
posloss (5), niah and retrieval (6), needle_scores (7), top_scores (8); and of our own: readout (why
needles are missed) and learned_s. fading and z_max need no results. Logs of fine-tuning are left
out if there are logs of pretraining. Pictures are saved in --out, or by default in the first folder
of results.

lib/rows.py turns result files into rows, and rows into curves. A curve is one line in a figure.
"""
import math
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib import checkpoint
from lib.config import configure
from lib.readout import KINDS_OF_MISS
from lib.rows import LINES, READOUT, VARIANTS, common_rope, common_task, curves_of, load
from lib.runtime import UserError, atomic_write, launch
from lib.tasks import OF_NEEDLES

FEW = 4  # bands are drawn for at most this many curves in a panel: more would cover each other
LEGEND_WIDTH = 56  # characters; longer labels are wrapped
matplotlib.rcParams.update({
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight",
    "font.size": 8, "figure.labelsize": 8, "axes.titlesize": 8,
    "axes.grid": True, "grid.alpha": 0.25, "legend.edgecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False,
})


@dataclass(frozen=True)
class PlotConfig:
    # arguments
    files: tuple = ()  # name of a figure, all or table; then folders or files of results
    # output
    out: str = ""  # folder for the pictures; empty: the first folder of results, or out


# --- what figures share -------------------------------------------------------------------------
def draw(curves, axis=None, name="y"):
    """
    Draw the mean over the seeds of each curve, with a band if there are few curves.

    name: the attribute of the rows that is drawn, {x: y}. Returns the axis.
    """
    axis = axis or Figure().subplots()
    for rows, style in curves:
        seeds = [getattr(row, name) for row in rows if getattr(row, name)]
        if not seeds:  # no minus_a, because there is no run of (a) to compare with
            continue
        x = sorted(set.intersection(*map(set, seeds)))
        step = max(1, len(x) // 100)  # each point is the mean of `step` updates, which are noisy
        x = x[:len(x) // step * step]
        y = np.array([[seed[i] for i in x] for seed in seeds])
        x = np.reshape(x, (-1, step)).mean(1)
        y = y.reshape(len(y), -1, step).mean(2)
        axis.plot(x, y.mean(0), **style)
        if len(curves) <= FEW:
            draw_band(axis, x, y, rows[0].error, style["color"])
    return axis


def draw_band(axis, x, y, error, color):
    """Draw a band around y (seeds, x): the range of several seeds, or two standard errors of one.
    """
    # `finish` puts these labels into the legend's title. The "_" keeps matplotlib from listing them
    # beside the curves.
    if len(y) > 1:
        low, high, label = y.min(0), y.max(0), "_band: range of the seeds"
    elif error:
        two = 2 * np.array([error.get(i, 0) for i in x])
        low, high, label = y[0] - two, y[0] + two, "_band of one seed: ± 2 standard errors"
    else:
        return
    axis.fill_between(x, low, high, color=color, alpha=0.15, lw=0, label=label)


def finish(axis, curves=(), notes="", **labels):
    """Set the labels of the axes and put a legend beside the axis. Return the figure."""
    axis.set(**labels)
    bands = dict.fromkeys(band.get_label()[1:] for band in axis.collections)
    rows = [row for rows, _ in curves for row in rows]
    lines = [common_task(rows), notes, *bands, common_rope(rows)]
    handles, names = axis.get_legend_handles_labels()
    axis.legend(handles, map(wrap, names), title="\n".join(map(wrap, filter(None, lines))),
                alignment="left", loc="center left", bbox_to_anchor=(1, 0.5))
    return axis.figure


def wrap(text):
    """Return `text` in lines that are short enough for a legend."""
    return "\n".join(textwrap.fill(line, LEGEND_WIDTH) for line in text.splitlines())


def span(curves, name):
    """Return "200", or "100 to 200" if the rows differ in the attribute `name`."""
    values = {getattr(row, name) for rows, _ in curves for row in rows}
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def share_label(curves):
    """Return the axis label for shares of right answers."""
    of_needles = all(row.task in OF_NEEDLES for rows, _ in curves for row in rows)
    return "needles found (all digits)" if of_needles else "answers found (all of it right)"


def token_axis(axis, curves):
    """Make x a logarithmic axis of tokens and mark the training lengths on it."""
    axis.set_xscale("log", base=2)  # training lengths are powers of two
    axis.xaxis.set_major_formatter("{x:,.0f}")
    for block in sorted({rows[0].block_size for rows, _ in curves}):
        axis.axvline(block, color="0.4", linestyle=":", label=f"training length {block:,}")


def lines_of_seeds(axis, curves):
    """Draw each curve's mean by context size, with a dot for each seed."""
    for i, (rows, style) in enumerate(curves):
        x = np.array(list(rows[0].y))
        y = np.array([list(row.y.values()) for row in rows])
        axis.plot(x, y.mean(0), linewidth=2, **style)
        # the dots of the curves are drawn side by side, so that none hides another
        beside = x * 2 ** (0.2 * ((i + 0.5) / len(curves) - 0.5))
        axis.plot(beside, y.T, "o", color=style["color"], markersize=3, alpha=0.7)
    token_axis(axis, curves)


def save(figure, path):
    """Write a picture, all or nothing: if the disk is full, the old picture stays."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png")
    print(path)


# --- figures: name(curves) -> a matplotlib figure, or None if no curve has what it shows --------
def fading(curves):
    """Fig. 1: the largest weight under softmax and SSMax, if one logit is +3 and all others -2."""
    axis = Figure().subplots()
    n = np.logspace(0.5, 5, 200)
    for variant, factor in (("softmax", 1.0), ("ssmax", 0.43 * np.log(n))):
        # one logit is 5 above the n - 1 others
        weight = 1 / (1 + (n - 1) * np.exp(-5 * factor))
        label, color = VARIANTS[variant]
        axis.plot(n, weight, color=color, label=label)
    return finish(axis, notes="SSMax: s = 0.43", xscale="log", xlabel="number of keys n",
                  ylabel="largest attention weight")


def p_n(curves):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    # p_n is read from the checkpoint, because the log does not have it. A log without its
    # checkpoint is left out.
    shown = [(rows, style) for rows, style in curves if rows[0].f == "p_n"]
    runs = [row for rows, _ in shown for row in rows]
    runs = [row for row in runs if row.path.with_name("ckpt.pt").exists()]
    if not runs:
        return None
    axis = Figure().subplots()
    # up to 0.8 only, because the yellow at the end of this map is hard to see on white
    colors = matplotlib.colormaps["plasma"](np.linspace(0, 0.8, len(runs)))
    for row, color in zip(runs, colors, strict=True):
        weights = checkpoint.load(row.path.parent)["model"]
        # A run that switched to p_n and was killed: its log is past the switch, and its last
        # checkpoint is from before it.
        if "p_n" not in weights:
            continue
        p = weights["p_n"].numpy()
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color)
        for first, line in ((1, ":"), (4, "-")):
            fitted, y = n[first - 1:], p[first - 1:]
            log = np.log(fitted)
            a1, a2 = np.polyfit(log, y, 1)
            label = None
            if first == 4:
                r2 = np.corrcoef(log, y)[0, 1] ** 2
                fit = f"{row.path.parent.name}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r2:.2f}"
                label = ", ".join([fit, *row.marks])
            axis.plot(fitted, a1 * log + a2, line, color=color, label=label)
    if not axis.lines:
        return None
    return finish(axis, shown, "line: fit to n ≥ 4; dotted: to all n", xscale="log",
                  xlabel="number of keys n", ylabel="$p_n$")


def z_max(curves):
    """
    Fig. 3: the weight of the logit z_max among the n - 1 others 0, 1/(n-2), ..., 1. With SSMax it
    has to be 1/s above them to get the attention, at any n.
    """
    axis = Figure().subplots()
    z = np.linspace(0, 12, 400)
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        # n^(s z) with s = 1 / log n is e^z: softmax
        for variant, s in (("softmax", 1 / np.log(n)), ("ssmax", 0.43), ("ssmax_s1", 1)):
            others = np.linspace(0, 1, n - 1)[:, None]
            weight = 1 / (1 + np.exp(s * np.log(n) * (others - z)).sum(0))
            label, color = VARIANTS[variant]
            axis.plot(z, weight, line, color=color, label=f"{label}, n = {n:,}")
    return finish(axis, notes="(b): s = 0.43", xlabel="$z_{max}$", ylabel="weight of $z_{max}$")


def learning_curves(curves):
    """
    Fig. 4: training and validation loss; the same enlarged; the training loss minus that of (a) on
    the same batches.
    """
    panels = [("y", "loss"), ("y", "loss, enlarged")]
    if any(row.minus_a for rows, _ in curves for row in rows):
        panels.append(("minus_a", "minus (a)"))
    figure = Figure(figsize=(5.6, 0.6 + 1.6 * len(panels)))
    axes = figure.subplots(len(panels), sharex=True)
    for axis, (name, label) in zip(axes, panels, strict=True):
        if name == "y":
            for rows, style in curves:
                for row in rows:  # dots for each seed: validations are too few for a line
                    axis.plot(row.val.keys(), row.val.values(), "o", ms=2.5, color=style["color"])
        draw(curves, axis, name)
        axis.set_ylabel(label)
    # These axes show the range of the last 60 % of the updates. With the high losses of the start
    # all later ones would look flat.
    for axis in axes[1:]:
        x, y = np.concatenate([line.get_xydata() for line in axis.lines]).T
        late = y[x >= 0.4 * x.max()]
        margin = 0.1 * np.ptp(late) or 0.1
        axis.set_ylim(late.min() - margin, late.max() + margin)
    axes[-1].set_xlabel("update")
    notes = "loss in nats per token\nlines: training; dots: validation"
    return finish(axes[0], curves, notes)


def posloss(curves):
    """Fig. 5: test loss by position. The point at n is the mean over the last n/10 positions."""
    axis = draw(curves)
    token_axis(axis, curves)
    return finish(axis, curves, f"{span(curves, 'n')} windows per seed",
                  xlabel="position (tokens)", ylabel="test loss (nats per token)")


def niah(curves):
    """
    Fig. 6: share of needles (or answers of another task) found, by depth and context size. One
    panel for each curve, which shows the mean over the seeds.
    """
    across = min(len(curves), 4)  # more panels in a row are too small to read
    down = math.ceil(len(curves) / 4)
    figure = Figure(figsize=(2.4 * across + 1, 1.9 * down + 0.6), layout="constrained")
    for i, (rows, style) in enumerate(curves, 1):
        axis = figure.add_subplot(down, across, i)
        shares = np.mean([row.grid for row in rows], axis=0)
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")  # one scale for all panels
        for (y, x), share in np.ndenumerate(shares):
            color = "white" if share < 0.6 else "black"  # cells with low shares are dark
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6, color=color)
        sizes, depths = rows[0].y, rows[0].depths
        axis.set_xticks(range(len(sizes)), [f"{n:,}" for n in sizes], rotation=45)
        axis.set_yticks(range(len(depths)), [f"{depth:g} %" for depth in depths])
        axis.set_title(textwrap.fill(style["label"], 36))  # as wide as a panel
        axis.grid(False)
    all_rows = [row for rows, _ in curves for row in rows]
    texts = ["context size (tokens)", common_task(all_rows),
             f"{span(curves, 'n')} samples per cell and seed", common_rope(all_rows)]
    figure.supxlabel("; ".join(filter(None, texts)))
    if any(row.depths for row in all_rows):
        figure.supylabel("depth of what is asked for")
    figure.colorbar(image, ax=figure.axes, label=f"share of {share_label(curves)}")
    return figure


def retrieval(curves):
    """Fig. 6 as lines: share of needles found by context size, mean over depths; dots: seeds."""
    axis = Figure().subplots()
    lines_of_seeds(axis, curves)
    notes = f"line: mean of the seeds\ndot: one seed, {span(curves, 'samples')} samples"
    return finish(axis, curves, notes, xlabel="context size (tokens)", ylabel=share_label(curves))


def needle_scores(curves):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    axis = draw(curves)
    axis.locator_params(axis="x", integer=True)
    return finish(axis, curves, xlabel="head, by rank", ylim=(-0.02, 1.02),
                  ylabel=f"needle score at {span(curves, 'size')} tokens")


def top_scores(curves):
    """Fig. 8: the top needle scores of the trials of all seeds, in falling order. Markers show how
    much of the answer was right."""
    axis = Figure().subplots()
    for rows, style in curves:
        trials = [trial for row in rows for trial in row.trials]
        trials.sort(key=lambda trial: -trial["top"])
        rank = 100 * (np.arange(len(trials)) + 0.5) / len(trials)  # in percent of the trials
        axis.plot(rank, [trial["top"] for trial in trials], linewidth=0.8, **style)
        for x, trial in zip(rank, trials, strict=True):
            marker = "o" if trial["exact"] else "^" if trial["first"] else "x"
            filled = "full" if trial["exact"] else "none"
            axis.plot(x, trial["top"], marker, color=style["color"], ms=3, fillstyle=filled)
    notes = (f"{span(curves, 'n')} trials per seed\n"
             "● all right, △ only the beginning, × the beginning is wrong")
    return finish(axis, curves, notes, xlabel="trials by rank (%)", ylim=(-0.02, 1.02),
                  ylabel=f"top needle score at {span(curves, 'size')} tokens")


def readout(curves):
    """
    Why needles are missed: how often a retrieval head ranks the needle first, the weight that these
    heads put on it, its share of the best head's output, the effective number of keys, and the
    kinds of misses (see lib/readout.py).
    """
    figure = Figure(figsize=(5.6, 9))
    axes = figure.subplots(5, sharex=True)
    names = "ranked_first", "weight", "share", "effective"
    for axis, name in zip(axes, names, strict=False):
        draw(curves_of_readout(name, curves, marker="."), axis)
    draw(curves_of_readout("chance", curves, linestyle=":", label=None), axes[0])
    draw_misses(axes[4], curves)
    for axis in axes:
        token_axis(axis, curves)
    axes[0].set(ylabel="needle ranked first\n(share of trials)", ylim=(-0.02, 1.02))
    axes[1].set(ylabel="weight on the needle\n(mean of the heads)", ylim=(-0.02, 1.02))
    axes[2].set(ylabel="needle's share\nof the output", ylim=(0, None))
    axes[3].set_yscale("log", base=2)
    axes[3].yaxis.set_major_formatter("{x:,.0f}")
    axes[3].set_ylabel("effective keys")
    axes[4].set(ylabel="misses\n(share of trials)", xlabel="context size (tokens)")
    notes = f"{span(curves, 'n')} trials per seed\ndotted: ranked first by chance"
    return finish(axes[0], curves, notes)


def curves_of_readout(name, curves, **style):
    """Return the curves with the part `name` of the readout as their y, and with `style`."""
    changed = []
    for rows, own in curves:
        measured = [row.tables[READOUT[name]] for row in rows]
        rows = [replace(row, y=y, error=error)
                for row, (y, error) in zip(rows, measured, strict=True)]
        changed.append((rows, own | style))
    return changed


def draw_misses(axis, curves):
    """Draw the misses by context size as bars, one for each curve, divided into their kinds."""
    hatches = dict(zip(KINDS_OF_MISS, ("xxxxx", "/////", "", "....."), strict=True))
    all_sizes = sorted({size for rows, _ in curves for size in rows[0].y})
    octaves = min([1, *np.diff(np.log2(all_sizes))])  # the smallest step from size to size
    # The axis is logarithmic, so widths are in octaves: a bar from x ends at x * 2**width. The bars
    # of one size stand side by side, centred on the size.
    width = 0.7 * octaves / len(curves)
    for i, (rows, style) in enumerate(curves):
        sizes = np.array(sorted(rows[0].y))
        left = sizes * 2 ** (width * (i - len(curves) / 2))
        widths = left * 2**width - left
        bottom = np.zeros(len(sizes))
        for kind, hatch in hatches.items():
            shares = [[row.tables[READOUT[kind]][0][size] for size in sizes] for row in rows]
            height = np.mean(shares, axis=0)
            shown = height > 0  # a bar of height 0 would be drawn as a line
            axis.bar(left[shown], height[shown], widths[shown], bottom[shown], align="edge",
                     hatch=hatch, edgecolor=style["color"],
                     facecolor="white" if hatch else style["color"])
            bottom += height
    patches = [Patch(facecolor="white" if hatch else "0.4", edgecolor="0.4", hatch=hatch)
               for hatch in hatches.values()]
    axis.legend(patches[::-1], [*hatches][::-1], alignment="left",
                title="kinds of misses; the bars stand\nin the order of the legend above",
                loc="center left", bbox_to_anchor=(1, 0.5))


def learned_s(curves):
    """
    The learned s at the end of each run, by layer, with a dot for each head. Each f(n) has a panel
    of its own, because values of s that multiply different f(n) cannot be compared. So has f(n)
    with a fixed b beside it, as in 1 + s log n.
    """
    panels = {}
    for rows, style in curves:
        # {layer: s of its heads} of each run; a run of (f) has none before its switch
        runs = [row.s for row in rows if row.s]
        if runs:
            panels.setdefault(rows[0].f, []).append((rows, runs, style))
    if not panels:
        return None
    figure = Figure(figsize=(5.6, 3.7 if len(panels) == 1 else 2.2 * len(panels)))
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    deepest = max(layer for shown in panels.values() for _, runs, _ in shown for layer in runs[0])
    markers = dict(zip(LINES, "os^v", strict=True))  # dots cannot have the line style of a curve
    for axis, (f, shown) in zip(axes, panels.items(), strict=True):
        for i, (_, runs, style) in enumerate(shown):
            s = np.array([[*of_layers.values()] for of_layers in runs])  # (runs, layers, heads)
            layers = np.array([*runs[0]])
            x = layers[:, None] + 0.6 * ((i + 0.5) / len(shown) - 0.5)  # curves side by side
            marker = markers[style["linestyle"]]
            axis.plot(np.broadcast_to(x, s.shape).ravel(), s.ravel(), marker, ms=3,
                      color=style["color"], label=style["label"])
        if f == "log_n":  # with s = 1 / log(block), SSMax equals softmax at n = block
            for block in sorted({rows[0].block_size for rows, _, _ in shown}):
                axis.axhline(1 / math.log(block), color="0.4", linestyle=":",
                             label=f"1 / log {block:,}")
        which = f"\n(f: {f})" if len(panels) > 1 else ""
        finish(axis, curves, ylabel="s of each head" + which)
    axes[-1].set(xlabel="layer", xticks=range(1, deepest + 1), xlim=(0.5, deepest + 0.5))
    return figure


# --- the table ----------------------------------------------------------------------------------
def plus_minus(values, error=None):
    """
    Return "mean ± standard error" over the seeds, with two digits of the error.

    error: the standard error of a single seed; None if it has none.
    """
    mean = float(np.mean(values))
    if len(values) > 1:
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    if not error:  # None, or 0 because all seeds agree: then up to four decimals are printed
        text = f"{mean:,.4f}".rstrip("0").rstrip(".")
        return text if error is None else f"{text} ± 0"
    digits = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def table(by_kind):
    """Print what was measured: for each curve a line with mean ± standard error, and its folders.
    """
    print("mean ± standard error: over the seeds; for a single seed, over its windows or samples")
    for curves in by_kind.values():
        for title in sorted({title for rows, _ in curves for title in rows[0].tables}):
            measured = [(rows, style) for rows, style in curves if title in rows[0].tables]
            print_table(title, measured)


def print_table(title, curves):
    """Print one table: a line for each curve, and a column for each size or name."""
    all_rows = [row for rows, _ in curves for row in rows]
    columns = set()
    for row in all_rows:
        numbers, _ = row.tables[title]
        columns.update(numbers)
    # Sizes in rising order. Names are ordered by their length, so that "1x" comes before "16x".
    columns = sorted(columns, key=lambda column: (len(str(column)), column))
    heads = [column if isinstance(column, str) else f"{column:,}" for column in columns]
    lines = [heads]
    for rows, _ in curves:
        lines.append([cell(rows, title, column) for column in columns])
    widths = [max(16, 2 + max(map(len, texts))) for texts in zip(*lines, strict=True)]
    lines = ["".join(map(str.rjust, line, widths)) for line in lines]
    labels = [style["label"].replace("$", "") for _, style in curves]
    width = max(map(len, labels))
    print("\n" + ", ".join(filter(None, [title, common_task(all_rows)])))
    print(" " * width + lines[0])
    for label, line, (rows, _) in zip(labels, lines[1:], curves, strict=True):
        paths = [path for row in rows for path in (row.path, *row.joined)]
        folders = dict.fromkeys(str(path.parent) for path in paths)
        print(f"{label:{width}}{line}", " ", *folders)


def cell(rows, title, column):
    """
    Return one number of a table as text, with the number of seeds if it was not measured for all of
    them; "-" if it was measured for none.
    """
    values, errors = [], []
    for row in rows:
        numbers, error = row.tables[title]
        if column in numbers:
            values.append(numbers[column])
            errors.append(error.get(column))
    if not values:
        return "-"
    missing = f" (of {len(values)})" if len(values) < len(rows) else ""
    return plus_minus(values, errors[0]) + missing


FIGURES = {  # {figure: the kind of result files that it reads; "": it reads none}
    fading: "", p_n: "log", z_max: "", learning_curves: "log", posloss: "posloss", niah: "niah",
    retrieval: "niah", needle_scores: "needle", top_scores: "needle", readout: "readout",
    learned_s: "log"}


def check_one_experiment(inputs, rows):
    """Raise a UserError for a folder with the runs of several experiments: a figure of all of them
    could not be read."""
    for folder in filter(Path.is_dir, map(Path, inputs)):
        for kind in dict.fromkeys(row.kind for row in rows):
            experiments = {row.path.parent.parent for row in rows
                           if row.kind == kind and row.path.is_relative_to(folder)}
            if len(experiments) > 1:
                first, *_, last = sorted(map(str, experiments))
                raise UserError(f"{folder} holds {kind} results of {len(experiments)} experiments "
                                f"({first} ... {last}): name one of them, such as {last}, or some "
                                f"of its runs, instead of {folder}")


def folder_for(cfg, inputs):
    """Return the folder for the pictures: --out, or the first folder of results."""
    return Path(cfg.out or next(filter(Path.is_dir, map(Path, inputs)), "out"))


def no_results(what, inputs):
    """Return the UserError for inputs without results for the asked figure or table."""
    advice = "name folders in which train.py or an evaluation has written its files"
    if not inputs:
        return UserError(f"{what} needs results: {advice}")
    return UserError(f"{' '.join(inputs)}: there are no results that {what} could show; {advice}")


def main():
    cfg = configure(PlotConfig)
    what, *inputs = cfg.files or ("",)
    names = [figure.__name__ for figure in FIGURES]
    if what not in ("all", "table", *names):
        raise UserError(f"name all, table or a figure ({', '.join(names)}), then folders of "
                        "results")
    rows = load(inputs)
    if inputs and not rows and what in ("all", "table"):
        raise no_results(what, inputs)
    asked = {make: kind for make, kind in FIGURES.items() if what in ("all", make.__name__)}
    check_one_experiment(inputs, [row for row in rows if row.kind in asked.values()])
    by_kind = curves_of(rows)
    drawn = []
    for make, kind in asked.items():
        if kind and kind not in by_kind:
            continue
        figure = make(by_kind.get(kind))  # a figure without a kind ignores its argument
        if figure:
            drawn.append(figure)
            save(figure, folder_for(cfg, inputs) / f"{make.__name__}.png")
    if what in ("all", "table") and by_kind:
        table(by_kind)
    elif not drawn:
        raise no_results(what, inputs)


if __name__ == "__main__":
    launch(main)
