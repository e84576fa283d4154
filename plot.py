"""
Draw the paper's figures from result files alone, beside the results or in --out.

    python plot.py all out/                                every figure that these results allow
    python plot.py learning_curves out/a_softmax out/b     one figure of some runs
    python plot.py table out/                              the numbers, with standard errors

fading (Fig. 1) and z_max (Fig. 3) need no results; p_n (Fig. 2), learning_curves (Fig. 4), posloss
(Fig. 5), niah and retrieval (Fig. 6), needle_scores (Fig. 7), top_scores (Fig. 8), learned_s.

A row is one result file. A curve is the rows that are equal in everything but the seed of training:
nothing else is averaged. Curves of one variant are told apart by what differs, or by their --tag.
"""
import json
import math
import textwrap
import zlib
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

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
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00",
           "#A88BD0", "#E58A7B", "#85C28E", "#D9C36A")
LINES = ("-", "--", "-.", ":")  # of the curves of one variant, and
SHADES = (0.0, 0.45, -0.45, 0.7)  # how far their colours go to white, or below 0 to black
FEW = 4  # with more curves than this in one axis bands are mud: they are left out
LOG_N = ("ssmax", "ssmax_s1", "ssmax_bias")  # the types whose f is log n: their s can be compared
ANSWERS = {  # to a needle's question, and their markers
    "all digits right": {"marker": "o", "linestyle": "none"},
    "only the first right": {"marker": "^", "linestyle": "none", "fillstyle": "none"},
    "first digit wrong": {"marker": "x", "linestyle": "none"},
}
plt.rcParams.update({
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight", "font.size": 9,
    "legend.fontsize": 8, "legend.title_fontsize": 7, "legend.edgecolor": "none",
    "legend.framealpha": 0.85, "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False,
    "axes.spines.right": False})


@dataclass(frozen=True)
class PlotConfig:
    files: tuple = ()  # the figure (or all, or table), then folders or files of results
    out: str = ""  # folder for the pictures; empty: the first folder of results
    format: str = "png"  # png, pdf or svg


# -----------------------------------------------------------------------------
# files -> rows

# What does not change a result, is said elsewhere, or is a seed (a corpus may be made for each).
NOT_A_FACT = {
    "training": FREE_TO_CHANGE | {"seed", "out_dir", "data_dir", "init_from", "variant", "files"},
    "evaluation": {"checkpoint", "data", "tag", "rope_theta", "attention_type"},  # see model_config
    "source": {"seed"},
}


@dataclass(frozen=True)
class Row:
    """One result file: what it is a measurement of, and what is in it."""
    path: Path
    kind: str  # log, posloss, niah or needle
    variant: str
    tag: str
    seed: tuple  # of training, and of the run that it went on from
    facts: dict  # {(part of the file, name): JSON of the value}: all settings but the seed
    content: dict

    @property
    def block_size(self):
        return self.content["model_config"]["block_size"]


def find(inputs, pattern):
    """Files named `pattern` among the inputs (files, or folders searched to the bottom)."""
    found = []
    for path in map(Path, inputs):
        if path.is_dir():
            found += sorted(path.rglob(pattern))
        elif path.match(pattern):
            found.append(path)
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
    """The content of a result, with arrays for the figures; None of an unfinished evaluation."""
    if kind == "log":
        # What stands behind the last end of a line is being written at this moment.
        content, *lines = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        for name, key in (("train", "loss"), ("val", "val_loss")):
            content[name] = {line["iter"]: float(line[key]) for line in lines if key in line}
        content["scales"] = [line for line in lines if "s" in line]
        return content
    content = json.loads(text)
    settings = content["settings"]
    if kind == "posloss" and "mean" in content:
        both = np.array([content["mean"], content["stderr"]], dtype=float)
        return content | {"mean": both[0], "stderr": both[1]}
    if kind == "niah" and "cells" in content:
        cells = sorted(content["cells"], key=lambda cell: (cell["depth"], cell["size"]))
        sizes, depths = (sorted({cell[key] for cell in cells}) for key in ("size", "depth"))
        grid = np.array([(cell["exact"], cell["first"]) for cell in cells], dtype=float)
        exact, first = grid.T.reshape(2, len(depths), len(sizes))
        return content | {"sizes": sizes, "depths": depths, "n": int(cells[0]["n"]),
                          "exact": exact, "first": first}
    if kind == "needle" and "trials" in content:
        content["example"]["scores"] = np.array(content["example"]["scores"], dtype=float)
        tops = np.array([trial["top"] for trial in content["trials"]], dtype=float)
        # indices of ANSWERS
        answers = [0 if t["exact"] else 1 if t["first"] else 2 for t in content["trials"]]
        return content | {"tops": tops, "answers": answers, "size": settings["trial_size"]}
    return None


