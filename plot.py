"""
Draw the paper's figures from result files alone, beside the results or in --out.

    python plot.py all out/                             the table, and each figure there is data for
    python plot.py learning_curves out/a_softmax out/b  one figure of some runs
    python plot.py table out/                           the numbers, with standard errors

Figures: fading (1 in the paper), p_n (2), z_max (3), learning_curves (4), posloss (5), niah and
retrieval (6), needle_scores (7), top_scores (8); learned_s, temperature (what temperature.py found)
and recall (several tasks); fading and z_max need no results.
A row is one result file. A curve is the rows that are equal in everything but the seed of training:
nothing else is averaged. Curves of one variant are told apart by their --tag, or by what differs.
"""
import dataclasses
import json
import math
import textwrap
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import model
from eval_niah import wilson
from eval_posloss import loss_before
from lib import checkpoint
from lib.config import configure
from lib.runtime import MALFORMED, UserError, explain, launch, read_lines
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
KINDS = {"posloss": "posloss*.json", "niah": "niah*.json", "needle": "needle*.json",
         "temperature": "temperature*.jsonl", "log": "log.jsonl"}
LINES = ("-", "--", "-.", ":")  # of the curves of one variant
FEW = 4  # with more curves than this in one axis bands are mud: they are left out
# Settings that no result depends on, or that stand elsewhere in the file
NO_FACTS = FREE_TO_CHANGE | {"init_from", "variant", "checkpoint", "data", "tag", "qa_format"}
OF_ATTENTION = ("attention_type", "s_init", "switch_")  # what may differ from the (a) compared
matplotlib.rcParams.update({
    "figure.figsize": (5.6, 3.7), "figure.dpi": 150, "savefig.bbox": "tight", "font.size": 8,
    "figure.labelsize": 8, "axes.titlesize": 8, "axes.grid": True, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "legend.edgecolor": "none"})


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    files: tuple = ()  # the figure (or all, or table), then folders or files of results
    out: str = ""  # folder for the pictures; empty: the first folder of results


# --- files -> rows ------------------------------------------------------------------------------
def find(inputs, pattern):
    """Files named `pattern` among the inputs (files, or folders searched to the bottom)."""
    found = []
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        # sorted: the order of a file system is none
        found += sorted(path.rglob(pattern)) if path.is_dir() else [path] * path.match(pattern)
    return found


def load(inputs):
    """
    A row for each log and finished evaluation in the inputs; a damaged file is a UserError.

    A row has the JSON of its file (of a log's first line) as attributes, and what `read` adds.
    """
    rows = []
    for kind, name in KINDS.items():
        for path in find(inputs, name):
            with explain(f"{path} is damaged, or not a result of this program; move it away",
                         MALFORMED):
                row = read(path, kind)
            rows += [row] if row.y else []  # else nothing is measured yet
    logs = [row for row in rows if row.kind == "log"]
    if not all(row.base for row in logs):  # the losses of fine-tuning are of other data
        rows = [row for row in rows if row.kind != "log" or not row.base]
    compare(logs)
    return rows


def read(path, kind):
    """
    The row of a file, with path and kind; seed, (of training[, of the run that it went on from]);
    facts; y, {x: y} as a line of a figure shows it (empty where nothing is measured yet), and its
    standard error within the file; tables, {title: ({column: number}, {column: error})}.
    """
    content, *lines = read_lines(path)
    # a log is of no evaluation: no tag, no settings of one
    others = {"tag": "", "settings": {"data": {"source": {}}}, "train_data": content.get("data")}
    row = SimpleNamespace(**others | content, path=path, kind=kind, y={}, error={}, tables={})
    if "done" not in content:  # else an evaluation that was cut off, or still runs
        row.block_size = row.model_config["block_size"]
        row.seed = tuple(config["seed"] for config in (row.config, row.base) if config)
        row.tag = ", ".join(["from a checkpoint"] * bool(row.base) + [row.tag] * bool(row.tag))
        row.facts = facts(row)
        measure(row, lines)
    return row


