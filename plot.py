"""
Draw the paper's figures from result files, and print a table of what was measured.

    python plot.py all out/quick                        the table, and every figure that has data
    python plot.py learning_curves out/a_softmax out/b  one figure of some runs
    python plot.py grad_norm out/                       any measure of the logs or an evaluation
    python plot.py table out/                           only the table, with standard errors
    python plot.py needles experiments/windows/results.csv

Figures, with their numbers in the paper: fading (1), p_n (2), z_max (3), learning_curves (4),
posloss (5), niah and retrieval (6), needle_scores (7), top_scores (8); and of our own:
needle_weight (the weight on the needle and its rank by context size) and learned_s. fading and
z_max are computed from formulas, so `all` draws them only without results. Pictures are saved in
--out, or by default in the first folder of results.

lib/results.py turns result files into the table from which every figure is drawn.
"""
import itertools
import json
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.config import configure, did_you_mean
from lib.errors import UserError, launch
from lib.storage import atomic_write

# lib.results and matplotlib are imported where they are used, so that --help does not wait for
# them.
FEW = 4  # bands are drawn for at most this many lines in a panel: more would cover each other
MEAN = "line: mean of the seeds"
BAND = "band: range of the seeds (one seed: ± 2 standard errors)"
LEGEND_WIDTH = 56  # characters; longer labels are wrapped
STYLE = {
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight",
    "font.size": 8, "figure.labelsize": 8, "axes.titlesize": 8,
    "axes.grid": True, "grid.alpha": 0.25, "legend.edgecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False}
# colours of variants that lib/results.py has none for
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00")
LINES = ("-", "--", "-.", ":")  # line styles of the lines of one colour
MARKERS = ("o", "s", "^", "v")  # instead of line styles, where only dots are drawn
FIGURES = {}  # {name: function}, see `figure`


@dataclass(frozen=True)
class PlotConfig:
    # arguments
    files: tuple = ()  # name of a figure or measure, all or table; then folders or files of results
    # output
    baseline: str = "softmax"  # variant or line from which the differences are taken
    out: str = ""  # folder for the pictures; empty: the first folder of results, or out
    title: str = ""  # a line above the picture


def figure(draw):
    """Make a function a figure of this program. It gets the table of results, and returns a figure
    of matplotlib, or None if the table has nothing to draw."""
    FIGURES[draw.__name__] = draw
    return draw


# -----------------------------------------------------------------------------
# what figures share


def new_figure(**options):
    """Return an empty figure in the style of all figures. options: those of matplotlib's Figure."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    return Figure(**options)


def select(rows, measure, by="tokens"):
    """Return the rows of a measure."""
    return rows[(rows["measure"] == measure) & (rows["by"] == by)]


def select_minus(rows, measure, by="tokens"):
    """Return the rows of the differences of a measure from the baseline."""
    return rows[rows["measure"].str.startswith(f"{measure} minus ") & (rows["by"] == by)]


def as_label(text, width=LEGEND_WIDTH):
    """Return a name as matplotlib shows it as it is, in lines of `width` characters."""
    text = text.replace("$", r"\$")  # two $ would be read as a formula
    if text.startswith("_"):  # such labels are left out of a legend
        text = f" {text}"
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines())


def styles_of(rows):
    """Return {line: its colour, line style and label for matplotlib}, of all lines of a table."""
    from lib.results import VARIANTS, labels_of

    lines = rows.drop_duplicates("line").set_index("line")
    colors = {variant: color for variant, (_, color) in VARIANTS.items()}
    others = [variant for variant in lines["variant"].unique() if variant not in colors]
    colors |= zip(others, itertools.cycle(PALETTE), strict=False)
    numbers = lines.groupby("variant").cumcount()  # of the lines of a colour
    return {line: {"color": colors[lines["variant"][line]], "label": as_label(label),
                   "linestyle": LINES[numbers[line] % len(LINES)]}
            for line, label in labels_of(rows).items()}


def draw_panels(styles, panels, *notes, dots=False, height=2.9, ylim=None, **labels):
    """
    Return a figure with a panel for each measure above each other, or None if there is nothing.

    styles: {line: its style}, of the lines to draw. panels: {label: rows of one measure}. notes:
    texts for the legend. dots: see `draw`. height: of a panel in inches. labels: of the axes of the
    last panel.
    """
    from lib.results import MINUS, VARIANTS, differences

    panels = {label: rows for label, rows in panels.items() if len(rows)}
    if not panels:
        return None
    figure = new_figure(figsize=(5.6, 0.8 + height * len(panels)))
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axis, (label, rows) in zip(axes, panels.items(), strict=True):
        if rows["measure"].str.contains(MINUS).any():
            axis.axhline(0, color=VARIANTS["softmax"][1], linewidth=0.8)
        draw(axis, rows, styles, dots)
        if set(rows["by"]) <= {"tokens", "position"}:
            token_axis(axis, rows)
        axis.set_ylabel(as_label(label, 40))
        if ylim:
            axis.set_ylim(ylim)
    axes[-1].set(**labels)
    shown = next(iter(panels.values()))
    if shown.groupby("line")["seed"].nunique().max() > 1:
        notes += (f"{MEAN}, dot: one seed" if dots else MEAN,)
    if axes[0].collections:
        notes += (BAND,)
    texts = differences(shown)
    if texts:
        more = f"; and {len(texts) - 6} more" if len(texts) > 6 else ""
        notes += (f"settings that differ: {'; '.join(texts[:6])}{more}",)
    return finish(axes[0], *notes)


def draw(axis, rows, styles, dots=False):
    """
    Draw the lines of one measure: the mean over the seeds, and a dot for each seed or, if there are
    few lines, a band.
    """
    lines = [line for line in styles if line in set(rows["line"])]
    for place, line in enumerate(lines):
        of_line, style = rows[rows["line"] == line], styles[line]
        seeds = of_line.pivot(index="tokens", columns="seed", values="value")
        if dots:
            axis.plot(seeds.index, seeds.mean(axis=1), linewidth=2, **style)
            # dots of several seeds are drawn beside those of other lines, so that none hides
            # another
            shift = 2 ** (0.2 * (place / len(lines) - 0.4)) if seeds.shape[1] > 1 else 1
            axis.plot(seeds.index * shift, seeds, "o", color=style["color"], ms=2.5, alpha=0.4)
            continue
        seeds = seeds.dropna()  # what all seeds have measured
        marker = "o" if len(seeds) == 1 else None  # a line of one point would not be seen
        axis.plot(seeds.index, seeds.mean(axis=1), marker=marker, ms=3, **style)
        low, high = seeds.min(axis=1), seeds.max(axis=1)
        if seeds.shape[1] == 1:
            error = of_line.set_index("tokens")["error"]
            low, high = low - 2 * error, high + 2 * error
        if len(lines) <= FEW and (high > low).any():
            axis.fill_between(low.index, low, high, color=style["color"], alpha=0.15, lw=0)


def finish(axis, *notes, **labels):
    """Set the labels of the axes and put a legend beside the axis. Return the figure, or None if
    nothing is drawn."""
    if not axis.lines:
        return None
    axis.set(**labels)
    notes = [textwrap.fill(line, LEGEND_WIDTH) for note in notes for line in note.splitlines()]
    axis.legend(title="\n".join(notes).replace("$", r"\$"), alignment="left", loc="upper left",
                bbox_to_anchor=(1, 1))
    return axis.figure


def count(rows, text):
    """Return `text` with the number of samples behind a row, "200" or "100 to 200" if they differ;
    "" if it is not known."""
    numbers = rows["n"].dropna()
    ends = sorted({numbers.min(), numbers.max()})
    return text.format(" to ".join(f"{n:,.0f}" for n in ends)) if len(numbers) else ""


def token_axis(axis, rows):
    """Make x a logarithmic axis of tokens and mark the training lengths on it."""
    axis.set_xscale("log", base=2)  # training lengths are powers of two
    axis.xaxis.set_major_formatter("{x:,.0f}")
    for block in sorted(rows["block"].dropna().unique()):
        axis.axvline(block, color="0.4", linestyle=":", label=f"training length {block:,.0f}")


def save(figure, path):
    """Write a picture, all or nothing: if the disk is full, the old picture stays."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png")
    print(path)