def make_row(path, kind, content):
    config, base, settings = content["config"], content["base"] or {}, content.get("settings", {})
    corpus = content["data"] if kind == "log" else content["train_data"]
    text = settings.get("data") or {"source": {}}
    facts = {("", "fine_tuned"): json.dumps(bool(base))}
    for part, values, left_out in (
            ("", content["model_config"], set()),
            ("evaluation's", settings, NOT_A_FACT["evaluation"]),
            ("text's", text["source"], NOT_A_FACT["source"]),
            ("training's", config, NOT_A_FACT["training"]),
            ("base's", base, NOT_A_FACT["training"]),
            ("corpus's", corpus["source"], NOT_A_FACT["source"])):
        for name in sorted(values.keys() - left_out):
            facts[part, name] = json.dumps(values[name], sort_keys=True)
    seed = (config["seed"], base["seed"]) if base else (config["seed"],)
    return Row(path, kind, content["variant"], content.get("tag", ""), seed, facts, content)


# -----------------------------------------------------------------------------
# rows -> curves


@dataclass(frozen=True)
class Curve:
    """The rows that differ in the seed alone, and how they look in every figure."""
    rows: list
    label: str
    color: tuple
    line: str

    @property
    def style(self):
        return {"color": self.color, "linestyle": self.line, "label": self.label}

    def stack(self, key):
        """content[key] of all seeds, (seeds, ...)"""
        return np.array([row.content[key] for row in self.rows])


def label_of(variant):
    text = variant.replace(">>", " switched to ").replace(">", " swapped to ")
    return VARIANTS.get(variant, (text,))[0]


def identity(row):
    """What the rows of a curve have in common. Sorts in the order of VARIANTS, others behind."""
    known = list(VARIANTS)
    place = known.index(row.variant) if row.variant in known else len(known)
    return place, row.variant, row.tag, tuple(sorted(row.facts.items()))


def colors(rows):
    """{variant: colour}; one that is not in VARIANTS takes a free one of PALETTE by its name."""
    chosen, free = {}, list(PALETTE)
    for variant in sorted({row.variant for row in rows}):
        if variant in VARIANTS:
            chosen[variant] = VARIANTS[variant][1]
        else:
            free = free or list(PALETTE)
            chosen[variant] = free.pop(zlib.crc32(variant.encode()) % len(free))
    return chosen


