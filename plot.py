"""
Draw the paper's figures from result files alone, beside the results or in --out.

    python plot.py all out/                                every figure that these results allow
    python plot.py learning_curves out/a_softmax out/b     one figure of some runs
    python plot.py table out/                              the numbers, with standard errors

fading (Fig. 1) and z_max (Fig. 3) need no results; p_n (Fig. 2), learning_curves (Fig. 4), posloss
(Fig. 5), niah and retrieval (Fig. 6), needle_scores (Fig. 7), top_scores (Fig. 8), learned_s.

A row is one result file. A curve is the rows that are equal in everything but the seed of training:
nothing else is averaged. Curves of one variant are told apart by their --tag, or by what differs.
"""
import dataclasses
import json
import math
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

import model  # noqa: E402
from eval_niah import wilson  # noqa: E402
from lib import checkpoint  # noqa: E402
from lib.config import configure  # noqa: E402
from lib.runtime import UserError, describe, launch  # noqa: E402
from train import FREE_TO_CHANGE  # noqa: E402

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
FEW = 4  # with more curves than this in one axis bands are mud: they are left out
plt.rcParams.update({
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight", "font.size": 9,
    "axes.titlesize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "legend.fontsize": 8, "legend.title_fontsize": 7, "legend.edgecolor": "none",
    "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False})


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    files: tuple = ()  # the figure (or all, or table), then folders or files of results
    out: str = ""  # folder for the pictures; empty: the first folder of results
    format: str = "png"  # png, pdf or svg


@dataclasses.dataclass(frozen=True)
class Row:
    """One result file."""
    path: Path
    kind: str  # log, posloss, niah or needle
    variant: str
    tag: str
    seed: tuple  # of training, and of the run that it went on from
    block_size: int
    facts: dict  # {(part of the file, name): JSON of the value}: all settings but the seed
    content: dict


@dataclasses.dataclass(frozen=True)
class Curve:
    rows: list  # of the seeds
    style: dict  # of its line: color, linestyle, label
    band: bool  # drawn with one

    def stack(self, key):
        """content[key] of all seeds, (seeds, ...)"""
        return np.array([row.content[key] for row in self.rows])


# -----------------------------------------------------------------------------
# files -> rows


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
                if content:
                    rows.append(make_row(path, kind, content))
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
        return content
    content = json.loads(text)
    if kind == "posloss" and "mean" in content:  # one array fails if the two differ in length
        content["mean"], content["stderr"] = np.array([content["mean"], content["stderr"]], float)
    if kind == "niah" and "cells" in content:
        cells = sorted(content["cells"], key=lambda cell: (cell["depth"], cell["size"]))
        content["sizes"] = sorted({cell["size"] for cell in cells})
        content["depths"] = sorted({cell["depth"] for cell in cells})
        for key in ("exact", "first"):
            shares = np.array([cell[key] for cell in cells], float)
            content[key] = shares.reshape(len(content["depths"]), len(content["sizes"]))
    if kind == "needle" and "trials" in content:
        content["tops"] = np.array([trial["top"] for trial in content["trials"]], float)
    measured = {"posloss": "stderr", "niah": "cells", "needle": "trials"}[kind]
    return content if content["settings"] and measured in content else None


def make_row(path, kind, content):
    config, base, settings = content["config"], content["base"] or {}, content.get("settings", {})
    text = settings["data"]["source"] if settings else {}
    corpus = content["train_data" if settings else "data"]["source"]
    # No facts: what does not change a result, is said elsewhere (the theta of an evaluation by the
    # model's), or is a seed: that of training, and of a corpus, which may be made for each.
    training = FREE_TO_CHANGE | {"seed", "init_from", "variant", "files"}
    defaults = {f.name: f.default for f in dataclasses.fields(model.GPTConfig)}
    evaluation = {"checkpoint", "data", "tag"} | defaults.keys()
    shape = {**defaults, **content["model_config"]}  # a younger setting had its default then
    facts = {}
    for part, values, left_out in (
            ("model", shape, set()), ("evaluation", settings, evaluation),
            ("training", config, training), ("base", base, training),
            ("text", text, {"seed"}), ("corpus", corpus, {"seed"})):
        for name in sorted(values.keys() - left_out):
            facts[part, name] = json.dumps(values[name], sort_keys=True)
    seed = (config["seed"], base["seed"]) if base else (config["seed"],)
    return Row(path, kind, content["variant"], content.get("tag", ""), seed,
               content["model_config"]["block_size"], facts, content)


# -----------------------------------------------------------------------------
# rows -> curves


def label_of(variant):
    text = variant.replace(">>", " switched to ").replace(">", " swapped to ")
    return VARIANTS.get(variant, (text,))[0]


def colors(rows):
    """{variant: colour}, the same in all figures of these rows."""
    others = sorted({row.variant for row in rows} - VARIANTS.keys())
    known = {variant: color for variant, (_, color) in VARIANTS.items()}
    return known | {variant: PALETTE[i % len(PALETTE)] for i, variant in enumerate(others)}


def difference(row, others):
    """What tells `row` from the others of its variant: ", fine-tuned", " [tag]", ", name=value"."""
    same = [other for other in others if other.variant == row.variant]
    text = ", fine-tuned" if len(row.seed) > min(len(other.seed) for other in same) else ""
    text += f" [{row.tag}]" if row.tag and len(same) > 1 else ""
    same = [o for o in same if (o.tag, len(o.seed)) == (row.tag, len(row.seed))]
    said = []
    for key in dict.fromkeys(key for other in same for key in other.facts):
        if len({other.facts.get(key) for other in same}) > 1:
            value = row.facts.get(key, "none").strip('[]"').replace('"', "")
            said.append(f", {key[1]}={value}")
    return text + "".join(dict.fromkeys(said))  # what two parts of a file repeat is said once


def curves(rows, kind):
    """[Curve] of the rows of a kind, as in VARIANTS; UserError where a seed is there twice."""
    chosen = [row for row in rows if row.kind == kind]
    if kind == "log":  # the losses of fine-tuning are of other data
        chosen = [row for row in chosen if row.content["train"]]
        chosen = [row for row in chosen if not row.content["base"]] or chosen
    known, groups = list(VARIANTS), {}
    for row in sorted(chosen, key=lambda row: row.seed):
        place = known.index(row.variant) if row.variant in known else len(known)
        identity = (place, row.variant, row.tag, tuple(sorted(row.facts.items())))
        seeds = groups.setdefault(identity, {})
        if row.seed in seeds:
            give = "one run a --variant" if kind == "log" else "one evaluation a --tag"
            raise UserError(f"{seeds[row.seed].path} and {row.path} have the same settings and the "
                            f"same seed, {row.seed[0]}; leave one of them out, or give {give}")
        seeds[row.seed] = row
    groups = [list(seeds.values()) for _, seeds in sorted(groups.items())]
    color, found = colors(rows), []
    for group in groups:
        variant, n = group[0].variant, len(group)
        label = label_of(variant) + difference(group[0], [other[0] for other in groups])
        label += f", {n} seed{'s' * (n > 1)}" if len(chosen) > len(groups) else ""
        line = LINES[[curve.rows[0].variant for curve in found].count(variant) % len(LINES)]
        style = {"color": color[variant], "linestyle": line, "label": label}
        found.append(Curve(group, style, len(groups) <= FEW))
    return found


# -----------------------------------------------------------------------------
# what figures share


def draw(axis, curve, x, y, margin=0.0, **kwargs):
    """The mean of y (seeds, x), and as a band its range, wider by `margin`."""
    axis.plot(x, y.mean(0), **curve.style, **kwargs)
    if curve.band:
        low, high = y.min(0) - margin, y.max(0) + margin
        axis.fill_between(x, low, high, color=curve.style["color"], alpha=0.15, linewidth=0)


def legend(axis, title=""):
    """A legend beside the axis, where it hides nothing."""
    handles, labels = axis.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, 44, subsequent_indent="    ") for label in labels]
    axis.legend(handles, wrapped, title=title, alignment="left", loc="center left",
                bbox_to_anchor=(1, 0.5))