# -----------------------------------------------------------------------------
# figures of formulas


@figure
def fading(rows):
    """Fig. 1: the largest weight under softmax and SSMax, if one logit is +3 and all others -2."""
    from lib.results import VARIANTS

    axis = new_figure().subplots()
    n = np.logspace(0.5, 5, 200)
    for variant, factor in (("softmax", 1.0), ("ssmax", 0.43 * np.log(n))):
        # one logit is 5 above the n - 1 others
        weight = 1 / (1 + (n - 1) * np.exp(-5 * factor))
        name, color = VARIANTS[variant]
        axis.plot(n, weight, color=color, label=name)
    return finish(axis, "SSMax: s = 0.43", xscale="log", xlabel="number of keys n",
                  ylabel="largest attention weight")


@figure
def z_max(rows):
    """
    Fig. 3: the weight of the logit z_max among the n - 1 others 0, 1/(n-2), ..., 1. With SSMax it
    has to be 1/s above them to get the attention, at any n.
    """
    from lib.results import VARIANTS

    axis = new_figure().subplots()
    z = np.linspace(0, 12, 400)
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        # n^(s z) with s = 1 / log n is e^z: softmax
        for variant, s in (("softmax", 1 / np.log(n)), ("ssmax", 0.43), ("ssmax_s1", 1)):
            others = np.linspace(0, 1, n - 1)[:, None]
            weight = 1 / (1 + np.exp(s * np.log(n) * (others - z)).sum(0))
            name, color = VARIANTS[variant]
            axis.plot(z, weight, line, color=color, label=f"{name}, n = {n:,}")
    return finish(axis, "(b): s = 0.43", xlabel="$z_{max}$", ylabel="weight of $z_{max}$")


