"""
Draw the paper's figures from result files alone, beside the results or in --out.

    python plot.py all out/                                every figure that these results allow
    python plot.py learning_curves out/a_softmax out/b     one figure of some runs
    python plot.py table out/                              the numbers, with standard errors

Figures: fading (1 in the paper), p_n (2), z_max (3), learning_curves (4), posloss (5), niah and
retrieval (6), needle_scores (7), top_scores (8), learned_s; fading and z_max need no results.
A row is one result file. A curve is the rows that are equal in everything but the seed of training:
nothing else is averaged. Curves of one variant are told apart by their --tag, or by what differs.
"""
import dataclasses
import json
import math
import textwrap
from collections import namedtuple
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import model
from eval_niah import wilson
from lib import checkpoint
from lib.config import configure
from lib.runtime import UserError, describe, launch
from train import FREE_TO_CHANGE

# One colour a variant, everywhere; colour-blind safe (Okabe and Ito). Others get one of PALETTE.
VARIANTS = {
    "softmax": ("(a) Softmax", "#D55E00"),
    "ssmax": ("(b) SSMax", "#0072B2"),
    "ssmax_s1": ("(c) SSMax, s = 1", "#56B4E9"),
    "ssmax_bias": ("(d) SSMax with bias", "#009E73"),
    "softmax>ssmax": ("(e) swapped after", "#E69F00"),
    "softmax>>ssmax": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned $p_n$", "#000000"),
    "head_scale": ("control: mean log n", "#8C8C8C"),
    "softmax>head_scale": ("(a), one temperature", "#7F5539"),
}
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00")
LINES = ("-", "--", "-.", ":")  # of the curves of one variant
OF_ATTENTION = ("attention_type", "s_init", "switch_")  # what may differ from the (a) compared
FEW = 4  # with more curves than this in one axis bands are mud: they are left out
plt.switch_backend("Agg")  # no screen needed
plt.rcParams.update({
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "figure.labelsize": 8, "savefig.bbox": "tight",
    "font.size": 9, "axes.titlesize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "legend.fontsize": 8, "legend.title_fontsize": 7, "legend.edgecolor": "none",
    "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False})


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    files: tuple = ()  # the figure (or all, or table), then folders or files of results
    out: str = ""  # folder for the pictures; empty: the first folder of results
    format: str = "png"  # png, pdf or svg


# One result file. seed: of training, and of the run that it went on from, (seed[, seed]).
# facts: {(part of the file, name): JSON of the value}, all settings but the seed.
Row = namedtuple("Row", "path kind variant tag seed block_size facts content")
# rows: of the seeds. style: color, linestyle and label. band: whether it is drawn with one.
Curve = namedtuple("Curve", "rows style band")


# --- files -> rows ------------------------------------------------------------------------------
def find(inputs, pattern):
    """Files named `pattern` among the inputs (files, or folders searched to the bottom)."""
    found = []
    for path in map(Path, inputs):
        found += sorted(path.rglob(pattern)) if path.is_dir() else [path] * path.match(pattern)
    return found


def load(inputs):
    """[Row] of the logs and finished evaluations in the inputs; a damaged file is a UserError."""
    rows = []
    for kind in ("log", "posloss", "niah", "needle"):
        for path in find(inputs, "log.jsonl" if kind == "log" else f"{kind}*.json"):
            try:
                content = read(kind, path.read_text(encoding="utf-8"))
                rows += [make_row(path, kind, content)] if content else []
            except (ValueError, LookupError, TypeError, AttributeError) as e:
                raise UserError(f"{path} is damaged, or not a result of this program "
                                f"({describe(e)}); move it away") from e
    return rows


def read(kind, text):
    """The content of a result, arrays where figures need them; None where nothing is measured."""
    if kind == "log":
        # What stands behind the last end of a line is being written at this moment.
        content, *lines = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        for name, key in (("train", "loss"), ("val", "val_loss")):
            content[name] = {line["iter"]: float(line[key]) for line in lines if key in line}
        content["scales"] = [line for line in lines if "s" in line]
        # f(n) of the attention type that the run ended with, which a switch may have changed
        config, attention = content["config"], content["model_config"]["attention_type"]
        if 0 < config.get("switch_iter", 0) < max(content["train"], default=0):
            attention = config["switch_attention_type"]
        content["f"] = model.ATTENTION.get(attention, (None,))[0]  # None: model.py lost the type
        return content
    content = json.loads(text)
    # An evaluation that was cut off, or still runs, has its settings but no result: no damage.
    result = {"posloss": "mean", "niah": "cells", "needle": "trials"}[kind]
    if not content["settings"] or result not in content:
        return None
    if kind == "posloss":  # one array: it fails if the two differ in length
        content["mean"], content["stderr"] = np.array([content["mean"], content["stderr"]], float)
    if kind == "needle":
        content["n"], content["size"] = len(content["trials"]), content["settings"]["trial_size"]
        content["example_size"] = content["example"]["size"]
        content["tops"] = [float(trial["top"]) for trial in content["trials"]]
    if kind == "niah":
        cells = sorted(content["cells"], key=lambda cell: (cell["depth"], cell["size"]))
        content["sizes"] = sorted({cell["size"] for cell in cells})
        content["depths"] = sorted({cell["depth"] for cell in cells})
        content["n"], content["samples"] = cells[0]["n"], cells[0]["n"] * len(content["depths"])
        for key in ("exact", "first"):  # reshape fails if the grid has a hole
            shares = np.array([cell[key] for cell in cells], float)
            content[key] = shares.reshape(len(content["depths"]), len(content["sizes"]))
    return content


def make_row(path, kind, content):
    """The Row of a file. Its facts leave out what cannot change a result, and the seeds."""
    config, base, settings = content["config"], content["base"] or {}, content.get("settings", {})
    free = FREE_TO_CHANGE | {"seed", "init_from", "variant", "files"}
    defaults = dataclasses.asdict(model.GPTConfig())
    facts = {}
    for part, values, left_out in (
            ("model", defaults | content["model_config"], set()),  # defaults: of younger settings
            # The theta and swap of an evaluation are in its model's settings: said once.
            ("evaluation", settings, {"checkpoint", "data", "tag"} | defaults.keys()),
            ("training", config, free), ("base", base, free),
            # A corpus may be made anew for each seed of training: no fact either.
            ("text", settings["data"]["source"] if settings else {}, {"seed"}),
            ("corpus", content["train_data" if settings else "data"]["source"], {"seed"})):
        for name in sorted(values.keys() - left_out):
            facts[part, name] = json.dumps(values[name], sort_keys=True)
    seed = (config["seed"], base["seed"]) if base else (config["seed"],)
    return Row(path, kind, content["variant"], content.get("tag", ""), seed,
               content["model_config"]["block_size"], facts, content)


# --- rows -> curves -----------------------------------------------------------------------------
def label_of(variant):
    text = variant.replace(">>", " switched to ").replace(">", " swapped to ")
    return VARIANTS.get(variant, (text,))[0]


def colors(rows):
    """{variant: colour}, the same in all figures of these rows."""
    others = sorted({row.variant for row in rows} - VARIANTS.keys())
    known = {variant: color for variant, (_, color) in VARIANTS.items()}
    return known | {variant: PALETTE[i % len(PALETTE)] for i, variant in enumerate(others)}


def difference(row, others):
    """What tells `row` from the others of its variant: " [tag]", ", name=value" and so on."""
    same = [other for other in others if other.variant == row.variant]
    text = ", from a checkpoint" if len(row.seed) > min(len(other.seed) for other in same) else ""
    text += f" [{row.tag}]" if row.tag and len(same) > 1 else ""
    # A tag is the user's own name of what differs: only rows that share it need the settings.
    same = [o for o in same if (o.tag, len(o.seed)) == (row.tag, len(row.seed))]
    common = set.intersection(*(set(other.facts.items()) for other in same))
    said = [f", {key[1]}={fact}" for key, fact in row.facts.items() if (key, fact) not in common]
    # What two parts of a file repeat is said once; the quotes are JSON's.
    return text + "".join(dict.fromkeys(said)).replace('"', "")


def curves(rows, kind):
    """[Curve] of the rows of a kind, as in VARIANTS; UserError where a seed is there twice."""
    color = colors(rows)  # of all kinds: the figures of one call agree on them
    rows = [row for row in rows if row.kind == kind and (kind != "log" or row.content["train"])]
    if kind == "log":  # the losses of fine-tuning are of other data
        rows = [row for row in rows if not row.content["base"]] or rows
    groups, found = {}, []
    for row in sorted(rows, key=lambda row: row.seed):
        place = [*VARIANTS, row.variant].index(row.variant)  # others stand behind, by name
        identity = (place, row.variant, row.tag, tuple(sorted(row.facts.items())))
        seeds = groups.setdefault(identity, {})
        if row.seed in seeds:  # averaged, one run would pass for two
            give = "one run a --variant" if kind == "log" else "one evaluation a --tag"
            raise UserError(f"{seeds[row.seed].path} and {row.path} have the same settings and the "
                            f"same seed, {row.seed[0]}; leave one of them out, or give {give}")
        seeds[row.seed] = row
    groups = [list(groups[identity].values()) for identity in sorted(groups)]
    for group in groups:
        variant, n = group[0].variant, len(group)
        label = label_of(variant) + difference(group[0], [other[0] for other in groups])
        label += f", {n} seed{'s' * (n > 1)}" if len(rows) > len(groups) else ""
        line = LINES[[curve.rows[0].variant for curve in found].count(variant) % len(LINES)]
        style = {"color": color[variant], "linestyle": line, "label": label}
        found.append(Curve(group, style, len(groups) <= FEW))
    return found


# --- figures: name(curves) -> a matplotlib figure, or None where no curve has what it shows -----
def draw(axis, curve, x, y, **kwargs):
    """The mean of y (seeds, x), and as a band its range."""
    axis.plot(x, y.mean(0), **curve.style, **kwargs)
    if curve.band:
        axis.fill_between(x, y.min(0), y.max(0), color=curve.style["color"], alpha=0.15, lw=0)


def finish(axis, title="", band="band: range of the seeds", **labels):
    """The axis' figure, with a legend beside the axis, where it hides nothing."""
    axis.set(**labels)
    if axis.collections:  # bands, which mean nothing to a reader until they are explained
        title += f"\n{band}"
    axis.legend(title=title.strip(), alignment="left", loc="center left", bbox_to_anchor=(1, 0.5))
    return axis.figure


def span(found, key):
    """ "200", or "100 to 200" where content[key] differs between the files."""
    values = {row.content[key] for curve in found for row in curve.rows}
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def token_axis(axis, found):
    """A logarithmic axis of tokens, on which the training lengths are marked."""
    axis.set_xscale("log", base=2)  # the lengths are powers of two
    axis.xaxis.set_major_formatter("{x:,.0f}")
    for block in sorted({curve.rows[0].block_size for curve in found}):
        axis.axvline(block, color="0.4", linestyle=":", label=f"training length {block:,}")


def fading(found):
    """Fig. 1: -2 everywhere and +3 at the end; the largest weight under softmax and under SSMax."""
    axis, n = plt.figure().subplots(), np.logspace(0.5, 5, 200)
    for variant, factor in (("softmax", 1.0), ("ssmax", 0.43 * np.log(n))):
        weight = 1 / (1 + (n - 1) * np.exp(-5 * factor))  # of the one that stands 5 above n - 1
        axis.plot(n, weight, color=VARIANTS[variant][1], label=VARIANTS[variant][0])
    return finish(axis, "SSMax: s = 0.43", xscale="log", xlabel="number of keys n",
                  ylabel="largest attention weight")


def z_max(found):
    """Fig. 3: 0, 1/(n-2), ..., 1 and z_max: its weight. SSMax needs 1/s more at any n."""
    axis, z = plt.figure().subplots(), np.linspace(0, 12, 400)
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        for variant, s in (("softmax", 1 / np.log(n)), ("ssmax", 0.43), ("ssmax_s1", 1)):
            rest = s * np.log(n) * (np.linspace(0, 1, n - 1)[:, None] - z)
            label, color = VARIANTS[variant]
            label += f", n = {n:,}"
            axis.plot(z, 1 / (1 + np.exp(rest).sum(0)), line, color=color, label=label)
    return finish(axis, "(b): s = 0.43", xlabel="$z_{max}$", ylabel="weight of $z_{max}$")


def p_n(found):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    rows = [row for curve in found for row in curve.rows if row.content["f"] is model.p_n]
    # No log holds p_n: it is read from the weights, which may have been left elsewhere.
    rows = [row for row in rows if (row.path.parent / "ckpt.pt").exists()]
    axis = plt.figure().subplots()
    for row, place in zip(rows, np.linspace(0, 0.8, len(rows)), strict=True):
        run, color = row.path.parent, plt.cm.plasma(place)
        p = checkpoint.load(run)["model"]["p_n"].numpy()
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color, label=f"{run.name}: seed {row.seed[0]}")
        for first, line, where in ((1, ":", "all n"), (4, "-", "n ≥ 4")):
            log, y = np.log(n[first - 1:]), p[first - 1:]
            (a1, a2), r = np.polyfit(log, y, 1), np.corrcoef(log, y)[0, 1]
            label = f"{where}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r ** 2:.2f}"
            axis.plot(n[first - 1:], a1 * log + a2, line, color=color, label=label)
    return finish(axis, xscale="log", xlabel="number of keys n", ylabel="$p_n$") if rows else None


def paired(row, rows):
    """{iter: loss minus that of the (a) with the same batches and recipe}, {} if there is none."""
    mine = row.content["train"]
    for a in rows:  # batches differ by more than variants do: only equal ones are compared
        if (a.kind, a.variant, a.seed) == ("log", "softmax", row.seed):
            differ = {name for (_, name), _ in a.facts.items() ^ row.facts.items()}
            recipe = {name for name in differ if not name.startswith(OF_ATTENTION)}
            if not recipe and a.content["data"]["digest"] == row.content["data"]["digest"]:
                return {i: mine[i] - loss for i, loss in a.content["train"].items() if i in mine}
    return {}


def smooth(losses):
    """[{iter: loss}] of seeds -> updates that all have, (seeds, updates); means of 1 % of them."""
    x = np.array(sorted(set.intersection(*map(set, losses))))
    step = max(1, len(x) // 100)
    x = x[:len(x) // step * step]
    y = np.array([[seed[i] for i in x] for seed in losses])
    return x.reshape(-1, step).mean(1), y.reshape(len(y), -1, step).mean(2)


def learning_curves(found):
    """Fig. 4: training and validation loss, and below the difference to (a) on the same batches."""
    rows = [row for curve in found for row in curve.rows]
    pairs = [[p for p in (paired(row, rows) for row in curve.rows) if p] for curve in found]
    down = 1 + any(pairs)
    axes = plt.figure(figsize=(5.6, 2 + 1.7 * down)).subplots(down, sharex=True, squeeze=False)
    for curve, differences in zip(found, pairs, strict=True):
        draw(axes[0, 0], curve, *smooth([row.content["train"] for row in curve.rows]))
        for row in curve.rows:
            val = row.content["val"]
            axes[0, 0].plot(val.keys(), val.values(), "o", ms=2.5, color=curve.style["color"])
        if differences:
            draw(axes[1, 0], curve, *smooth(differences))
    for axis, what in zip(axes.flat, ("loss", "minus (a)"), strict=False):
        # The fall at the start would flatten all that comes behind it.
        lines = [line.get_ydata(orig=False) for line in axis.lines]
        late = np.concatenate([y[2 * len(y) // 5:] for y in lines])
        margin = 0.1 * np.ptp(late) or 0.1
        axis.set(ylim=(late.min() - margin, late.max() + margin), ylabel=f"{what} (nats per token)")
    alone = "   (no (a) of the same recipe and batches here)"
    axes[-1, 0].set_xlabel("update" + alone * (down == 1))
    return finish(axes[0, 0], "lines: training; dots: validation")


def posloss(found):
    """Fig. 5: test loss by position, in bins of equal width on the logarithmic axis."""
    axis = plt.figure().subplots()
    for curve in found:
        y = np.array([row.content["mean"] for row in curve.rows])
        # The fall over the first tokens, where all are alike, would flatten the rest.
        first = max(1, min(curve.rows[0].block_size // 16, y.shape[1] // 2))
        starts = np.unique(np.geomspace(first, y.shape[1], 90).astype(int))[:-1]
        width = np.diff([*starts, y.shape[1]])
        y = np.add.reduceat(y, starts, axis=1) / width
        if len(y) == 1:  # of one seed; the positions of a bin are taken as independent
            variance = np.add.reduceat(curve.rows[0].content["stderr"] ** 2, starts)
            y = y + np.array([[-2], [2]]) * np.sqrt(variance) / width
        draw(axis, curve, starts + width / 2, y)
    token_axis(axis, found)
    band = "band: range of the seeds\nband of one seed: 2 standard errors over windows"
    return finish(axis, f"{span(found, 'count')} windows a seed", band, xlabel="position (tokens)",
                  ylabel="test loss (nats per token)")


def niah(found):
    """Fig. 6: needles found by depth and context size, mean of the seeds; a panel a curve."""
    across, down = min(len(found), 4), math.ceil(len(found) / 4)  # wider is too small to read
    figure = plt.figure(figsize=(2.4 * across + 1, 1.9 * down + 0.6), layout="constrained")
    axes = [figure.add_subplot(down, across, i + 1) for i in range(len(found))]
    for axis, curve in zip(axes, found, strict=True):
        shares = np.mean([row.content["exact"] for row in curve.rows], axis=0)
        content = curve.rows[0].content
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")  # one scale for all panels
        for (y, x), share in np.ndenumerate(shares):
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6,
                      color="white" if share < 0.6 else "black")  # on dark and on light
        axis.set_xticks(range(shares.shape[1]), [f"{n:,}" for n in content["sizes"]], rotation=45)
        axis.set_yticks(range(len(shares)), [f"{depth:g} %" for depth in content["depths"]])
        axis.set_title(textwrap.fill(curve.style["label"], 36))  # as wide as a panel
        axis.grid(False)
    figure.supxlabel(f"context size (tokens); {span(found, 'n')} samples a cell and seed")
    figure.supylabel("depth of the needle")
    figure.colorbar(image, ax=axes, label="share found (all digits)")
    return figure


def retrieval(found):
    """Fig. 6 as lines: needles found by context size, mean over depths; a dot for each seed."""
    axis = plt.figure().subplots()
    for i, curve in enumerate(found):
        x = np.array(curve.rows[0].content["sizes"])
        y = np.array([row.content["exact"].mean(0) for row in curve.rows])
        axis.plot(x, y.mean(0), linewidth=2, **curve.style)
        # Lines turn where it was measured; the dots of the curves stand side by side.
        beside = x * 2 ** (0.2 * ((i + 0.5) / len(found) - 0.5))
        axis.plot(beside, y.T, "o", color=curve.style["color"], markersize=3, alpha=0.7)
    token_axis(axis, found)
    sizes = sorted({n for curve in found for n in curve.rows[0].content["sizes"]})
    axis.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=90)  # exactly what was measured
    axis.minorticks_off()
    return finish(axis, f"line: mean of the seeds\ndot: one seed, {span(found, 'samples')} samples",
                  xlabel="context size (tokens)", ylabel="needles found (all digits)")


def needle_scores(found):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    axis = plt.figure().subplots()
    for curve in found:
        # By rank, not by head: which heads of a seed learn to retrieve is chance.
        scores = np.array([np.ravel(row.content["example"]["scores"]) for row in curve.rows])
        best = -np.sort(-scores)[:, :25]
        draw(axis, curve, range(1, best.shape[1] + 1), best, marker="o", markersize=3)
    return finish(axis, xlabel="head, by rank", ylim=(-0.02, 1.02),
                  ylabel=f"needle score at {span(found, 'example_size')} tokens")


def top_scores(found):
    """Fig. 8: the top needle scores of all trials, of all seeds, in falling order; the answers."""
    axis = plt.figure().subplots()
    for curve in found:
        trials = [trial for row in curve.rows for trial in row.content["trials"]]
        trials = sorted(trials, key=lambda trial: -trial["top"])
        rank = 100 * (np.arange(len(trials)) + 0.5) / len(trials)  # whatever number of trials
        axis.plot(rank, [trial["top"] for trial in trials], linewidth=0.8, **curve.style)
        for x, trial in zip(rank, trials, strict=True):
            marker = "o" if trial["exact"] else "^" if trial["first"] else "x"
            axis.plot(x, trial["top"], marker, color=curve.style["color"], markersize=3,
                      fillstyle="full" if trial["exact"] else "none")
    title = f"{span(found, 'n')} trials a seed\n● all digits right, △ only the first, × first wrong"
    return finish(axis, title, xlabel="trials by rank (%)", ylim=(-0.02, 1.02),
                  ylabel=f"top needle score at {span(found, 'size')} tokens")


def learned_s(found):
    """The learned s by layer and head at the end of each run, where f(n) is log n."""
    runs = [(row, curve) for curve in found for row in curve.rows if row.content["scales"]]
    runs = [run for run in runs if run[0].content["f"] is model.log_n]  # else another quantity
    axis, marks = plt.figure().subplots(), {}  # of equal heights one mark
    for (row, curve), beside in zip(runs, np.linspace(-0.3, 0.3, len(runs) + 2)[1:], strict=False):
        first, N, s = row.content["scales"][0], row.block_size, row.content["scales"][-1]["s"]
        for layer, heads in enumerate(s, 1):  # the dots of the runs stand side by side
            axis.plot([layer + beside] * len(heads), heads, "o", ms=3, color=curve.style["color"])
        axis.lines[-1].set_label(curve.style["label"] if row is curve.rows[0] else "_")
        # After a switch s starts at 1 / mean(log n), and the first s of the log is a later one.
        start = N / math.lgamma(N + 1) if first["iter"] else np.mean(first["s"])
        marks |= {f"start: {start:.3g}": (start, "--"), f"1 / log {N:,}": (1 / math.log(N), ":")}
        axis.set_xticks(range(1, len(s) + 1))
    for label, (height, line) in marks.items():
        axis.axhline(height, color="0.4", linestyle=line, label=label)
    return finish(axis, xlabel="layer", ylabel="s of each head") if runs else None


# --- the table ----------------------------------------------------------------------------------
def plus_minus(values, error=None):
    """Mean ± standard error over the seeds (of one seed: `error`), with two digits of the error."""
    mean = float(np.mean(values))
    if len(values) > 1:
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    if not error:  # none, or of equal seeds, which have no digits to go by
        return f"{mean:,.4f}".rstrip("0").rstrip(".") + " ± 0" * (error == 0)
    digits = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def numbers(row, rows, key):
    """{column of the table: (number, its standard error within the file, or None)}"""
    content, found = row.content, {}
    if row.kind == "posloss":
        for end in [m * row.block_size for m in (1, 2, 4, 8, 10, 16)]:
            mean, stderr = (content[k][end - max(1, end // 10):end] for k in ("mean", "stderr"))
            if end <= len(content["mean"]):
                found[f"{end:,}"] = np.mean(mean), np.linalg.norm(stderr) / len(stderr)
    elif row.kind == "niah":
        n = content["samples"]
        for size, share in zip(content["sizes"], content[key].mean(0), strict=True):
            low, high = wilson(share * n, n)  # 2 * 1.96 standard errors, at 0 and 1 as well
            found[f"{size:,}"] = share, (high - low) / 3.92
    elif row.kind == "needle":
        found[f"{content['size']:,}"] = np.median(content["tops"]), None
    else:
        found["last"] = max(content["train"]), None
        losses = {"train": content["train"], "minus (a)": paired(row, rows)}
        for column, values in losses.items():
            tenth = list(values.values())[-max(1, len(values) // 10):]  # one batch alone is noise
            found |= {column: (np.mean(tenth), None)} if tenth else {}
        if content["val"]:
            found["validation"] = list(content["val"].values())[-1], None
    return found


def table(rows):
    """Print what was measured, a line a curve: mean ± standard error, and its folders."""
    print("mean ± standard error: over the seeds; of one seed, over its windows or samples")
    for kind, key, title in (
            ("posloss", "mean", "test loss (nats), mean of the tenth before a position"),
            ("niah", "exact", "needles found, all digits right, by context size"),
            ("niah", "first", "needles found, first digit right, by context size"),
            ("needle", "top", "top needle score by context size, median of the trials"),
            ("log", "train", "last update; losses in nats, training: mean of the last tenth")):
        lines = []
        for curve in curves(rows, kind):
            seeds = [numbers(row, rows, key) for row in curve.rows]
            lines.append((curve.style["label"].replace("$", ""), seeds, curve.rows))
        columns = {column for _, seeds, _ in lines for seed in seeds for column in seed}
        columns = sorted(columns, key=lambda column: (len(column), column))  # sizes as numbers
        wide = max([len(label) for label, _, _ in lines], default=0)
        if lines:
            print(f"\n{title}\n{'':{wide}}", *(f"{column:>15}" for column in columns))
        for label, seeds, measured in lines:
            print(f"{label:{wide}}", end="")
            for column in columns:
                there = [seed[column] for seed in seeds if column in seed]
                text = plus_minus([x for x, _ in there], there[0][1]) if there else "-"
                print(f"{text:>16}", end="")
            print("  ", *dict.fromkeys(str(row.path.parent) for row in measured))


FIGURES = {  # and the kind of results that they show
    fading: "", p_n: "log", z_max: "", learning_curves: "log", posloss: "posloss", niah: "niah",
    retrieval: "niah", needle_scores: "needle", top_scores: "needle", learned_s: "log"}


def main():
    cfg = configure(PlotConfig)
    what, *inputs = cfg.files or ("",)
    names = ", ".join(make.__name__ for make in FIGURES)
    if what not in ("all", "table", *names.split(", ")):
        raise UserError(f"name all, table or a figure ({names}), then folders of results")
    if cfg.format not in ("png", "pdf", "svg"):
        raise UserError(f"format must be png, pdf or svg, not {cfg.format!r}")
    for path in inputs:
        if not Path(path).exists():
            raise UserError(f"{path}: no such file or folder")
    rows = load(inputs)
    if what == "table" and rows:
        return table(rows)
    folder, drawn = Path(cfg.out or next(filter(Path.is_dir, map(Path, inputs)), "out")), []
    for make, kind in FIGURES.items():
        found = curves(rows, kind)
        wanted = what in ("all", make.__name__) and (found or not kind)
        if wanted and (figure := make(found)):
            drawn.append(folder / f"{make.__name__}.{cfg.format}")
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(drawn[-1])
            plt.close(figure)  # pyplot would keep it in memory
            print(drawn[-1])
    if not drawn:
        places = " ".join(inputs) or "no folder named"
        raise UserError(f"{places}: no result there that {what} could show")


if __name__ == "__main__":
    launch(main)