def bands(found, of_one_seed=""):
    """What a band is, for the title of a legend."""
    shown = f"band: range of the seeds{of_one_seed}"
    return shown if found[0].band else f"no bands: more than {FEW} curves"


def span(found, get):
    """ "200", or "100 to 200" where get(content) differs between the files."""
    values = {get(row.content) for curve in found for row in curve.rows}
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def mark_training_length(axis, found):
    for block in sorted({curve.rows[0].block_size for curve in found}):
        axis.axvline(block, color="0.4", linestyle=":", label=f"training length {block:,}")


# -----------------------------------------------------------------------------
# figures: name(curves) -> a matplotlib figure, or None where no curve has what it shows


def fading(found):
    """Fig. 1: -2 everywhere and +3 at the end; the largest weight under softmax and under SSMax."""
    n = np.unique(np.logspace(0.5, 5, 200).round())
    figure, axis = plt.subplots()
    for variant, factor in (("softmax", 1.0), ("ssmax", 0.43 * np.log(n))):
        label, color = VARIANTS[variant]
        axis.plot(n, 1 / (1 + (n - 1) * np.exp(-5 * factor)), color=color, label=label)
    axis.set(xscale="log", xlabel="number of keys n", ylabel="largest attention weight")
    legend(axis, "SSMax: s = 0.43")
    return figure


