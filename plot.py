"""
Draw the paper's figures from result files, and print a table of what was measured.

    python plot.py all out/quick                        the table, and every figure that has data
    python plot.py learning_curves out/a_softmax out/b  one figure of some runs
    python plot.py table out/                           only the table, with standard errors

Figures, with their numbers in the paper: fading (1), p_n (2), z_max (3), learning_curves (4),
posloss (5), niah and retrieval (6), needle_scores (7), top_scores (8); and of our own:
needle_weight (the weight on the needle and its rank by context size) and learned_s. fading and
z_max are computed from formulas, so `all` draws them only without results. Logs of fine-tuning are
left out if there are logs of pretraining. Pictures are saved in --out, or by default in the first
folder of results.

lib/results.py turns result files into curves. A curve is one line in a figure.
"""
import difflib
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.config import configure
from lib.errors import UserError, launch
from lib.storage import atomic_write

# lib.results and matplotlib are imported where they are used, so that --help does not wait for
# them.
FEW = 4  # bands are drawn for at most this many curves in a panel: more would cover each other
MEAN = "line: mean of the seeds"
BAND = "band: range of the seeds (one seed: ± 2 standard errors)"
LEGEND_WIDTH = 56  # characters; longer labels are wrapped
STYLE = {
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight",
    "font.size": 8, "figure.labelsize": 8, "axes.titlesize": 8,
    "axes.grid": True, "grid.alpha": 0.25, "legend.edgecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False}


@dataclass(frozen=True)
class PlotConfig:
    # arguments
    files: tuple = ()  # name of a figure, all or table; then folders or files of results
    # output
    out: str = ""  # folder for the pictures; empty: the first folder of results, or out


# -----------------------------------------------------------------------------
# what figures share


def new_figure(**options):
    """Return an empty figure in the style of all figures. options: those of matplotlib's Figure."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    return Figure(**options)


def style_of(curve):
    """Return colour, line style and label of a curve for matplotlib."""
    label = curve.label.replace("$", r"\$")  # two $ would be read as a formula
    if label.startswith("_"):  # matplotlib leaves such labels out of the legend
        label = f" {label}"
    return {"color": curve.color, "linestyle": curve.linestyle, "label": label}


def draw(curves, measure, axis=None):
    """
    Draw the mean over the seeds of each curve, with a band if there are few curves. Returns the
    axis.
    """
    from lib.labels import VARIANTS

    axis = axis or new_figure().subplots()
    if measure == "minus (a)":
        axis.axhline(0, color=VARIANTS["softmax"][1], linewidth=0.8)
    for curve in curves:
        seeds = curve.seeds(measure).dropna()  # what all seeds have measured
        if seeds.empty:  # no "minus (a)", because there is no run of (a) to compare with
            continue
        step = max(1, len(seeds) // 100)  # a point is the mean of so many updates, which are noisy
        seeds = seeds.iloc[:len(seeds) // step * step]
        x = seeds.index.to_numpy().reshape(-1, step).mean(1)
        y = seeds.to_numpy().reshape(len(x), step, -1).mean(1)
        axis.plot(x, y.mean(1), **style_of(curve))
        if len(curves) <= FEW:
            draw_band(axis, x, y, curve.error(measure).get(seeds.index), curve.color)
    return axis


def draw_band(axis, x, y, error, color):
    """Draw a band around y (points, seeds): the range of several seeds, or two standard errors of
    one."""
    style = {"color": color, "alpha": 0.15, "lw": 0}
    if y.shape[1] > 1:
        axis.fill_between(x, y.min(1), y.max(1), **style)
    elif error is not None and error.notna().any():
        axis.fill_between(x, y[:, 0] - 2 * error, y[:, 0] + 2 * error, **style)


def draw_seeds(axis, seeds, place=0.0, **style):
    """
    Draw the mean of `seeds`, a DataFrame with a line for each number of tokens and a column for
    each seed, and a dot for each seed. place: of the curve among the others, from 0 to 1: the dots
    of several seeds are drawn beside those of other curves, so that none hides another.
    """
    axis.plot(seeds.index, seeds.mean(axis=1), linewidth=2, **style)
    shift = 2 ** (0.2 * (place - 0.4)) if seeds.shape[1] > 1 else 1
    axis.plot(seeds.index * shift, seeds, "o", color=style["color"], markersize=2.5, alpha=0.4)


def finish(axis, curves=(), notes="", mean=MEAN, **labels):
    """
    Set the labels of the axes and put a legend beside the axis. Return the figure. mean: how the
    legend says that the seeds of a curve are averaged.
    """
    axis.set(**labels)
    if all(len(curve.results) == 1 for curve in curves):
        mean = ""
    band = BAND if axis.collections else ""
    lines = filter(None, [notes, mean, band, rope_note(curves)])
    handles, names = axis.get_legend_handles_labels()
    axis.legend(handles, map(wrap, names), title="\n".join(map(wrap, lines)),
                alignment="left", loc="upper left", bbox_to_anchor=(1, 1))
    return axis.figure


def rope_note(curves):
    """Return the RoPE that all curves have; "" if it differs, because then the labels say it."""
    from lib.labels import rope_of

    names = {rope_of(curve.first.model) for curve in curves}
    return names.pop() if len(names) == 1 else ""


def wrap(text):
    """Return `text` in lines that are short enough for a legend."""
    return "\n".join(textwrap.fill(line, LEGEND_WIDTH) for line in text.splitlines())


def span(numbers):
    """Return "200", or "100 to 200" if the numbers differ."""
    return " to ".join(f"{number:,}" for number in sorted({min(numbers), max(numbers)}))


def all_results(curves):
    return [result for curve in curves for result in curve.results]


def token_axis(axis, curves):
    """Make x a logarithmic axis of tokens and mark the training lengths on it."""
    axis.set_xscale("log", base=2)  # training lengths are powers of two
    axis.xaxis.set_major_formatter("{x:,.0f}")
    for block in sorted({curve.first.block_size for curve in curves}):
        axis.axvline(block, color="0.4", linestyle=":", label=f"training length {block:,}")


def share_label(curves):
    """Return the axis label for shares of right answers."""
    from lib.tables import in_words

    return in_words("needles found (all digits)", curves)


def save(figure, path):
    """Write a picture, all or nothing: if the disk is full, the old picture stays."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png")
    print(path)