def curves(rows, kind, key):
    """
    [Curve] of the rows of one kind (with something under `key`), in the order of VARIANTS.

    UserError where a seed is there twice. Logs of fine-tuning are left out where there are others:
    their losses are of other data.
    """
    chosen = [row for row in rows if row.kind == kind and len(row.content[key])]
    if kind == "log":
        chosen = [row for row in chosen if not row.content["base"]] or chosen
    groups, places, found = {}, {}, []
    for row in sorted(chosen, key=lambda row: (*identity(row), row.seed)):
        seeds = groups.setdefault(identity(row), {})
        if row.seed in seeds:
            give = "one run a --variant" if kind == "log" else "one evaluation a --tag"
            raise UserError(f"{seeds[row.seed].path} and {row.path} have the same settings and the "
                            f"same seed, {row.seed[0]}; leave one of them out, or give {give}")
        seeds[row.seed] = row
    groups = [list(seeds.values()) for seeds in groups.values()]
    color_of, most = colors(rows), max(map(len, groups), default=1)
    for group in groups:
        variant, n = group[0].variant, len(group)
        label = label_of(variant) + difference(group[0], [other[0] for other in groups])
        label += f", {n} seed{'s' * (n > 1)}" if most > 1 else ""
        place = places[variant] = places.get(variant, -1) + 1
        color = shade(color_of[variant], SHADES[place % 4])
        found.append(Curve(group, label, color, LINES[(place + place // 4) % 4]))
    return found


def shade(color, amount):
    return tuple(c + abs(amount) * ((amount > 0) - c) for c in to_rgb(color))


def difference(row, others):
    """What tells `row` from others of its variant: " [tag]", ", name=value", or nothing."""
    same = [other for other in others if other.variant == row.variant]
    text = f" [{row.tag}]" if row.tag and len(same) > 1 else ""
    same = [other for other in same if other.tag == row.tag]
    keys = {}  # what two parts of a file repeat divides the rows in the same way: it is said once
    for key in dict.fromkeys(key for other in same for key in other.facts):
        values = [other.facts.get(key) for other in same]
        if len(set(values)) > 1:
            keys.setdefault((key[1], *map(values.index, values)), key)
    shown = list(keys.values())
    if len(shown) > FEW:  # little in common: as many facts as tell them all apart
        shown, pieces = [], 1
        for key in keys.values():
            values = {tuple(other.facts.get(k) for k in (*shown, key)) for other in same}
            if len(values) > pieces:
                shown, pieces = [*shown, key], len(values)
    for part, name in shown:
        value = row.facts.get((part, name), "none").strip('[]"').replace('"', "")
        twice = sum(name == other for _, other in shown) > 1
        text += f", {part} {name}={value}" if twice and part else f", {name}={value}"
    return text + (f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else "")


# -----------------------------------------------------------------------------
# what figures share


def draw(axis, curve, x, y, few, band=0.0, **kwargs):
    """The mean of y (seeds, x) with its range, wider by `band`, if there are few curves."""
    axis.plot(x, y.mean(0), **{"linewidth": 1.3, **curve.style, **kwargs})
    if few:
        low, high = y.min(0) - band, y.max(0) + band
        axis.fill_between(x, low, high, color=curve.color, alpha=0.15, linewidth=0)


def bands(found, of_one_seed=""):
    """What a band is, for a legend."""
    if len(found) > FEW:
        return "lines: mean of the seeds, no bands"
    lines = [f"band: range of {n} seeds" for n in sorted({len(c.rows) for c in found} - {1})]
    if of_one_seed and any(len(curve.rows) == 1 for curve in found):
        lines.append(f"band{' of one seed' * bool(lines)}: {of_one_seed}")
    return "\n".join(lines)


def legend(axis, title="", beside=False):
    """A legend with every label once: inside the axis where there is room, else beside it."""
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    place = {"loc": "best"}
    if beside or len(once) > FEW + 1 or max(map(len, once), default=0) > 40:
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    wrapped = ["\n    ".join(textwrap.wrap(label, 44)) for label in once]
    axis.legend(once.values(), wrapped, title=title.strip(), alignment="left", **place)


def mark_training_length(axis, found):
    for block in sorted({row.block_size for curve in found for row in curve.rows}):
        label = f"training length {block:,}"
        axis.axvline(block, color="0.4", linestyle=":", linewidth=1.2, label=label)


def count(found, get, what):
    """ "200 samples", or "100 to 200 samples" where the files differ."""
    values = [get(row.content) for curve in found for row in curve.rows]
    low, high = min(values), max(values)
    return f"{low:,} {what}" if low == high else f"{low:,} to {high:,} {what}"


# -----------------------------------------------------------------------------
# figures: name(rows) -> a matplotlib figure, or None where the rows do not have what it shows


def fading(rows):
    """Fig. 1: -2 everywhere and +3 at the end; the largest weight under softmax and under SSMax."""
    n = np.unique(np.logspace(0.5, 5, 200).round())
    figure, axis = plt.subplots()
    for variant, factor, more in (("softmax", 1.0, ""), ("ssmax", 0.43 * np.log(n), ", s = 0.43")):
        label, color = VARIANTS[variant]
        axis.plot(n, 1 / (1 + (n - 1) * np.exp(-5 * factor)), color=color, label=label + more)
    axis.set(xscale="log", xlabel="number of keys n", ylabel="largest attention weight")
    axis.legend()
    return figure


def z_max(rows):
    """Fig. 3: 0, 1/(n-2), ..., 1 and z_max: its weight. SSMax needs 1/s more at any n."""
    z = np.linspace(0, 12, 400)
    figure, axis = plt.subplots()
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        rest, log = np.linspace(0, 1, n - 1), np.log(n)
        for variant, factor in (("softmax", 1), ("ssmax", 0.43 * log), ("ssmax_s1", log)):
            weight = 1 / (1 + np.exp(factor * (rest[:, None] - z)).sum(0))
            axis.plot(z, weight, color=VARIANTS[variant][1], linestyle=line)
    # Two legends: the colour is the method, the line is n.
    keys = [Line2D([], [], color="0.4", linestyle=line) for line in (":", "--", "-")]
    axis.add_artist(axis.legend(keys, ("n = 100", "n = 1,000", "n = 10,000"), loc=(1.02, 0.3)))
    axis.legend(axis.lines[-3:], ("Softmax", "SSMax, s = 0.43", "SSMax, s = 1"), loc=(1.02, 0.6))
    axis.set(xlabel="$z_{max}$", ylabel="weight of $z_{max}$", ylim=(0, 1.05))
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


def p_n(rows):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    runs = [(curve, row) for curve in curves(rows, "log", "train") for row in curve.rows
            if attention_type(row) == "pn" and (row.path.parent / "ckpt.pt").exists()]
    if not runs:
        return None
    figure, axis = plt.subplots()
    seed_colors = plt.cm.plasma(np.linspace(0, 0.8, len(runs)))
    for (curve, row), color in zip(runs, seed_colors, strict=True):
        p = checkpoint.load(row.path.parent)["model"]["p_n"].numpy()
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color, markersize=4, label=f"{curve.label}: seed {row.seed[0]}")
        for first, line, where in ((1, ":", "all n"), (4, "-", "n ≥ 4")):
            r2, fits = fit_p_n(p, first)
            a1, a2 = fits["log"]
            label = f"{where}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r2['log']:.2f}"
            fitted = a1 * np.log(n) + a2
            axis.plot(n[first - 1:], fitted[first - 1:], line, color=color, label=label)
            print(f"{row.path.parent}: R^2 for {where}:", *(f"{law} {r2[law]:.3f}" for law in r2))
    axis.set(xscale="log", xlabel="number of keys n", ylabel="$p_n$")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def comparable(row):
    """What a run must share with another for a difference of their losses to mean something."""
    batches = ("seed", "train_split", "data_order", "batch_size", "block_size")
    recipe = ("n_layer", "n_head", "n_embd", "learning_rate", "warmup_iters", "decay", "max_iters")
    config = row.content["config"]
    return [config.get(key) for key in batches + recipe], row.content["data"]["digest"]


def paired(row, rows):
    """{iter: loss minus that of the comparable (a)}; of several the most like it; {} if none."""
    logs = [other for other in rows if (other.kind, other.variant) == ("log", "softmax")]
    logs = [other for other in logs if comparable(other) == comparable(row)]
    if row.variant == "softmax" or not logs:
        return {}
    nearest = min(logs, key=lambda other: len(other.facts.items() ^ row.facts.items()))
    base = nearest.content["train"]
    return {i: loss - base[i] for i, loss in row.content["train"].items() if i in base}


def running_mean(losses):
    """[{iter: loss}] of seeds -> updates that all have, (seeds, updates) means over 2 % of them."""
    x = np.array(sorted(set.intersection(*map(set, losses))))
    total = np.cumsum([[0.0, *(seed[i] for i in x)] for seed in losses], axis=1)
    end = np.arange(1, len(x) + 1)
    start = np.maximum(0, end - max(1, len(x) // 50))  # fewer at the start: nothing is cut off
    return x, (total[:, end] - total[:, start]) / (end - start)


def learning_curves(rows):
    """Fig. 4: training and validation loss, and below the difference to (a) on the same batches."""
    found = curves(rows, "log", "train")
    if not found:
        return None
    losses = [(curve, [row.content["train"] for row in curve.rows]) for curve in found]
    pairs = [(curve, [paired(row, rows) for row in curve.rows]) for curve in found]
    pairs = [(curve, list(filter(None, losses))) for curve, losses in pairs if any(losses)]
    n = 1 + bool(pairs)
    figure, axes = plt.subplots(n, 1, sharex=True, squeeze=False, figsize=(5.6, 2.7 * n))
    # The y axes leave out the fall at the start, and of differences what is not the last half.
    panels = [(axes[0, 0], losses, 0.3, "loss"), (axes[-1, 0], pairs, 0.5, "minus (a)")][:n]
    for axis, items, start, what in panels:
        seen = [0.0] if what == "minus (a)" else []
        for curve, series in items:
            x, y = running_mean(series)
            draw(axis, curve, x, y, len(found) <= FEW)
            seen += y[:, x >= start * x[-1]].ravel().tolist()
            for val in [row.content["val"] for row in curve.rows] if what == "loss" else ():
                axis.plot(list(val), list(val.values()), "o", color=curve.color, markersize=2.5)
                seen += [loss for i, loss in val.items() if i >= start * x[-1]]
        margin = 0.06 * (max(seen) - min(seen)) or 0.1
        axis.set(ylim=(min(seen) - margin, max(seen) + margin), ylabel=f"{what} (nats per token)")
    title = f"lines: training, running mean\ndots: validation\n{bands(found)}"
    legend(axes[0, 0], title, beside=True)
    if pairs:
        axes[1, 0].axhline(0, color=VARIANTS["softmax"][1], linewidth=1)
    alone = "update   (no (a) of the same recipe and batches here)"
    axes[-1, 0].set_xlabel("update" if pairs else alone)
    return figure


def posloss(rows):
    """Fig. 5: test loss by position, in bins of equal width on the logarithmic axis."""
    found = curves(rows, "posloss", "mean")
    if not found:
        return None
    figure, axis = plt.subplots()
    for curve in found:
        mean, length = curve.stack("mean"), len(curve.rows[0].content["mean"])
        first = max(1, min(curve.rows[0].block_size // 16, length // 2))
        starts = np.unique(np.geomspace(first, length, 90).astype(int))[:-1]
        width = np.diff([*starts, length])
        band = 0.0
        if len(mean) == 1:  # positions taken as independent
            band = 2 * np.sqrt(np.add.reduceat(curve.stack("stderr")[0] ** 2, starts)) / width
        y = np.add.reduceat(mean, starts, axis=1) / width
        draw(axis, curve, starts + width / 2, y, len(found) <= FEW, band)
    mark_training_length(axis, found)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlabel="position (tokens)", ylabel="test loss (nats per token)")
    windows = count(found, lambda content: content["count"], "windows a seed")
    legend(axis, f"{windows}\n{bands(found, '2 standard errors over windows')}")
    return figure


def niah(rows):
    """Fig. 6: needles found by depth and context size, mean of the seeds; a panel a curve."""
    found = curves(rows, "niah", "cells")
    if not found:
        return None
    across = min((4, 3, 2), key=lambda n: -len(found) % n) if len(found) > 4 else len(found)
    down = math.ceil(len(found) / across)
    size = (2.4 * across + 1, 1.9 * down + 0.6)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(found):]:
        axis.set_axis_off()
    for axis, curve in zip(axes.flat, found, strict=False):
        shares, content = curve.stack("exact").mean(0), curve.rows[0].content
        image = axis.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for (y, x), share in np.ndenumerate(shares):
            color = "white" if share < 0.6 else "black"
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6, color=color)
        sizes, depths = content["sizes"], content["depths"]
        axis.set_xticks(range(len(sizes)), [f"{n:,}" for n in sizes], fontsize=6, rotation=45)
        axis.set_yticks(range(len(depths)), [f"{d:g} %" for d in depths], fontsize=7)
        axis.set_title(textwrap.fill(curve.label, 36), fontsize=8)
        axis.grid(False)
    samples = count(found, lambda content: content["n"], "samples a cell and seed")
    figure.supxlabel(f"context size (tokens); {samples}", fontsize=8)
    figure.supylabel("depth of the needle", fontsize=8)
    figure.colorbar(image, ax=axes, label="share of needles found (all digits)", shrink=0.9)
    return figure


def retrieval(rows):
    """Fig. 6 as lines: needles found by context size, mean over depths; a dot for each seed."""
    found = curves(rows, "niah", "cells")
    if not found:
        return None
    figure, axis = plt.subplots(figsize=(5.2, 3.5))
    several = any(len(curve.rows) > 1 for curve in found)
    for i, curve in enumerate(found):
        x, y = np.array(curve.rows[0].content["sizes"]), curve.stack("exact").mean(1)
        axis.plot(x, y.mean(0), linewidth=2, **curve.style)
        # Lines turn where it was measured; the dots of the curves stand side by side.
        beside = x * 2 ** (0.2 * ((i + 0.5) / len(found) - 0.5)) if several else x
        axis.vlines(beside, y.min(0), y.max(0), color=curve.color, alpha=0.5, linewidth=1.2)
        axis.plot(beside, y.T, "o", color=curve.color, markersize=3, alpha=0.7)
    mark_training_length(axis, found)
    sizes = sorted({n for curve in found for n in curve.rows[0].content["sizes"]})
    said = [n for n in sizes if not any(n / 1.4 < other < n for other in sizes)]
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{n:,}" if n in said else "" for n in sizes])
    axis.minorticks_off()
    axis.set(xlabel="context size (tokens)", ylabel="needles found (all digits)")
    samples = count(found, lambda content: content["n"] * len(content["depths"]), "samples a dot")
    legend(axis, samples + "\nline: mean; dots, bar: seeds" * several)
    return figure


def needle_scores(rows):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    found = curves(rows, "needle", "example")
    if not found:
        return None
    figure, axis = plt.subplots()
    for curve in found:
        scores = np.array([row.content["example"]["scores"].ravel() for row in curve.rows])
        best = np.sort(scores)[:, ::-1][:, :25]
        rank = range(1, best.shape[1] + 1)
        draw(axis, curve, rank, best, len(found) <= FEW, marker="o", markersize=3)
    examples = [row.content["example"] for curve in found for row in curve.rows]
    said = sorted({f"{e['city']}, depth {e['depth']:g} %, {e['size']:,} tokens" for e in examples})
    axis.set_title(f"attention of single heads to the needle ({'; '.join(said)})", fontsize=8)
    axis.set(xlabel="head, by rank", ylabel="needle score", ylim=(-0.02, 1.02))
    axis.xaxis.get_major_locator().set_params(integer=True)
    legend(axis, bands(found), beside=True)
    return figure


def top_scores(rows):
    """Fig. 8: the top needle scores of all trials, of all seeds, in falling order; the answers."""
    found = curves(rows, "needle", "trials")
    if not found:
        return None
    figure, axis = plt.subplots(figsize=(6, 4))
    for curve in found:
        tops = np.concatenate([row.content["tops"] for row in curve.rows])
        answers = np.concatenate([row.content["answers"] for row in curve.rows])
        rank, by_rank = 100 * (np.arange(len(tops)) + 0.5) / len(tops), np.argsort(-tops)
        axis.plot(rank, tops[by_rank], linewidth=0.8, **curve.style)
        step = math.ceil(len(tops) / 40)  # more markers than 40 hide each other
        for i in range(step // 2, len(tops), step):
            axis.plot(rank[i], tops[by_rank[i]], color=curve.color, markersize=4.5,
                      **list(ANSWERS.values())[answers[by_rank[i]]])
    for label, marker in ANSWERS.items():
        axis.plot([], [], color="0.4", label=label, **marker)
    size = count(found, lambda content: content["size"], "tokens")
    axis.set(xlabel="trials by rank (%)", ylabel=f"top needle score at {size}", ylim=(-0.02, 1.02))
    trials = count(found, lambda content: len(content["tops"]), "trials a seed")
    legend(axis, f"{trials}; 40 of a curve marked" if step > 1 else trials, beside=True)
    return figure


def attention_type(row):
    """The type of attention that a run ended with."""
    config = row.content["config"]
    if 0 < config.get("switch_iter", 0) < max(row.content["train"], default=0):
        return config["switch_attention_type"]
    return row.content["model_config"]["attention_type"]


def learned_s(rows):
    """The learned s by layer and head at the end of each run; a panel for each f(n)."""
    panels = {}
    for curve in curves(rows, "log", "scales"):
        kind = attention_type(curve.rows[0])
        panels.setdefault("log n" if kind in LOG_N else f"f(n) of {kind}", []).append(curve)
    if not panels:
        return None
    size = (5 * len(panels), 2.8)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, (law, found) in zip(axes.flat, panels.items(), strict=True):
        for i, curve in enumerate(found):
            s = np.array([row.content["scales"][-1]["s"] for row in curve.rows], dtype=float)
            layers = np.arange(1, s.shape[1] + 1)
            at = layers + 0.6 * ((i + 0.5) / len(found) - 0.5)
            dots = s.transpose(1, 0, 2).reshape(len(layers), -1)
            axis.plot(at, dots, "o", color=curve.color, markersize=3, alpha=0.7, label=curve.label)
            row, first = curve.rows[0], curve.rows[0].content["scales"][0]
            start = np.mean(first["s"])
            if first["iter"]:  # after a switch s starts at 1 / mean(log n)
                start = row.block_size / math.lgamma(row.block_size + 1)
            axis.axhline(start, color=curve.color, linestyle="--", label=f"start: {start:.3g}")
        for block in sorted({c.rows[0].block_size for c in found}) if law == "log n" else ():
            axis.axhline(1 / np.log(block), color="0.4", linestyle=":", label=f"1 / log {block:,}")
        axis.set(xlabel="layer", ylabel=f"s of each head (times {law})", xticks=layers)
        axis.set_ylim(0, None) if axis.get_ylim()[0] > 0 else None
        legend(axis, beside=True)
    return figure


# -----------------------------------------------------------------------------
# the table


def plus_minus(values, error=None):
    """Mean ± standard error over the seeds (of one seed: `error`), with two digits of the error."""
    if type(values[0]) is int:  # a count
        return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))
    mean = float(np.mean(values))
    if len(values) > 1:
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    if error is None:
        return f"{mean:.4f}"
    digits = min(4, max(0, 1 - math.floor(math.log10(max(error, 1e-9)))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def numbers(row, rows, key):
    """{column of the table: (number, its standard error within the file, or None)}"""
    content = row.content
    if row.kind == "posloss":
        found = {}
        for end in [m * row.block_size for m in (1, 2, 4, 8, 10, 16)]:
            mean, stderr = (content[k][end - max(1, end // 10):end] for k in ("mean", "stderr"))
            if end <= len(content["mean"]):
                found[end] = mean.mean(), np.sqrt((stderr**2).sum()) / len(stderr)
        return found
    if row.kind == "niah":
        # Two more found and two more not, so that 0 and 1 have an error too (Agresti and Coull).
        n, share = content["n"] * len(content["depths"]), content[key].mean(0)
        mended = (share * n + 2) / (n + 4)
        errors = np.sqrt(mended * (1 - mended) / (n + 4))
        return dict(zip(content["sizes"], zip(share, errors, strict=True), strict=True))
    if row.kind == "needle":
        return {f"median of the trials at {content['size']:,}": (np.median(content["tops"]), None)}
    found = {"last update": (max(content["train"]), None)}
    for column, losses in (("train loss", content["train"]), ("minus (a)", paired(row, rows))):
        if losses:
            found[column] = np.mean(list(losses.values())[-max(1, len(losses) // 10):]), None
    if content["val"]:
        found["val loss"] = list(content["val"].values())[-1], None
    return found


def table(rows):
    """Print what was measured, a line a curve: mean ± standard error, and its folders."""
    print("mean ± standard error: over the seeds; of one seed, over its windows or samples")
    for kind, key, title in (
            ("posloss", "mean", "test loss (nats), mean of the tenth before a position"),
            ("niah", "exact", "needles found, all digits right, by context size"),
            ("niah", "first", "needles found, first digit right, by context size"),
            ("needle", "tops", "top needle score"),
            ("log", "train", "training (losses in nats, mean of the last tenth of the updates)")):
        found = curves(rows, kind, key)
        measured = [[numbers(row, rows, key) for row in curve.rows] for curve in found]
        columns = sorted({column for seeds in measured for seed in seeds for column in seed})
        if not found:
            continue
        wide = max(len(curve.label) for curve in found)
        heads = [f"{column:,}" if kind in ("posloss", "niah") else column for column in columns]
        print(f"\n{title}\n{'':{wide}}", *(f"{head:>17}" for head in heads), "  from")
        for curve, seeds in zip(found, measured, strict=True):
            print(f"{curve.label.replace('$', ''):{wide}}", end="")
            for column in columns:
                there = [seed[column] for seed in seeds if column in seed]
                text = plus_minus([value for value, _ in there], there[0][1]) if there else "-"
                print(f" {text:>17}", end="")
            print("   ", *dict.fromkeys(str(row.path.parent) for row in curve.rows))


FIGURES = (fading, p_n, z_max, learning_curves, posloss, niah, retrieval, needle_scores,
           top_scores, learned_s)


def main():
    cfg = configure(PlotConfig)
    figures = {figure.__name__: figure for figure in FIGURES}
    what, *inputs = cfg.files or ("",)
    if what not in (*figures, "all", "table"):
        names = ", ".join(figures)
        raise UserError(f"name all, table or a figure ({names}), then folders of results")
    if cfg.format not in ("png", "pdf", "svg"):
        raise UserError(f"format must be png, pdf or svg, not {cfg.format!r}")
    for path in inputs:
        if not Path(path).exists():
            raise UserError(f"{path}: no such file or folder")
    rows = load(inputs)
    drawn = {name: figures[name](rows) for name in figures if what in (name, "all")}
    drawn = {name: figure for name, figure in drawn.items() if figure is not None}
    if not (rows if what == "table" else drawn):
        places = " ".join(inputs) or "no folder named"
        raise UserError(f"{places}: no result there that {what} could show")
    if what == "table":
        table(rows)
    folder = Path(cfg.out or next((path for path in inputs if Path(path).is_dir()), "out"))
    for name, figure in drawn.items():
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{name}.{cfg.format}")
        print(folder / f"{name}.{cfg.format}")


if __name__ == "__main__":
    launch(main)