def z_max(found):
    """Fig. 3: 0, 1/(n-2), ..., 1 and z_max: its weight. SSMax needs 1/s more at any n."""
    z = np.linspace(0, 12, 400)
    figure, axis = plt.subplots()
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        rest, log = np.linspace(0, 1, n - 1), np.log(n)
        for variant, factor in (("softmax", 1), ("ssmax", 0.43 * log), ("ssmax_s1", log)):
            weight = 1 / (1 + np.exp(factor * (rest[:, None] - z)).sum(0))
            label, color = VARIANTS[variant]
            axis.plot(z, weight, color=color, linestyle=line, label=f"{label}, n = {n:,}")
    axis.set(xlabel="$z_{max}$", ylabel="weight of $z_{max}$", ylim=(0, 1.05))
    legend(axis, "(b): s = 0.43")
    return figure


def fit_p_n(p, first=1):
    """Least squares of learned p_n, n >= first -> ({f: R^2 of a1 f(n) + a2}, {f: (a1, a2)})."""
    n = np.arange(first, len(p) + 1, dtype=float)
    p, r2, fits = np.asarray(p, dtype=float)[first - 1:], {}, {}
    for law, f in {"log": np.log(n), "line": n, "root": np.sqrt(n), "constant": 0 * n}.items():
        a1, a2 = np.polyfit(f, p, 1) if f.any() else (0.0, p.mean())
        fits[law] = (a1, a2)
        r2[law] = 1 - float(((p - a1 * f - a2) ** 2).sum() / ((p - p.mean()) ** 2).sum())
    return r2, fits


def f_of(row):
    """f(n) of the attention type that a run ended with; None if model.py no longer has it."""
    config, attention_type = row.content["config"], row.content["model_config"]["attention_type"]
    if 0 < config.get("switch_iter", 0) < max(row.content["train"]):
        attention_type = config["switch_attention_type"]
    return model.ATTENTION.get(attention_type, (None,))[0]


def p_n(found):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    rows = [row for curve in found for row in curve.rows if f_of(row) is model.p_n]
    rows = [row for row in rows if (row.path.parent / "ckpt.pt").exists()]
    figure, axis = plt.subplots()
    for row, place in zip(rows, np.linspace(0, 0.8, len(rows)), strict=True):
        p, color = checkpoint.load(row.path.parent)["model"]["p_n"].numpy(), plt.cm.plasma(place)
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color, label=f"{row.path.parent.name}: seed {row.seed[0]}")
        for first, line, where in ((1, ":", "all n"), (4, "-", "n ≥ 4")):
            r2, fits = fit_p_n(p, first)
            a1, a2 = fits["log"]
            axis.plot(n[first - 1:], a1 * np.log(n[first - 1:]) + a2, line, color=color,
                      label=f"{where}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r2['log']:.2f}")
            print(f"{row.path.parent}: R^2 for {where}:", *(f"{law} {r2[law]:.3f}" for law in r2))
    axis.set(xscale="log", xlabel="number of keys n", ylabel="$p_n$")
    legend(axis)
    return figure if rows else None