# -----------------------------------------------------------------------------
# figures of results


@figure
def p_n(rows):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    from matplotlib import colormaps

    axis, runs = new_figure().subplots(), {}
    for path in rows.loc[rows["by"] == "end", "path"].unique():
        settings = json.loads(path.with_suffix(".json").read_text())["settings"]
        types = settings.get("attention_type"), settings.get("switch_attention_type")
        if "pn" in types and list(path.parent.glob("ckpt_*.pt")):  # the log does not have p_n
            from lib import checkpoint

            weights = checkpoint.load(path.parent)["model"]
            if "p_n" in weights:  # killed before it was swapped in, a run has none
                runs[as_label(path.parent.name)] = weights["p_n"].numpy()
    # up to 0.8 only, because the yellow at the end of this map is hard to see on white
    colors = colormaps["plasma"](np.linspace(0, 0.8, len(runs)))
    for (name, p), color in zip(runs.items(), colors, strict=True):
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color)
        for first, line in ((1, ":"), (4, "-")):
            fitted, y = n[first - 1:], p[first - 1:]
            log = np.log(fitted)
            a1, a2 = np.polyfit(log, y, 1)
            label = None  # of the dotted line
            if first == 4:
                r2 = np.corrcoef(log, y)[0, 1] ** 2
                label = f"{name}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r2:.2f}"
            axis.plot(fitted, a1 * log + a2, line, color=color, label=label)
    return finish(axis, "line: fit to n ≥ 4; dotted: to all n", xscale="log",
                  xlabel="number of keys n", ylabel="$p_n$")


@figure
def learning_curves(rows):
    """
    Fig. 4: training and validation loss; the same enlarged; the training loss minus that of the
    baseline on the same batches. Logs of fine-tuning are drawn if there are no others.
    """
    kind = "" if len(select(rows, "loss", "update")) else "fine-tuning "
    loss = select(rows, f"{kind}loss", "update")
    minus = select_minus(rows, f"{kind}loss", "update")
    panels = {"loss": loss, "loss, enlarged": loss, label_of_minus(minus, "loss"): minus}
    styles = styles_of(rows)
    note = "loss in nats per token\nlines: training; dots: validation"
    figure = draw_panels(styles, panels, note, height=1.6, xlabel="update")
    if figure is None:
        return None
    validation = select(rows, f"{kind}val_loss", "update")
    for line, of_line in validation.groupby("line"):
        for axis in figure.axes[:2]:  # dots, because they are too few for a line
            axis.plot(of_line["tokens"], of_line["value"], "o", ms=2.5, color=styles[line]["color"])
    # These axes show the range of the last 60 % of the updates. With the high losses of the start
    # all later ones would look flat.
    for axis, *shown in zip(figure.axes[1:], (loss, minus), (validation, minus), strict=False):
        late = [values for of_kind in shown for values in
                of_kind.loc[of_kind["tokens"] >= 0.4 * loss["tokens"].max(), "value"]]
        if late:
            margin = 0.1 * np.ptp(late) or 0.1
            axis.set_ylim(min(late) - margin, max(late) + margin)
    return figure


def label_of_minus(minus, name):
    """Return the label of a panel of differences."""
    line = next(iter(minus["measure"]), "").partition(" minus ")[2]
    return f"{name} minus {line}"