# -----------------------------------------------------------------------------
# figures: name(curves) -> a matplotlib figure, or None if no curve has what it shows


def fading(curves):
    """Fig. 1: the largest weight under softmax and SSMax, if one logit is +3 and all others -2."""
    from lib.labels import VARIANTS

    axis = new_figure().subplots()
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
    from matplotlib import colormaps

    from lib import checkpoint

    # p_n is read from the checkpoint, because the log does not have it. A log without its
    # checkpoint is left out.
    runs = [result for result in all_results(curves) if result.path.with_name("ckpt.pt").exists()
            and "pn" in (result.config.get("switch_attention_type"),
                         result.model["attention_type"])]
    axis = new_figure().subplots()
    # up to 0.8 only, because the yellow at the end of this map is hard to see on white
    colors = colormaps["plasma"](np.linspace(0, 0.8, len(runs)))
    for result, color in zip(runs, colors, strict=True):
        weights = checkpoint.load(result.path.parent)["model"]
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
                label = f"{result.path.parent.name}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r2:.2f}"
            axis.plot(fitted, a1 * log + a2, line, color=color, label=label)
    if not axis.lines:
        return None
    return finish(axis, notes="line: fit to n ≥ 4; dotted: to all n", xscale="log",
                  xlabel="number of keys n", ylabel="$p_n$")


def z_max(curves):
    """
    Fig. 3: the weight of the logit z_max among the n - 1 others 0, 1/(n-2), ..., 1. With SSMax it
    has to be 1/s above them to get the attention, at any n.
    """
    from lib.labels import VARIANTS

    axis = new_figure().subplots()
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
    panels = [("loss", "loss"), ("loss", "loss, enlarged")]
    if any("minus (a)" in result.values for result in all_results(curves)):
        panels.append(("minus (a)", "loss minus (a)"))
    figure = new_figure(figsize=(5.6, 0.6 + 1.6 * len(panels)))
    axes = figure.subplots(len(panels), sharex=True)
    for axis, (measure, label) in zip(axes, panels, strict=True):
        for curve in curves if measure == "loss" else ():
            validations = curve.seeds("val_loss")  # dots: they are too few for a line
            axis.plot(validations.index, validations, "o", ms=2.5, color=curve.color)
        draw(curves, measure, axis)
        axis.set_ylabel(label)
    # These axes show the range of the last 60 % of the updates. With the high losses of the start
    # all later ones would look flat.
    for axis in axes[1:]:
        x, y = np.concatenate([line.get_xydata() for line in axis.lines]).T
        late = y[x >= 0.4 * x.max()]
        margin = 0.1 * np.ptp(late) or 0.1
        axis.set_ylim(late.min() - margin, late.max() + margin)
    axes[-1].set_xlabel("update")
    return finish(axes[0], curves, "loss in nats per token\nlines: training; dots: validation")