def paired(row, rows):
    """{iter: loss minus that of the (a) with the same batches and recipe}, {} if there is none."""
    attention = {"attention_type", "s_init", "switch_iter", "switch_attention_type",
                 "switch_warmup_iters"}

    def recipe(row):
        facts = {key: fact for key, fact in row.facts.items() if key[1] not in attention}
        return row.seed, row.content["data"]["digest"], facts

    losses = row.content["train"]
    for a in [other for other in rows if (other.kind, other.variant) == ("log", "softmax")]:
        if recipe(a) == recipe(row):
            return {i: losses[i] - loss for i, loss in a.content["train"].items() if i in losses}
    return {}


def smooth(losses):
    """[{iter: loss}] of seeds -> updates that all have, (seeds, updates); means of 1 % of them."""
    x = np.array(sorted(set.intersection(*map(set, losses))))
    step = max(1, len(x) // 100)
    whole = len(x) // step * step
    y = np.array([list(map(seed.get, x[:whole])) for seed in losses])
    return x[:whole].reshape(-1, step).mean(1), y.reshape(len(y), -1, step).mean(2)


def learning_curves(found):
    """Fig. 4: training and validation loss, and below the difference to (a) on the same batches."""
    rows = [row for curve in found for row in curve.rows]
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(5.6, 5.4))
    for curve in found:
        draw(axes[0], curve, *smooth([row.content["train"] for row in curve.rows]))
        for row in curve.rows:
            val = row.content["val"]
            axes[0].plot(val.keys(), val.values(), "o", color=curve.style["color"], markersize=2.5)
        pairs = list(filter(None, [paired(row, rows) for row in curve.rows]))
        if pairs:
            draw(axes[1], curve, *smooth(pairs))
    for axis, what in zip(axes, ("loss", "minus (a)"), strict=True):
        # The fall at the start would flatten all that comes behind it.
        late = [list(line.get_ydata())[2 * len(line.get_ydata()) // 5:] for line in axis.lines]
        late = np.concatenate([*late, [] if axis.lines else [0.0]])
        margin = 0.1 * np.ptp(late) or 0.1
        axis.set(ylim=(late.min() - margin, late.max() + margin), ylabel=f"{what} (nats per token)")
    legend(axes[0], f"lines: training; dots: validation\n{bands(found)}")
    axes[1].set_xlabel("update")
    if not axes[1].lines:
        figure.delaxes(axes[1])
        axes[0].tick_params(labelbottom=True)
        axes[0].set_xlabel("update   (no (a) of the same recipe and batches here)")
    return figure


def posloss(found):
    """Fig. 5: test loss by position, in bins of equal width on the logarithmic axis."""
    figure, axis = plt.subplots()
    for curve in found:
        mean, variance = curve.stack("mean"), curve.stack("stderr") ** 2
        first = max(1, min(curve.rows[0].block_size // 16, mean.shape[1] // 2))
        starts = np.unique(np.geomspace(first, mean.shape[1], 90).astype(int))[:-1]
        width = np.diff([*starts, mean.shape[1]])
        # positions taken as independent
        error = np.sqrt(np.add.reduceat(variance, starts, axis=1))[0] / width
        y = np.add.reduceat(mean, starts, axis=1) / width
        draw(axis, curve, starts + width / 2, y, 2 * error if len(mean) == 1 else 0.0)
    mark_training_length(axis, found)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlabel="position (tokens)", ylabel="test loss (nats per token)")
    windows = span(found, lambda content: content["count"])
    of_one_seed = "\nband of one seed: 2 standard errors over windows"
    legend(axis, f"{windows} windows a seed\n{bands(found, of_one_seed)}")
    return figure


def niah(found):
    """Fig. 6: needles found by depth and context size, mean of the seeds; a panel a curve."""
    across, down = min(len(found), 4), math.ceil(len(found) / 4)
    figure, axes = plt.subplots(down, across, figsize=(2.4 * across + 1, 1.9 * down + 0.6),
                                squeeze=False, layout="constrained")
    for axis in axes.flat[len(found):]:
        axis.set_axis_off()
    for axis, curve in zip(axes.flat, found, strict=False):
        shares, content = curve.stack("exact").mean(0), curve.rows[0].content
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")
        for (y, x), share in np.ndenumerate(shares):
            color = "white" if share < 0.6 else "black"
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6, color=color)
        axis.set_xticks(range(shares.shape[1]), [f"{n:,}" for n in content["sizes"]], rotation=45)
        axis.set_yticks(range(len(shares)), [f"{depth:g} %" for depth in content["depths"]])
        axis.set_title(textwrap.fill(curve.style["label"], 36))
        axis.grid(False)
    samples = span(found, lambda content: content["cells"][0]["n"])
    figure.supxlabel(f"context size (tokens); {samples} samples a cell and seed", fontsize=8)
    figure.supylabel("depth of the needle", fontsize=8)
    figure.colorbar(image, ax=axes, label="share found (all digits)")
    return figure


def retrieval(found):
    """Fig. 6 as lines: needles found by context size, mean over depths; a dot for each seed."""
    figure, axis = plt.subplots()
    for i, curve in enumerate(found):
        x, y = np.array(curve.rows[0].content["sizes"]), curve.stack("exact").mean(1)
        axis.plot(x, y.mean(0), linewidth=2, **curve.style)
        # Lines turn where it was measured; the dots of the curves stand side by side.
        beside = x * 2 ** (0.2 * ((i + 0.5) / len(found) - 0.5))
        axis.plot(beside, y.T, "o", color=curve.style["color"], markersize=3, alpha=0.7)
    mark_training_length(axis, found)
    sizes = sorted({n for curve in found for n in curve.rows[0].content["sizes"]})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=90)
    axis.minorticks_off()
    axis.set(xlabel="context size (tokens)", ylabel="needles found (all digits)")
    samples = span(found, lambda content: content["cells"][0]["n"] * len(content["depths"]))
    legend(axis, f"line: mean of the seeds\ndot: one seed, {samples} samples")
    return figure


def needle_scores(found):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    figure, axis = plt.subplots()
    for curve in found:
        scores = np.array([np.ravel(row.content["example"]["scores"]) for row in curve.rows])
        best = -np.sort(-scores)[:, :25]
        draw(axis, curve, range(1, best.shape[1] + 1), best, marker="o", markersize=3)
    size = span(found, lambda content: content["example"]["size"])
    axis.set(xlabel="head, by rank", ylabel=f"needle score at {size} tokens", ylim=(-0.02, 1.02))
    legend(axis, bands(found))
    return figure


def top_scores(found):
    """Fig. 8: the top needle scores of all trials, of all seeds, in falling order; the answers."""
    figure, axis = plt.subplots()
    for curve in found:
        trials = [trial for row in curve.rows for trial in row.content["trials"]]
        trials = sorted(trials, key=lambda trial: -trial["top"])
        rank = 100 * (np.arange(len(trials)) + 0.5) / len(trials)  # whatever number of trials
        axis.plot(rank, [trial["top"] for trial in trials], linewidth=0.8, **curve.style)
        for x, trial in zip(rank, trials, strict=True):
            marker = "o" if trial["exact"] else "^" if trial["first"] else "x"
            axis.plot(x, trial["top"], marker, color=curve.style["color"], markersize=3,
                      fillstyle="full" if trial["exact"] else "none")
    size = span(found, lambda content: content["settings"]["trial_size"])
    axis.set(xlabel="trials by rank (%)", ylim=(-0.02, 1.02),
             ylabel=f"top needle score at {size} tokens")
    trials = span(found, lambda content: len(content["trials"]))
    legend(axis, f"{trials} trials a seed\n● all digits right, △ only the first, × first wrong")
    return figure


def learned_s(found):
    """The learned s by layer and head at the end of each run, where f(n) is log n."""
    runs = [(curve, row) for curve in found for row in curve.rows
            if row.content["scales"] and f_of(row) is model.log_n]
    figure, axis = plt.subplots()
    marks = {}  # of equal heights one
    for i, (curve, row) in enumerate(runs):
        first, N, color = row.content["scales"][0], row.block_size, curve.style["color"]
        s = np.array(row.content["scales"][-1]["s"])
        layers = np.arange(1, len(s) + 1)
        axis.plot(layers + 0.6 * ((i + 0.5) / len(runs) - 0.5), s, "o", color=color, markersize=3)
        if row is curve.rows[0]:
            axis.plot([], [], "o", color=color, label=curve.style["label"])
        # After a switch s starts at 1 / mean(log n).
        start = N / math.lgamma(N + 1) if first["iter"] else np.mean(first["s"])
        marks |= {f"start: {start:.3g}": (start, "--"), f"1 / log {N:,}": (1 / math.log(N), ":")}
        axis.set(xlabel="layer", ylabel="s of each head", xticks=layers)
    for label, (height, line) in marks.items():
        axis.axhline(height, color="0.4", linestyle=line, label=label)
    legend(axis)
    return figure if runs else None


# -----------------------------------------------------------------------------
# the table


def plus_minus(values, error=None):
    """Mean ± standard error over the seeds (of one seed: `error`), with two digits of the error."""
    mean = float(np.mean(values))
    if len(values) > 1:
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    if not error:
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
        for size, share in zip(content["sizes"], content[key].mean(0), strict=True):
            n = content["cells"][0]["n"] * len(content["depths"])
            low, high = wilson(share * n, n)  # 2 * 1.96 standard errors, at 0 and 1 as well
            found[f"{size:,}"] = share, (high - low) / 3.92
    elif row.kind == "needle":
        found[f"{content['settings']['trial_size']:,}"] = np.median(content["tops"]), None
    else:
        found["last"] = max(content["train"]), None
        for column, losses in (("train", content["train"]), ("minus (a)", paired(row, rows))):
            if losses:
                found[column] = np.mean(list(losses.values())[-max(1, len(losses) // 10):]), None
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
            ("needle", "tops", "top needle score by context size, median of the trials"),
            ("log", "train", "last update; losses in nats, training: mean of the last tenth")):
        found = curves(rows, kind)
        measured = [[numbers(row, rows, key) for row in curve.rows] for curve in found]
        columns = {column for seeds in measured for seed in seeds for column in seed}
        columns = sorted(columns, key=lambda column: (len(column), column))  # sizes as numbers
        labels = [curve.style["label"].replace("$", "") for curve in found]
        wide = max(map(len, labels), default=0)
        if found:
            print(f"\n{title}\n{'':{wide}}" + "".join(f"{column:>17}" for column in columns))
        for label, curve, seeds in zip(labels, found, measured, strict=True):
            print(f"{label:{wide}}", end="")
            for column in columns:
                there = [seed[column] for seed in seeds if column in seed]
                text = plus_minus([value for value, _ in there], there[0][1]) if there else "-"
                print(f"{text:>17}", end="")
            print("  ", *dict.fromkeys(str(row.path.parent) for row in curve.rows))


# -----------------------------------------------------------------------------

FIGURES = {  # and the kind of results that they show
    fading: "", p_n: "log", z_max: "", learning_curves: "log", posloss: "posloss", niah: "niah",
    retrieval: "niah", needle_scores: "needle", top_scores: "needle", learned_s: "log"}


def main():
    cfg = configure(PlotConfig)
    what, *inputs = cfg.files or ("",)
    names = ", ".join(figure.__name__ for figure in FIGURES)
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
    for draw_figure, kind in FIGURES.items():
        found = curves(rows, kind)
        if what in ("all", draw_figure.__name__) and (found or not kind):
            figure = draw_figure(found)
            if figure:
                drawn.append(folder / f"{draw_figure.__name__}.{cfg.format}")
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(drawn[-1])
                plt.close(figure)
                print(drawn[-1])
    if not drawn:
        places = " ".join(inputs) or "no folder named"
        raise UserError(f"{places}: no result there that {what} could show")


if __name__ == "__main__":
    launch(main)