@figure
def posloss(rows):
    """
    Fig. 5: loss by position, and the same minus that of the baseline. The point at n is the mean
    over the last n/10 positions.
    """
    by_position = rows[rows["by"] == "position"]
    panels = {f"{measure}\n(nats per token)": of_measure
              for measure, of_measure in by_position.groupby("measure")}
    return draw_panels(styles_of(rows), panels,
                       count(by_position, "mean of {} pieces of text per seed"), height=2.7,
                       xlabel="position (tokens)")


def asked_for(rows):
    """Return the measures of needles, and of the answers of other tasks."""
    anywhere = rows.loc[rows["measure"].str.endswith(", anywhere"), "measure"].unique()
    return [measure.removesuffix(", anywhere") for measure in anywhere] or ["needles"]


def share_of(measure):
    """Return the label of an axis for the share of right answers."""
    return "needles found (all digits)" if measure == "needles" else f"{measure}: share found"


@figure
def niah(rows):
    """
    Fig. 6: share of needles (or answers of another task) found, by depth and context size. One
    panel for each line, which shows the mean over the seeds.
    """
    measures = asked_for(rows)
    cells = rows[(rows["by"] == "depth") & rows["measure"].isin(measures)]
    lines = list(cells.groupby(["measure", "line"], sort=False))
    if not lines:
        return None
    labels = styles_of(rows)
    across = min(len(lines), 4)  # more panels in a row are too small to read
    down = math.ceil(len(lines) / 4)
    figure = new_figure(figsize=(2.4 * across + 1, 1.9 * down + 0.6), layout="constrained")
    for i, ((measure, line), of_line) in enumerate(lines, 1):
        axis = figure.add_subplot(down, across, i)
        shares = of_line.pivot_table(index="depth", columns="tokens", values="value")
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")  # one scale for all panels
        for (y, x), share in np.ndenumerate(shares):
            color = "white" if share < 0.6 else "black"  # cells with low shares are dark
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6, color=color)
        axis.set_xticks(range(shares.shape[1]), [f"{n:,.0f}" for n in shares], rotation=45)
        axis.set_yticks(range(shares.shape[0]), [f"{depth:g} %" for depth in shares.index])
        title = labels[line]["label"].replace("\n", " ")
        if len(measures) > 1:
            title = f"{measure}: {title}"
        axis.set_title(textwrap.fill(title, 36))  # as wide as a panel
        axis.grid(False)
    figure.supxlabel(count(cells, "context size (tokens); {} samples per cell and seed"))
    figure.supylabel("depth of what is asked for")
    label = " and ".join(map(share_of, measures))
    figure.colorbar(image, ax=figure.axes, label=label)
    return figure


@figure
def retrieval(rows):
    """Fig. 6 as lines: share of needles found by context size, mean over depths."""
    measures = asked_for(rows)
    panels = {share_of(measure): select(rows, measure) for measure in measures}
    shown = rows[(rows["by"] == "tokens") & rows["measure"].isin(measures)]
    note = count(shown, "share of {} samples per size and seed")
    return draw_panels(styles_of(rows), panels, note, dots=True, ylim=(-0.02, 1.02),
                       xlabel="context size (tokens)")


def of_longest(rows, by):
    """Return (name of the score at the longest prompts, its rows)."""
    scores = rows[(rows["by"] == by) & rows["measure"].str.startswith("score at ")]
    lengths = scores["measure"].str.replace(",", "").str.extract(r"(\d+)", expand=False)
    scores = scores[lengths.astype(float) == lengths.astype(float).max()]
    return next(iter(scores["measure"]), ""), scores


@figure
def needle_scores(rows):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    name, scores = of_longest(rows, "rank")
    figure = draw_panels(styles_of(rows), {f"needle {name}": scores}, "one prompt per seed",
                         ylim=(-0.02, 1.02), xlabel="head, by rank")
    if figure:
        figure.axes[0].locator_params(axis="x", integer=True)
    return figure


@figure
def top_scores(rows):
    """Fig. 8: the top needle scores of the trials of all seeds, in falling order. Markers show how
    much of the answer was right."""
    name, scores = of_longest(rows, "trial")
    right = select(rows, name.replace("score", "right"), "trial")
    trials = scores.merge(right, on=["line", "path", "tokens"], suffixes=("", "_right"))
    trials = trials.sort_values("value", ascending=False)
    axis, styles = new_figure().subplots(), styles_of(rows)
    for line in scores["line"].unique():
        of_line = trials[trials["line"] == line]
        rank = 100 * (np.arange(len(of_line)) + 0.5) / len(of_line)  # in percent of the trials
        axis.plot(rank, of_line["value"], linewidth=0.8, **styles[line])
        for right, marker, fill in ((2, "o", "full"), (1, "^", "none"), (0, "x", "none")):
            top = of_line["value"].where(of_line["value_right"] == right)
            axis.plot(rank, top, marker, color=styles[line]["color"], ms=3, fillstyle=fill)
    return finish(axis, "● all right, △ only the beginning, × the beginning is wrong",
                  "line: the trials of all seeds", xlabel="trials by rank (%)",
                  ylim=(-0.02, 1.02), ylabel=f"top needle {name}")