def posloss(curves):
    """
    Fig. 5: loss by position, and the same minus that of (a). The point at n is the mean over the
    last n/10 positions.
    """
    from lib.tables import in_words

    measures = ["loss"]
    if any("minus (a)" in result.values for result in all_results(curves)):
        measures.append("minus (a)")
    figure = new_figure(figsize=(5.6, 1 + 2.7 * len(measures)))
    axes = figure.subplots(len(measures), sharex=True, squeeze=False)[:, 0]
    for axis, measure in zip(axes, measures, strict=True):
        draw(curves, measure, axis)
        token_axis(axis, curves)
    axes[-1].set(xlabel="position (tokens)", ylabel="loss minus (a)")
    pieces = span([len(result.records) for result in all_results(curves)])
    return finish(axes[0], curves, f"mean of {pieces} pieces of text per seed",
                  ylabel=in_words("{split} loss (nats per token)", curves))


def niah(curves):
    """
    Fig. 6: share of needles (or answers of another task) found, by depth and context size. One
    panel for each curve, which shows the mean over the seeds.
    """
    across = min(len(curves), 4)  # more panels in a row are too small to read
    down = math.ceil(len(curves) / 4)
    figure = new_figure(figsize=(2.4 * across + 1, 1.9 * down + 0.6), layout="constrained")
    has_depth = any(result.records["asked_depth"].notna().any() for result in all_results(curves))
    samples = set()
    for i, curve in enumerate(curves, 1):
        axis = figure.add_subplot(down, across, i)
        shares = curve.seeds("by depth").mean(axis=1).unstack()
        for result in curve.results:
            samples |= set(result.records.groupby(["asked_depth", "size"], dropna=False).size())
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")  # one scale for all panels
        for (y, x), share in np.ndenumerate(shares):
            color = "white" if share < 0.6 else "black"  # cells with low shares are dark
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6, color=color)
        axis.set_xticks(range(shares.shape[1]), [f"{n:,}" for n in shares], rotation=45)
        depths = [f"{depth:g} %" for depth in shares.index] if has_depth else []
        axis.set_yticks(range(len(depths)), depths)
        axis.set_title(textwrap.fill(style_of(curve)["label"], 36))  # as wide as a panel
        axis.grid(False)
    texts = ["context size (tokens)", f"{span(samples)} samples per cell and seed",
             rope_note(curves)]
    figure.supxlabel("; ".join(filter(None, texts)))
    if has_depth:
        figure.supylabel("depth of what is asked for")
    figure.colorbar(image, ax=figure.axes, label=f"share of {share_label(curves)}")
    return figure


def retrieval(curves):
    """Fig. 6 as lines: share of needles found by context size, mean over depths."""
    axis = new_figure().subplots()
    for i, curve in enumerate(curves):
        draw_seeds(axis, curve.seeds("exact"), i / len(curves), **style_of(curve))
    token_axis(axis, curves)
    samples = span([result.records.groupby("size").size().max() for result in all_results(curves)])
    notes = f"share of {samples} samples per size and seed"
    return finish(axis, curves, notes, mean=f"{MEAN}, dot: one seed", ylim=(-0.02, 1.02),
                  xlabel="context size (tokens)", ylabel=share_label(curves))


def needle_scores(curves):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    axis = draw(curves, "example")
    axis.locator_params(axis="x", integer=True)
    return finish(axis, curves, "one prompt per seed", xlabel="head, by rank", ylim=(-0.02, 1.02),
                  ylabel=f"needle score at {longest(curves)} tokens")


def top_scores(curves):
    """Fig. 8: the top needle scores of the trials of all seeds, in falling order. Markers show how
    much of the answer was right."""
    axis = new_figure().subplots()
    for curve in curves:
        trials = [trial for result in curve.results
                  for trial in result.trials[result.trials["size"] == result.longest].itertuples()]
        trials.sort(key=lambda trial: -trial.top)
        rank = 100 * (np.arange(len(trials)) + 0.5) / len(trials)  # in percent of the trials
        axis.plot(rank, [trial.top for trial in trials], linewidth=0.8, **style_of(curve))
        for x, trial in zip(rank, trials, strict=True):
            marker = "o" if trial.exact else "^" if trial.first else "x"
            filled = "full" if trial.exact else "none"
            axis.plot(x, trial.top, marker, color=curve.color, ms=3, fillstyle=filled)
    return finish(axis, curves, "● all right, △ only the beginning, × the beginning is wrong",
                  mean="line: the trials of all seeds", xlabel="trials by rank (%)",
                  ylim=(-0.02, 1.02), ylabel=f"top needle score at {longest(curves)} tokens")


def longest(curves):
    """Return the length of the prompts that figures of single prompts show, as text."""
    return span([result.longest for result in all_results(curves)])