def facts(row):
    """((part of the file, "name=value"), ...): all settings behind a result but the seeds."""
    defaults = dataclasses.asdict(model.GPTConfig())  # of settings younger than the file
    parts = {
        # The model behind the settings: it says what an evaluation's "as trained" stands for.
        "model": row.settings | defaults | row.model_config,
        "training": defaults | row.config, "base": defaults | (row.base or {}),
        "text": row.settings["data"]["source"], "corpus": row.train_data["source"]}
    found = []
    for part, values in parts.items():
        # That of an evaluation's samples is a setting; a corpus may be made anew for each seed.
        seed = set() if part == "model" else {"seed"}
        for name in sorted(values.keys() - NO_FACTS - seed):
            value = json.dumps(values[name], sort_keys=True).replace('"', "")
            found.append((part, f"{name}={value}"))
    return tuple(found)


def measure(row, lines):
    """Set y, error, tables and what else figures show of the row's kind."""
    if row.kind == "posloss":
        length, multiples = len(row.mean), [row.block_size * m for m in (1, 2, 4, 8, 10, 16)]
        # not from 1: the fall over the first tokens would flatten the rest of a figure
        ends = np.geomspace(max(1, length // 256), length, 90).astype(int).tolist() + multiples
        for end in sorted(end for end in ends if end <= length):
            row.y[end], row.error[end] = loss_before(end, vars(row))
        there = {end: row.y[end] for end in multiples if end <= length}
        row.tables["test loss (nats), mean of the tenth before a position"] = there, row.error
    elif row.kind == "niah":
        cells = sorted(row.cells, key=lambda cell: (cell["depth"], cell["size"]))
        row.depths, sizes = (sorted({cell[key] for cell in cells}) for key in ("depth", "size"))
        row.n, row.samples = cells[0]["n"], cells[0]["n"] * len(row.depths)
        for key, digits in (("first", "first digit"), ("exact", "all digits")):  # figures: exact
            shares = np.array([cell[key] for cell in cells], float)
            row.grid = shares.reshape(len(row.depths), len(sizes))  # fails if there is a hole
            row.y = dict(zip(sizes, row.grid.mean(0), strict=True))
            # a 95 % interval is 2 * 1.96 errors wide, at 0 and 1 as well
            row.error = {size: np.ptp(wilson(share * row.samples, row.samples)) / 3.92
                         for size, share in row.y.items()}
            row.tables[f"needles found, {digits} right, by context size"] = row.y, row.error
        row.partial = {size: np.mean([cell["substring"] for cell in cells if cell["size"] == size])
                       for size in sizes}  # of several answers: RULER's score
    elif row.kind == "needle":
        row.n, row.size = len(row.trials), row.settings["trial_size"]
        # by rank, not by head: which heads of a seed learn to retrieve is chance
        row.y = dict(enumerate(sorted(np.ravel(row.example["scores"]), reverse=True)[:25], 1))
        median = {row.size: np.median([float(trial["top"]) for trial in row.trials])}
        row.tables["top needle score by context size, median of the trials"] = median, {}
    elif row.kind == "temperature":
        lines = [line for line in lines if not math.isnan(line["best"])]  # all factors alike
        row.y = {line["length"]: line["best"] for line in lines}
        row.error = {line["length"]: np.ptp(line["interval"]) / 3.92 for line in lines}
        title = f"best factor on the query, by context size ({row.settings['what']})"
        row.tables[title] = row.y, row.error
    else:
        row.y = {line["iter"]: float(line["loss"]) for line in lines if "loss" in line}
        row.val = {line["iter"]: float(line["val_loss"]) for line in lines if "val_loss" in line}
        row.scales = [line for line in lines if "s" in line]
        # f(n) at the end of the run; None: model.py no longer has that type
        switched = 0 < row.config.get("switch_iter", 0) < max(row.y, default=0)
        settings, prefix = (row.config, "switch_") if switched else (row.model_config, "")
        row.f = model.ATTENTION.get(settings[f"{prefix}attention_type"], (None,))[0]


def compare(logs):
    """Set minus_a, y minus that of the (a) with the same batches and recipe, or {}; and a table."""

    def recipe(row):  # batches differ by more than variants do: only equal ones are compared
        same = [fact for fact in row.facts if not fact[1].startswith(OF_ATTENTION)]
        return row.seed, row.data["digest"], *same

    softmax = {recipe(row): row.y for row in logs if row.variant == "softmax"}
    for row in logs:
        a, numbers = softmax.get(recipe(row), {}), {"last": max(row.y)}
        row.minus_a = {i: row.y[i] - a[i] for i in row.y if i in a}
        for column, losses in (("train", row.y), ("minus (a)", row.minus_a)):
            last = [*losses.values()][-max(1, len(losses) // 10):]  # one batch alone is noise
            numbers |= {column: np.mean(last)} if last else {}
        numbers |= {"validation": [*row.val.values()][-1]} if row.val else {}
        row.tables["last update; losses in nats, training: mean of the last tenth"] = numbers, {}


# --- rows -> curves -----------------------------------------------------------------------------
def label_of(variant):
    text = variant.replace(">>", " switched to ").replace(">", " swapped to ")
    return VARIANTS.get(variant, (text,))[0]


def difference(row, others):
    """What tells `row` from the others of its variant: " [tag]", ", name=value" and so on."""
    # A tag is the user's own name of what differs: only rows that share it need the settings.
    same = [set(other.facts) for other in others if other.tag == row.tag]
    said = [fact for part, fact in row.facts if (part, fact) not in set.intersection(*same)]
    tag = f" [{row.tag}]" if row.tag and len(others) > 1 else ""
    return tag + "".join(f", {fact}" for fact in dict.fromkeys(said))  # of two parts: said once


def curves(rows):
    """
    {kind: [curve]}, in the order of VARIANTS; UserError where a seed is there twice.

    A curve is its rows, one a seed, and its style: {"color", "linestyle", "label"}.
    """
    # of all kinds at once, so that the figures of one call agree on the colours
    names = [*VARIANTS, *sorted({row.variant for row in rows} - VARIANTS.keys())]
    colors = [color for _, color in VARIANTS.values()] + [*PALETTE]
    rows = sorted(rows, key=lambda row: (names.index(row.variant), row.tag, row.facts, row.seed))
    groups = {}  # of rows that are equal but for their seeds
    for row in rows:
        group = groups.setdefault((row.kind, row.variant, row.tag, row.facts), [])
        if group and group[-1].seed == row.seed:  # averaged, one run would pass for two
            give = "one run a --variant" if row.kind == "log" else "one evaluation a --tag"
            raise UserError(f"{group[-1].path} and {row.path} have the same settings and the same "
                            f"seed, {row.seed[0]}; leave one of them out, or give {give}")
        group.append(row)
    found = {kind: [] for kind in KINDS}
    for (kind, variant, *_), group in groups.items():
        color = colors[names.index(variant) % len(colors)]
        others = [other for other, *_ in groups.values()
                  if (other.kind, other.variant) == (kind, variant)]
        line = LINES[sum(style["color"] == color for _, style in found[kind]) % len(LINES)]
        label = label_of(variant) + difference(group[0], others)
        if len(rows) > len(groups):
            label += f", {len(group)} seed{'s' * (len(group) > 1)}"
        found[kind].append((group, {"color": color, "linestyle": line, "label": label}))
    return found


# --- figures: name(curves) -> a matplotlib figure, or None where no curve has what it shows -----
def draw(found, axis=None, name="y"):
    """The axis with the mean of the seeds and, as a band, their range or two errors of one."""
    axis = axis or Figure().subplots()
    for rows, style in found:
        seeds = [getattr(row, name) for row in rows if getattr(row, name)]
        if not seeds:  # no (a) is here that these could be compared with
            continue
        x = sorted(set.intersection(*map(set, seeds)))  # an unfinished run is shorter
        step = max(1, len(x) // 100)  # the losses of single batches are noise
        x = x[:len(x) // step * step]
        y = np.array([[seed[i] for i in x] for seed in seeds])
        x, y = np.reshape(x, (-1, step)).mean(1), y.reshape(len(y), -1, step).mean(2)
        axis.plot(x, y.mean(0), **style)
        if len(found) <= FEW:
            error = 2 * np.array([*rows[0].error.values()] or 0) if len(y) == 1 else 0
            axis.fill_between(x, y.min(0) - error, y.max(0) + error, color=style["color"],
                              alpha=0.15, lw=0)
    return axis


def finish(axis, title="", of_one="", **labels):
    """The axis' figure, with a legend beside the axis, where it hides nothing."""
    axis.set(**labels)
    if axis.collections:  # bands, which mean nothing to a reader until they are explained
        title += "\nband: range of the seeds" + of_one
    axis.legend(title=title.strip(), alignment="left", loc="center left", bbox_to_anchor=(1, 0.5))
    return axis.figure


def span(found, name):
    """ "200", or "100 to 200" where that attribute differs between the rows."""
    values = {getattr(row, name) for rows, _ in found for row in rows}
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def token_axis(axis, found):
    """A logarithmic axis of tokens, on which the training lengths are marked."""
    axis.set_xscale("log", base=2)  # the lengths are powers of two
    axis.xaxis.set_major_formatter("{x:,.0f}")
    for block in sorted({rows[0].block_size for rows, _ in found}):
        axis.axvline(block, color="0.4", linestyle=":", label=f"training length {block:,}")


def fading(found):
    """Fig. 1: -2 everywhere and +3 at the end; the largest weight under softmax and under SSMax."""
    axis, n = Figure().subplots(), np.logspace(0.5, 5, 200)
    for variant, factor in (("softmax", 1.0), ("ssmax", 0.43 * np.log(n))):
        weight = 1 / (1 + (n - 1) * np.exp(-5 * factor))  # of the one that stands 5 above n - 1
        axis.plot(n, weight, color=VARIANTS[variant][1], label=VARIANTS[variant][0])
    return finish(axis, "SSMax: s = 0.43", xscale="log", xlabel="number of keys n",
                  ylabel="largest attention weight")


def p_n(found):
    """Fig. 2: the learned p_n of each run, with a1 log n + a2 fitted to all n and to n >= 4."""
    # No log holds p_n: it is read from the weights, which may have been left elsewhere.
    runs = [row.path.parent for rows, _ in found for row in rows if row.f is model.p_n]
    runs = [run for run in runs if (run / "ckpt.pt").exists()]
    if not runs:
        return None
    axis = Figure().subplots()
    # not to its end, a yellow that is not seen on white
    colors = matplotlib.colormaps["plasma"](np.linspace(0, 0.8, len(runs)))
    for run, color in zip(runs, colors, strict=True):
        p = checkpoint.load(run)["model"]["p_n"].numpy()
        n = np.arange(1, len(p) + 1)
        axis.plot(n, p, ".", color=color)
        for first, line in ((1, ":"), (4, "-")):
            log, y = np.log(n[first - 1:]), p[first - 1:]
            (a1, a2), r = np.polyfit(log, y, 1), np.corrcoef(log, y)[0, 1]
            label = f"{run.name}: {a1:.3f} log n {a2:+.3f}, $R^2$ = {r ** 2:.2f}"
            axis.plot(n[first - 1:], a1 * log + a2, line, color=color,
                      label=label if first == 4 else None)
    return finish(axis, "line: fit to n ≥ 4; dotted: to all n", xscale="log",
                  xlabel="number of keys n", ylabel="$p_n$")


def z_max(found):
    """Fig. 3: 0, 1/(n-2), ..., 1 and z_max: its weight. SSMax needs 1/s more at any n."""
    axis, z = Figure().subplots(), np.linspace(0, 12, 400)
    for n, line in ((100, ":"), (1_000, "--"), (10_000, "-")):
        # n^(s z) with s = 1 / log n is e^z: softmax
        for variant, s in (("softmax", 1 / np.log(n)), ("ssmax", 0.43), ("ssmax_s1", 1)):
            # the others' logits less z_max, as SSMax sees them
            rest = s * np.log(n) * (np.linspace(0, 1, n - 1)[:, None] - z)
            label, color = VARIANTS[variant]
            weight = 1 / (1 + np.exp(rest).sum(0))
            axis.plot(z, weight, line, color=color, label=f"{label}, n = {n:,}")
    return finish(axis, "(b): s = 0.43", xlabel="$z_{max}$", ylabel="weight of $z_{max}$")


def learning_curves(found):
    """Fig. 4: training and validation loss, and below the difference to (a) on the same batches."""
    down = 1 + any(row.minus_a for rows, _ in found for row in rows)
    figure = Figure(figsize=(5.6, 2 + 1.7 * down))
    axes = figure.subplots(down, sharex=True, squeeze=False)[:, 0]
    for rows, style in found:
        for row in rows:  # each by itself: evaluations are few and make no line
            axes[0].plot(row.val.keys(), row.val.values(), "o", ms=2.5, color=style["color"])
    for axis, name, what in zip(axes, ("y", "minus_a"), ("loss", "minus (a)"), strict=False):
        draw(found, axis, name)
        # The fall at the start would flatten all that comes behind it.
        lines = [line.get_ydata(orig=False) for line in axis.lines]
        late = np.concatenate([y[2 * len(y) // 5:] for y in lines])
        margin = 0.1 * np.ptp(late) or 0.1
        axis.set(ylim=(late.min() - margin, late.max() + margin), ylabel=f"{what} (nats per token)")
    axes[-1].set_xlabel("update")
    return finish(axes[0], "lines: training; dots: validation")


def posloss(found):
    """Fig. 5: test loss by position, each point the mean of the tenth of positions before it."""
    axis = draw(found)
    token_axis(axis, found)
    return finish(axis, f"{span(found, 'count')} windows a seed", ", of one 2 standard errors",
                  xlabel="position (tokens)", ylabel="test loss (nats per token)")


def niah(found):
    """Fig. 6: needles found by depth and context size, mean of the seeds; a panel a curve."""
    across, down = min(len(found), 4), math.ceil(len(found) / 4)  # wider is too small to read
    figure = Figure(figsize=(2.4 * across + 1, 1.9 * down + 0.6), layout="constrained")
    for i, (rows, style) in enumerate(found, 1):
        axis, sizes = figure.add_subplot(down, across, i), [f"{n:,}" for n in rows[0].y]
        shares = np.mean([row.grid for row in rows], axis=0)
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")  # one scale for all panels
        for (y, x), share in np.ndenumerate(shares):
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=6,
                      color="white" if share < 0.6 else "black")  # on dark and on light
        axis.set_xticks(range(len(sizes)), sizes, rotation=45)
        axis.set_yticks(range(len(shares)), [f"{depth:g} %" for depth in rows[0].depths])
        axis.set_title(textwrap.fill(style["label"], 36))  # as wide as a panel
        axis.grid(False)
    figure.supxlabel(f"context size (tokens); {span(found, 'n')} samples a cell and seed")
    figure.supylabel("depth of the needle")
    figure.colorbar(image, ax=figure.axes, label="share found (all digits)")
    return figure


def lines_of_seeds(axis, found, name="y"):
    for i, (rows, style) in enumerate(found):
        x, y = np.array([*rows[0].y]), np.array([[*getattr(row, name).values()] for row in rows])
        axis.plot(x, y.mean(0), linewidth=2, **style)
        # Lines turn where it was measured; the dots of the curves stand side by side.
        beside = x * 2 ** (0.2 * ((i + 0.5) / len(found) - 0.5))
        axis.plot(beside, y.T, "o", color=style["color"], markersize=3, alpha=0.7)
    token_axis(axis, found)


def retrieval(found):
    """Fig. 6 as lines: needles found by context size, mean over depths; a dot for each seed."""
    axis = Figure().subplots()
    lines_of_seeds(axis, found)
    return finish(axis, f"line: mean of the seeds\ndot: one seed, {span(found, 'samples')} samples",
                  xlabel="context size (tokens)", ylabel="needles found (all digits)")


def recall(found):
    """The tasks of lib/tasks.py, a panel each: share of the answers found by context size."""
    panels = {}
    for rows, style in found:
        task = rows[0].settings.get("task", "needle")
        label = style["label"].replace(f", task={task}", "").replace(f" [{task}]", "")
        panels.setdefault(task, []).append((rows, {**style, "label": label, "linestyle": "-"}))
    if len(panels) == 1:
        return None  # retrieval says it
    figure, named = Figure(figsize=(2.6 * len(panels) + 1.5, 2.8)), {}
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (task, curves) in zip(axes, panels.items(), strict=True):
        lines_of_seeds(axis, curves, "partial")
        axis.set(title=task, ylim=(-0.02, 1.02))
        axis.tick_params(axis="x", rotation=45)
        lines, labels = axis.get_legend_handles_labels()
        named |= dict(zip(labels, lines, strict=True))  # of all panels, each once
    axes[0].set_ylabel("answers found (share)")
    figure.supxlabel("context size (tokens)", y=-0.1)  # below the turned numbers
    figure.legend(named.values(), named, loc="center left", bbox_to_anchor=(0.91, 0.5),
                  title=f"line: mean of the seeds\ndot: {span(found, 'samples')} samples")
    return figure


def needle_scores(found):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    axis = draw(found)
    axis.locator_params(axis="x", integer=True)
    return finish(axis, xlabel="head, by rank", ylim=(-0.02, 1.02),
                  ylabel=f"needle score at {span(found, 'size')} tokens")


def top_scores(found):
    """Fig. 8: the top needle scores of all trials, of all seeds, in falling order; the answers."""
    axis = Figure().subplots()
    for rows, style in found:
        trials = [trial for row in rows for trial in row.trials]
        trials = sorted(trials, key=lambda trial: -trial["top"])
        rank = 100 * (np.arange(len(trials)) + 0.5) / len(trials)  # whatever number of trials
        axis.plot(rank, [trial["top"] for trial in trials], linewidth=0.8, **style)
        for x, trial in zip(rank, trials, strict=True):
            marker = "o" if trial["exact"] else "^" if trial["first"] else "x"
            axis.plot(x, trial["top"], marker, color=style["color"], markersize=3,
                      fillstyle="full" if trial["exact"] else "none")
    title = f"{span(found, 'n')} trials a seed\n● all digits right, △ only the first, × first wrong"
    return finish(axis, title, xlabel="trials by rank (%)", ylim=(-0.02, 1.02),
                  ylabel=f"top needle score at {span(found, 'size')} tokens")


def learned_s(found):
    """The learned s at the end of each run, by layer, a dot a head."""
    axis, shown = Figure().subplots(), []
    for rows, style in found:
        # where f(n) is another, s is another quantity; a run may still be before its switch
        s = [row.scales[-1]["s"] for row in rows if row.scales and row.f is model.log_n]
        shown += [(s, style)] if s else []
    if not shown:
        return None
    for i, (s, style) in enumerate(shown):  # s (runs, layers, heads); its curves side by side
        layers = np.arange(1, len(s[0]) + 1)
        x = layers[:, None] + 0.6 * ((i + 0.5) / len(shown) - 0.5)
        axis.plot(np.broadcast_to(x, np.shape(s)).ravel(), np.ravel(s), "o", ms=3,
                  color=style["color"], label=style["label"])
    deepest = max(len(s[0]) for s, _ in shown)
    axis.set(xticks=range(1, deepest + 1), xlim=(0.5, deepest + 0.5))
    for block in sorted({rows[0].block_size for rows, _ in found}):
        label = f"1 / log {block:,}"  # as sharp as softmax at that length
        axis.axhline(1 / math.log(block), color="0.4", linestyle=":", label=label)
    return finish(axis, xlabel="layer", ylabel="s of each head")


def laws(n, best, N):
    """
    {law: (values, off)} for best factors at context sizes n (arrays): each law with the constant
    that fits best, and how far it is off then, the root mean square of the logarithms.
    """
    log, x = np.log(n) / np.log(N), np.log(n / N)
    # the line is the one whose constant is no factor: it is searched for
    curves = {c: 1 + c * x for c in np.linspace(-0.9, 3, 2001) / (max(abs(x)) or 1)}
    off = {c: np.std(np.log(best / y)) for c, y in curves.items() if min(y) > 0}
    c = min(off, key=off.get)
    line = f"1 {'-' if c < 0 else '+'} {abs(c):.2f} log(n / N)"
    shapes = {"log n": log, "max(1, log n / log N)": np.maximum(1, log), "√log n": log**0.5,
              "(log n)²": log**2, line: curves[c]}
    fitted = {law: y * np.exp(np.mean(np.log(best / y))) for law, y in shapes.items()}
    return {law: (y, np.sqrt(np.mean(np.log(best / y) ** 2))) for law, y in fitted.items()}


def temperature(found):
    """The best constant factor on the query by length, and laws fitted to that of the first."""
    axis = draw(found)
    token_axis(axis, found)
    n, best = axis.lines[0].get_data()
    lines = ("--", (0, (1, 1)), "-.", (0, (1, 4)), "-")
    for (law, (y, off)), line in zip(
            laws(n, best, found[0][0][0].block_size).items(), lines, strict=True):
        axis.plot(n, y, linestyle=line, color="0.4", label=f"{law}: off by {off:.1%}")
    return finish(axis, "gray: laws fitted to the first curve", "; of one seed 2 errors",
                  xlabel="context size (tokens)", ylabel="best factor on the query")


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


def table(found):
    """Print what was measured, a line a curve: mean ± standard error, and its folders."""
    print("mean ± standard error: over the seeds; of one seed, over its windows or samples")
    for curves in found.values():
        for title in sorted({title for rows, _ in curves for title in rows[0].tables}):
            shown = [(style["label"].replace("$", ""), rows) for rows, style in curves
                     if title in rows[0].tables]
            measured = [row.tables[title][0] for _, rows in shown for row in rows]
            # numbers by size; names, which never stand among them, the shortest first
            columns = sorted(set().union(*measured), key=lambda name: (len(str(name)), name))
            heads = [name if isinstance(name, str) else f"{name:,}" for name in columns]
            width = max(len(label) for label, _ in shown)
            print(f"\n{title}\n{'':{width}}" + "".join(f"{head:>16}" for head in heads))
            for label, rows in shown:
                line = f"{label:{width}}"
                for name in columns:  # sizes may be a curve's own
                    there = [row.tables[title] for row in rows if name in row.tables[title][0]]
                    values = [numbers[name] for numbers, _ in there]
                    cell = plus_minus(values, there[0][1].get(name)) if there else "-"
                    line += f"{cell:>16}"
                print(line, " ", *dict.fromkeys(str(row.path.parent) for row in rows))


FIGURES = {  # and the kind of results that they show
    fading: "", p_n: "log", z_max: "", learning_curves: "log", posloss: "posloss", niah: "niah",
    retrieval: "niah", recall: "niah", needle_scores: "needle", top_scores: "needle",
    learned_s: "log", temperature: "temperature"}


def main():
    cfg = configure(PlotConfig)
    what, *inputs = cfg.files or ("",)
    names = ", ".join(figure.__name__ for figure in FIGURES)
    if what not in ("all", "table", *names.split(", ")):
        raise UserError(f"name all, table or a figure ({names}), then folders of results")
    found = curves(load(inputs))
    folder, drawn = Path(cfg.out or next(filter(Path.is_dir, map(Path, inputs)), "out")), []
    for make, kind in FIGURES.items():
        wanted = what in ("all", make.__name__) and (not kind or found[kind])
        if wanted and (figure := make(found.get(kind))):
            drawn.append(folder / f"{make.__name__}.png")
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(drawn[-1])
            print(drawn[-1])
    if what in ("all", "table") and any(found.values()):
        table(found)
    elif not drawn:
        places = " ".join(inputs) or "no folder named"
        raise UserError(f"{places}: no result there that {what} could show")


if __name__ == "__main__":
    launch(main)