@figure
def needle_weight(rows):
    """The weight that the retrieval heads put on the needle, and how often one of them ranks it
    first, by context size."""
    panels = {"weight on the needle\n(mean of the retrieval heads)": select(rows, "weight"),
              "needle ranked first\n(share of trials)": select(rows, "ranked first")}
    styles = styles_of(rows)
    figure = draw_panels(styles, panels, "mean of the trials; dotted: ranked first by chance",
                         height=2.1, ylim=(-0.02, 1.02), xlabel="context size (tokens)")
    if figure is None:
        return None
    for line, chance in select(rows, "chance").groupby("line"):
        by_tokens = chance.groupby("tokens")["value"].mean()
        figure.axes[-1].plot(by_tokens.index, by_tokens, ":", color=styles[line]["color"])
    return figure


@figure
def learned_s(rows):
    """The learned s at the end of each run by layer, with a dot for each head. Where the factor is
    s log n, the model with s = 1 / log N equals softmax at N, the training length."""
    shown = rows[(rows["by"] == "end") & rows["measure"].str.match("s [0-9]")]
    layers = shown["measure"].str.extract(r"(\d+)", expand=False).astype(int)
    axis, styles = new_figure().subplots(), styles_of(rows)
    for line, of_line in shown.groupby("line", sort=False):
        marker = MARKERS[LINES.index(styles[line]["linestyle"])]
        x = layers[of_line.index] + 0.1 * len(axis.lines)  # so that no line hides another
        axis.plot(x, of_line["value"], marker, ms=3, **styles[line] | {"linestyle": ""})
    if not axis.lines:
        return None
    axis.set_xlim(0.5, layers.max() + 0.5 + 0.1 * len(axis.lines))
    for block in sorted(shown["block"].unique()):
        axis.axhline(1 / math.log(block), color="0.4", ls=":", label=f"1 / log {block:,}")
    axis.locator_params(axis="x", integer=True)
    return finish(axis, "dot: one head of one seed", xlabel="layer", ylabel="s of each head")


def of_measure(rows, measure):
    """Any measure by tokens or updates, and the same minus that of the baseline."""
    from lib.results import title_of

    axes = {"tokens": "context size (tokens)", "position": "position (tokens)", "update": "update"}
    by = next(by for by in axes if len(select(rows, measure, by)))
    shown, minus = select(rows, measure, by), select_minus(rows, measure, by)
    note = "" if by == "update" else count(shown, "mean of {} samples per seed")
    panels = {title_of(measure, by): shown, label_of_minus(minus, measure): minus}
    return draw_panels(styles_of(rows), panels, note, xlabel=axes[by])


# -----------------------------------------------------------------------------


def main():
    cfg = configure(PlotConfig)
    name, *inputs = cfg.files or ("",)
    from lib import results

    rows = results.load(inputs, cfg.baseline)
    by_size = rows["by"].isin(["tokens", "position", "update"])
    names = ["all", "table", *FIGURES, *rows.loc[by_size, "measure"].unique()]
    if name not in names:
        raise UserError(f"there is no figure or measure {name!r}{did_you_mean(name, names)}; name "
                        f"one of {', '.join(names)}. Then name folders of results.")
    asked = [] if name == "table" else [name]
    if name == "all":  # figures of formulas are no part of results
        asked = [each for each in FIGURES if not inputs or each not in ("fading", "z_max")]
    folders = [path for path in map(Path, inputs) if path.is_dir()]
    folder = Path(cfg.out or next(iter(folders), "out"))
    drawn = []
    for each in asked:
        picture = FIGURES[each](rows) if each in FIGURES else of_measure(rows, each)
        if picture:
            if cfg.title:
                picture.suptitle(cfg.title)
            drawn.append(picture)
            save(picture, folder / f"{each.replace('/', '_')}.png")
    if name in ("all", "table") and len(rows):
        results.print_tables(rows)
    elif not drawn:
        raise UserError(f"{' '.join(inputs) or name}: there are no results that {name} could show; "
                        "name folders with other results, from train.py or an evaluation")


if __name__ == "__main__":
    launch(main)