def needle_weight(curves):
    """The weight that the retrieval heads put on the needle, and how often one of them ranks it
    first, by context size."""
    figure = new_figure(figsize=(5.6, 5))
    axes = figure.subplots(2, sharex=True)
    for axis, measure in zip(axes, ("weight", "ranked first"), strict=True):
        draw(curves, measure, axis)
        token_axis(axis, curves)
        axis.set_ylim(-0.02, 1.02)
    for curve in curves:
        chance = curve.seeds("chance").mean(axis=1)
        axes[1].plot(chance.index, chance, ":", color=curve.color)
    axes[1].set(xlabel="context size (tokens)", ylabel="needle ranked first\n(share of trials)")
    return finish(axes[0], curves, "mean of the trials; dotted: ranked first by chance",
                  ylabel="weight on the needle\n(mean of the retrieval heads)")


def learned_s(curves):
    """
    The learned s at the end of each run by layer, with a dot for each head, of the types whose
    factor is s log n (+ b). With s = 1 / log N, SSMax equals softmax at N, the training length.
    """
    axis = new_figure().subplots()
    markers = {"-": "o", "--": "s", "-.": "^", ":": "v"}  # dots have no line style
    for curve in curves:
        if not learns_s_log_n(curve):
            print(f"learned_s leaves out {curve.label}: its factor is not s log n")
            continue
        points = [(layer, s) for result in curve.results
                  for layer, heads in enumerate(result.s, 1) for s in heads]
        if points:
            x, y = np.transpose(points)
            beside = 0.1 * len(axis.lines)  # so that no curve hides another
            style = style_of(curve) | {"linestyle": ""}
            axis.plot(x + beside, y, markers[curve.linestyle], ms=3, **style)
    if not axis.lines:
        return None
    for block in sorted({curve.first.block_size for curve in curves}):
        axis.axhline(1 / math.log(block), color="0.4", ls=":", label=f"1 / log {block:,}")
    layers = max(curve.first.model["n_layer"] for curve in curves)
    axis.set_xlim(0.5, layers + 0.5 + 0.1 * len(curves))
    axis.locator_params(axis="x", integer=True)
    return finish(axis, curves, "dot: one head of one seed", mean="", xlabel="layer",
                  ylabel="s of each head")


def learns_s_log_n(curve):
    """Return whether the factor of these runs is s log n (+ b) in the end."""
    from model import ATTENTION, Learned, log_n

    result = curve.first
    switched = result.config.get("switch_iter", 0) > 0
    name = result.config["switch_attention_type"] if switched else result.model["attention_type"]
    factor = ATTENTION.get(name)  # None: a type that no longer exists
    return factor is not None and factor.f is log_n and factor.b in (0, Learned(0.0))


FIGURES = {  # {figure: (type of result files that it reads, measure that it draws as a line)}
    fading: ("", ""), p_n: ("log", ""), z_max: ("", ""), learning_curves: ("log", "loss"),
    posloss: ("posloss", "loss"), niah: ("niah", "by depth"), retrieval: ("niah", "exact"),
    needle_scores: ("scores", "example"), top_scores: ("scores", ""),
    needle_weight: ("scores", "weight"), learned_s: ("log", "")}


def has_line(curves, measure):
    """Return whether a curve has more than one point of this measure ("": is not counted)."""
    return not measure or any(len(curve.seeds(measure)) > 1 for curve in curves)


def asked_for(name):
    """Return the figures that are asked for by a name. UserError for an unknown name."""
    figures = {figure.__name__: figure for figure in FIGURES}
    names = ["all", "table", *figures]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"name one of {', '.join(names)}."
        raise UserError(f"there is no figure {name!r}; {hint} Then name folders of results.")
    return [*FIGURES] if name == "all" else [figures[name]] if name in figures else []


def main():
    cfg = configure(PlotConfig)
    name, *inputs = cfg.files or ("",)
    figures = asked_for(name)
    from lib import results, tables

    measured = results.load(inputs)
    curves = results.curves_of(measured)
    folder = Path(cfg.out or next(filter(Path.is_dir, map(Path, inputs)), "out"))
    drawn = []
    for make in figures:
        file_type, measure = FIGURES[make]
        from_formulas = not file_type
        if name == "all" and (from_formulas and inputs
                              or not has_line(curves.get(file_type, ()), measure)):
            continue
        figure = None
        if from_formulas or file_type in curves:
            figure = make(curves.get(file_type, ()))
        if figure:
            drawn.append(figure)
            save(figure, folder / f"{make.__name__}.png")
    if name in ("all", "table") and curves:
        tables.print_runs(measured)
        tables.print_curves(curves)
    elif not drawn:
        raise UserError(f"{' '.join(inputs) or name}: there are no results that {name} could show; "
                        "name folders with other results, from train.py or an evaluation")


if __name__ == "__main__":
    launch(main)
