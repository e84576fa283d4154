"""
Draw the paper's figures from result files alone, beside the results or in --out.

    python plot.py all out/                                      every figure that the results below out/ allow
    python plot.py learning_curves out/a_softmax out/b_ssmax     one figure of some runs
    python plot.py table out/                                    loss and retrieval in numbers

fading (Fig. 1) and z_max (Fig. 3) are analytic; p_n (Fig. 2), learning_curves (Fig. 4, with the paired difference to softmax),
posloss (Fig. 5), niah (Fig. 6) and retrieval (its mean over the depths), needle_scores (Fig. 7), top_scores (Fig. 8), learned_s; cost is
bench.py's. Of several seeds the mean is shown, with the range of the seeds where there is room.
"""
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from configurator import configure  # noqa: E402
from runtime import UserError, describe, launch, unsealed  # noqa: E402

# One colour a variant, everywhere; colour-blind safe (Okabe and Ito).
VARIANTS = {
    "a": ("(a) Softmax", "#D55E00"), "b": ("(b) SSMax", "#0072B2"), "c": ("(c) SSMax, s = 1", "#56B4E9"),
    "d": ("(d) SSMax with bias", "#009E73"), "e": ("(e) swapped after", "#E69F00"), "f": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned $p_n$", "#000000"), "head_scale": ("control: mean log n", "#999999"), "constant": ("(a) at a constant temperature", "#7F5539"),
}
plt.rcParams.update({"figure.figsize": (5.2, 3.6), "figure.dpi": 150, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                     "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False, "savefig.bbox": "tight"})


@dataclass(frozen=True)
class PlotConfig:
    files: tuple = ()  # the figure (or all), then folders or files of results
    out: str = ""  # folder for the pictures; empty: the first folder of results
    format: str = "png"  # png, pdf or svg


# -----------------------------------------------------------------------------
# results


def variant(config, settings=None):
    """The letter of the paper for the config of a run and, for an evaluation, its settings (which may swap attention at load)."""
    swapped = (settings or {}).get("attention_type")
    if swapped and config["variant"] == "a":
        return {"ssmax": "e", "head_scale": "constant"}.get(swapped, swapped)
    return config["variant"]


def order(item):
    """Sorts by variant. One that is new gets its name as its label, and a colour."""
    VARIANTS.setdefault(item[0], (str(item[0]), f"C{len(VARIANTS) % 10}"))
    return list(VARIANTS).index(item[0])


def find(inputs, pattern):
    """Result files named `pattern` among the inputs (files, or folders searched to the bottom)."""
    found = []
    for path in map(Path, inputs):
        if path.is_dir():
            found += sorted(path.rglob(pattern))
        elif path.match(pattern):
            found.append(path)
    return found


def read_results(inputs, pattern, key):
    """[(variant, content)] of finished JSON results that have `key`, in the order of the variants."""
    results = []
    for path in find(inputs, pattern):
        try:
            content = unsealed(json.loads(path.read_text()))
            if key in content:
                results.append((variant(content["config"], content["settings"]), content))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise UserError(f"{path} is not a result of this program ({type(e).__name__}: {e}); move it away") from e
    return sorted(results, key=order)


def by_variant(items):
    """[(variant, x)] in order -> {variant: [x of each seed]}"""
    groups = {}
    for v, x in items:
        groups.setdefault(v, []).append(x)
    return groups


def alike(groups, get):
    """{variant: (seeds, ...) array of get(x)}, of those that measured as much as most did."""
    found = {v: [np.array(get(x), dtype=float) for x in xs] for v, xs in groups.items()}
    shape, _ = Counter(a.shape for arrays in found.values() for a in arrays).most_common(1)[0]
    kept = {v: [a for a in arrays if a.shape == shape] for v, arrays in found.items()}
    return {v: np.array(arrays) for v, arrays in kept.items() if arrays}


def batches(header):
    """What a run must share with another for their losses to be of the same batches."""
    return tuple(header["config"].get(k) for k in ("seed", "train_split", "data_order", "batch_size", "block_size")) + (header.get("data"),)


def read_log(path):
    """log.jsonl of a run -> (its first line, {iter: training loss}, {iter: validation loss}, [records with s])."""
    try:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        order([variant(records[0]["config"])])
        return (records[0], *({r["iter"]: r[k] for r in records[1:] if k in r} for k in ("loss", "val_loss")), [r for r in records[1:] if "s" in r])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        raise UserError(f"{path} is not a log of train.py ({type(e).__name__}: {e})") from e


def read_logs(inputs):
    """[(path, log)] of all runs; what went on from a checkpoint (init_from), on other data as a rule, only where there is nothing else."""
    logs = [(path, read_log(path)) for path in find(inputs, "log.jsonl")]
    return [pl for pl in logs if not pl[1][0]["config"].get("init_from")] or logs


BESIDE = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": 8}  # a legend that covers nothing


def labels(axis, **kwargs):
    """A legend with every variant once, however many seeds it has."""
    handles, names = axis.get_legend_handles_labels()
    once = dict(zip(names, handles))
    axis.legend(once.values(), once.keys(), **kwargs)


# -----------------------------------------------------------------------------
# figures: name(inputs) -> a matplotlib figure, or None where the results do not allow it


def fading(inputs):
    """Fig. 1: -2 everywhere and +3 at the end; the largest weight under softmax and under SSMax with s = 0.43."""
    n = np.unique(np.logspace(0.5, 5, 200).round())
    figure, axis = plt.subplots()
    for letter, factor in (("a", np.ones_like(n)), ("b", 0.43 * np.log(n))):
        axis.plot(n, 1 / (1 + (n - 1) * np.exp(-5 * factor)), color=VARIANTS[letter][1], label=VARIANTS[letter][0] + (", s = 0.43" if letter == "b" else ""))
    axis.set(xscale="log", xlabel="number of keys n", ylabel="largest attention weight", ylim=(0, 1.05))
    axis.legend()
    return figure


def z_max(inputs):
    """Fig. 3: 0, 1/(n-2), ..., 1 and z_max; the weight of z_max. SSMax needs about 1/s more than the rest, whatever n."""
    z = np.linspace(0, 12, 400)
    figure, axis = plt.subplots()
    for n, style in ((100, ":"), (1_000, "--"), (10_000, "-")):
        rest = np.linspace(0, 1, n - 1)
        for s, colour, name in ((None, VARIANTS["a"][1], "Softmax"), (0.43, VARIANTS["b"][1], "SSMax, s = 0.43"), (1.0, VARIANTS["c"][1], "SSMax, s = 1")):
            factor = 1.0 if s is None else s * np.log(n)
            weight = 1 / (1 + np.exp(factor * (rest[:, None] - z)).sum(0))
            axis.plot(z, weight, color=colour, linestyle=style, label=name if style == "-" else None)
        axis.plot([], [], color="grey", linestyle=style, label=f"n = {n:,}")
    axis.set(xlabel="$z_{max}$", ylabel="weight of $z_{max}$", ylim=(0, 1.05))
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=3)
    return figure


def fit_p_n(p, first=1):
    """Least-squares fits of learned p_n (n from `first` on) -> ({name of f: R^2 of a1 f(n) + a2}, {name: (a1, a2)})."""
    n = np.arange(1, len(p) + 1, dtype=float)[first - 1:]
    p, r2, fits = np.asarray(p)[first - 1:], {}, {}
    for name, f in {"log": np.log(n), "line": n, "root": np.sqrt(n), "constant": np.zeros_like(n)}.items():
        a1, a2 = np.polyfit(f, p, 1) if f.any() else (0.0, p.mean())
        r2[name], fits[name] = 1 - float(((p - a1 * f - a2) ** 2).sum() / ((p - p.mean()) ** 2).sum()), (a1, a2)
    return r2, fits


def p_n(inputs):
    """Fig. 2: learned p_n with the fit a1 log n + a2, from checkpoints of type pn. Prints R^2 of it and of other fits."""
    import checkpoint
    other = {path.parent for path, log in read_logs(inputs) if log[0]["config"]["attention_type"] != "pn"}  # large files that need not be read
    states = ((path, checkpoint.load(path)) for path in find(inputs, "ckpt.pt") if path.parent not in other)
    found = [(path, s["model"]["p_n"].numpy()) for path, s in states if s["model_config"]["attention_type"] == "pn"]
    if not found:
        return None
    figure, axis = plt.subplots()
    for i, (path, p) in enumerate(found):
        n, (r2, fits) = np.arange(1, len(p) + 1), fit_p_n(p)
        (a1, a2), sign = fits["log"], "+-"[int(fits["log"][1] < 0)]
        colour = VARIANTS["a"][1] if len(found) == 1 else f"C{i}"
        axis.plot(n, p, ".", color=colour, markersize=3, label="learned $p_n$" if i == 0 else None)
        axis.plot(n, a1 * np.log(n) + a2, color=VARIANTS["b"][1] if len(found) == 1 else colour, linewidth=1,
                  label=f"{a1:.3f} log n {sign} {abs(a2):.3f}, $R^2$ = {r2['log']:.3f}")
        print(f"{path}: R^2 of p_n against log n {r2['log']:.3f}, n {r2['line']:.3f}, sqrt n {r2['root']:.3f}; for n >= 4 "
              "log n {log:.3f}, n {line:.3f}, sqrt n {root:.3f}".format(**fit_p_n(p, 4)[0]))
    axis.set(xlabel="number of keys n", ylabel="$p_n$")
    axis.legend(fontsize=8)
    return figure


def smooth(y, window):
    """Running mean; shorter at the start, so that nothing is cut off."""
    total = np.cumsum(np.insert(y, 0, 0.0))
    i = np.arange(1, len(y) + 1)
    start = np.maximum(0, i - window)
    return (total[i] - total[start]) / (i - start)


def learning_curves(inputs):
    """Fig. 4 with the paired difference to (a) below. Prints the losses side by side."""
    runs = [(path, *log[:3]) for path, log in read_logs(inputs)]
    for path, _, _, val in (r for r in runs if not r[2]):
        print(f"{path}: no updates, left out" + (f" (validation loss {list(val.values())[-1]:.4f})" if val else ""))
    runs = [r for r in runs if r[2]]
    if not runs:
        return None
    runs.sort(key=lambda r: (order([variant(r[1]["config"])]), r[1]["config"].get("seed")))
    base = {batches(header): t for _, header, t, _ in runs if variant(header["config"]) == "a"}
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, height_ratios=(2, 1), figsize=(5.2, 4.6))
    print(f"{'variant':<22}{'seed':>6}{'updates':>9}{'train loss':>12}{'val loss':>10}{'minus (a)':>11}")
    curves, pairs, limits = [], [], []
    for _, header, train, val in runs:
        config = header["config"]
        v = variant(config)
        x, y = np.array(list(train)), np.array(list(train.values()))
        window, tail = max(1, len(y) // 50), max(1, len(y) // 10)
        curves.append((v, (x, smooth(y, window))))
        limits.append(curves[-1][1][1].min())
        top.plot(list(val), list(val.values()), "o", color=VARIANTS[v][1], markersize=2)
        other, difference = base.get(batches(header)), ""
        if other is not None and v != "a":
            common = [i for i in train if i in other]
            paired = np.array([train[i] - other[i] for i in common])
            pairs.append((v, (np.array(common), smooth(paired, window))))
            difference = f"{paired[-tail:].mean():+.4f}"
        last = f"{list(val.values())[-1]:.4f}" if val else "-"
        print(f"{VARIANTS[v][0].replace('$', ''):<22}{config['seed']:>6}{x[-1]:>9,}{y[-tail:].mean():>12.4f}{last:>10}{difference:>11}")
    print("train loss, and its difference to the (a) of the same batches: mean of the last tenth of the updates")
    for axis, items in ((top, curves), (bottom, pairs)):
        for v, seeds in by_variant(items).items():
            x = seeds[0][0]
            y = np.array([c for i, c in seeds if len(i) == len(x)])
            axis.plot(x, y.mean(0), color=VARIANTS[v][1], label=VARIANTS[v][0], linewidth=1.2)
            axis.fill_between(x, y.min(0), y.max(0), color=VARIANTS[v][1], alpha=0.12, linewidth=0)
    top.set_ylim(min(limits) - 0.1, max(runs[0][2].values()) + 0.1)
    top.set_ylabel("loss (nats a token)")
    labels(top)
    bottom.axhline(0, color=VARIANTS["a"][1], linewidth=1)
    bottom.set_ylabel("minus (a)")
    bottom.set_xlabel("update   (lines: training, running mean; dots: validation)")
    return figure


def posloss(inputs):
    """Fig. 5: loss against position, with bands of two standard errors (or the range of the seeds) and the training length marked."""
    results = read_results(inputs, "posloss*.json", "mean")
    if not results:
        return None
    figure, axis = plt.subplots()
    block = results[0][1]["model_config"]["block_size"]
    groups = by_variant(results)
    errors = alike(groups, lambda r: r["stderr"])
    for v, mean in alike(groups, lambda r: r["mean"]).items():
        window = max(1, mean.shape[1] // 100)
        starts = np.arange(0, mean.shape[1] - window + 1, window)
        length = np.diff([*starts, mean.shape[1]])
        x, y = starts + window / 2, np.add.reduceat(mean, starts, axis=1) / length
        band = 2 * np.sqrt(np.add.reduceat(errors[v][0]**2, starts)) / length if len(y) == 1 else 0  # positions taken as independent
        axis.plot(x, y.mean(0), color=VARIANTS[v][1], label=VARIANTS[v][0], linewidth=1.2)
        axis.fill_between(x, y.min(0) - band, y.max(0) + band, color=VARIANTS[v][1], alpha=0.1, linewidth=0)
    axis.axvline(block, color="grey", linestyle=":", linewidth=1)
    axis.annotate(f" trained at {block:,}", (block, axis.get_ylim()[0]), va="bottom", fontsize=7, color="grey")
    axis.set(xlabel="position (tokens)", ylabel="test loss (nats a token)")
    labels(axis, **BESIDE)
    return figure


def niah(inputs):
    """Fig. 6: retrieval by depth and context size, one panel a variant, shared colours."""
    results = read_results(inputs, "niah*.json", "cells")
    if not results:
        return None
    sizes, depths = (sorted({c[k] for c in results[0][1]["cells"]}) for k in ("size", "depth"))
    grids = {v: grid.mean(0) for v, grid in alike(by_variant(results), lambda r: retrieved(r, sizes, depths)).items()}
    columns = min(3, len(grids))
    rows = -(-len(grids) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.7 * columns + 0.8, 1.9 * rows + 0.4), squeeze=False, layout="constrained")
    for axis in axes.flat[len(grids):]:
        axis.set_axis_off()
    for axis, (v, grid) in zip(axes.flat, grids.items()):
        image = axis.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for (y, x), value in np.ndenumerate(grid):
            axis.text(x, y, f"{value:.2f}".lstrip("0") if value < 0.995 else "1", ha="center", va="center", fontsize=6, color="white" if value < 0.6 else "black")
        axis.set_xticks(range(len(sizes)), [f"{s:,}" for s in sizes], fontsize=6, rotation=45)
        axis.set_yticks(range(len(depths)), [f"{d} %" for d in depths], fontsize=7)
        axis.set_title(VARIANTS[v][0], fontsize=8)
        axis.grid(False)
    figure.supxlabel("context size (tokens)", fontsize=8)
    figure.supylabel("depth of the needle", fontsize=8)
    figure.colorbar(image, ax=axes, label="all digits right", shrink=0.8)
    return figure


def retrieved(result, sizes, depths, key="exact"):
    """A result's grid (depths, sizes); NaN where it has no such cell."""
    cells = {(c["depth"], c["size"]): c[key] for c in result["cells"]}
    return [[cells.get((d, s), np.nan) for s in sizes] for d in depths]


def retrieval(inputs):
    """Fig. 6 as lines: needles found against context size, mean over the depths; a dot for each seed."""
    results = read_results(inputs, "niah*.json", "cells")
    if not results:
        return None
    sizes, depths = (sorted({c[k] for c in results[0][1]["cells"]}) for k in ("size", "depth"))
    block = results[0][1]["model_config"]["block_size"]
    figure, axis = plt.subplots()
    groups = alike(by_variant(results), lambda r: retrieved(r, sizes, depths))
    for i, (v, grids) in enumerate(groups.items()):
        share = grids.mean(1)  # (seeds, sizes)
        beside = np.array(sizes) * 2 ** (0.25 * ((i + 0.5) / len(groups) - 0.5))  # dots of different variants stand side by side
        axis.plot(beside, share.mean(0), color=VARIANTS[v][1], label=VARIANTS[v][0], linewidth=1.5)
        axis.plot(beside, share.T, "o", color=VARIANTS[v][1], markersize=2.5, alpha=0.6)
    axis.axvline(block, color="grey", linestyle=":", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{s:,}\n{s / block:.3g}x" for s in sizes], fontsize=6)
    axis.minorticks_off()
    axis.set(xlabel="context size (tokens, and as a multiple of the training length)", ylabel="needles found, all digits right", ylim=(-0.02, 1.02))
    labels(axis, **BESIDE)
    return figure


def needle_scores(inputs):
    """Fig. 7: the 25 heads with the highest needle score in the example."""
    results = read_results(inputs, "needle*.json", "example")
    if not results:
        return None
    figure, axis = plt.subplots()
    for v, scores in alike(by_variant(results), lambda r: np.sort(np.ravel(r["example"]["scores"]))[::-1][:25]).items():
        axis.plot(range(1, scores.shape[1] + 1), scores.mean(0), "o-", color=VARIANTS[v][1], label=VARIANTS[v][0], markersize=3, linewidth=1)
        axis.fill_between(range(1, scores.shape[1] + 1), scores.min(0), scores.max(0), color=VARIANTS[v][1], alpha=0.1, linewidth=0)
    example = results[0][1]["example"]
    axis.set(xlabel="head, by rank", ylabel="needle score", ylim=(-0.02, 1.02), title=f"{example['city']}, depth {example['depth']} %, {example['size']:,} tokens")
    axis.xaxis.get_major_locator().set_params(integer=True)
    labels(axis, **BESIDE)
    return figure


def top_scores(inputs):
    """Fig. 8: the top needle score of every trial (of all seeds) in falling order, with what was answered."""
    results = read_results(inputs, "needle*.json", "trials")
    if not results:
        return None
    figure, axis = plt.subplots()
    markers = {"all digits": "o", "only the first": "^", "none": "x"}
    for v, seeds in by_variant(results).items():
        trials = sorted((t for r in seeds for t in r["trials"]), key=lambda t: -t["top"])
        rank = 100 * (np.arange(len(trials)) + 0.5) / len(trials)
        axis.plot(rank, [t["top"] for t in trials], color=VARIANTS[v][1], linewidth=0.6, label=VARIANTS[v][0])
        for name, marker in markers.items():
            chosen = [(x, t["top"]) for x, t in zip(rank, trials)
                      if ("all digits" if t["exact"] else "only the first" if t["first"] else "none") == name]
            if chosen:
                axis.plot(*zip(*chosen), marker, color=VARIANTS[v][1], markersize=3, linestyle="none", fillstyle="none" if marker == "^" else "full")
    for name, marker in markers.items():
        axis.plot([], [], marker, color="grey", linestyle="none", label=f"{name} right" if name != "none" else "first digit wrong",
                  fillstyle="none" if marker == "^" else "full")
    axis.set(xlabel="trials by rank (%)", ylabel="top needle score", ylim=(-0.02, 1.02))
    labels(axis, **BESIDE)
    return figure


def learned_s(inputs):
    """The learned s by layer and head at the end of each run."""
    runs = sorted(((variant(h["config"]), s[-1]["s"], h) for _, (h, _, _, s) in read_logs(inputs) if s), key=order)
    if not runs:
        return None
    figure, axis = plt.subplots()
    groups = by_variant((v, s) for v, s, _ in runs)
    for i, (v, seeds) in enumerate(groups.items()):
        for layer, heads in ((layer, heads) for s in seeds for layer, heads in enumerate(s, 1)):
            at = layer + 0.6 * ((i + 0.5) / len(groups) - 0.5)
            axis.plot([at] * len(heads), heads, "o", color=VARIANTS[v][1], markersize=3, alpha=0.7, label=VARIANTS[v][0])
    block = runs[0][2]["config"]["block_size"]
    axis.axhline(1 / np.log(block), color="grey", linestyle=":", linewidth=1, label=f"1 / log {block:,}")
    axis.set(xlabel="layer", ylabel="learned s of each head", xticks=range(1, len(runs[0][1]) + 1), xlim=(0.5, len(runs[0][1]) + 0.5))
    labels(axis, **BESIDE)
    return figure


def cost(inputs):
    """Tokens/s and memory of training and evaluation against context and width, from `bench.py growth`."""
    try:
        found = [c for c in (json.loads(p.read_text()) for p in find(inputs, "bench-*.json")) if "growth" in c]
    except (ValueError, TypeError) as e:
        raise UserError(f"a bench-*.json there is not a result of bench.py ({e})") from e
    if not found:
        return None
    result = found[-1]  # bench-nvidia-... stands behind bench-cpu
    figure, axes = plt.subplots(2, 2, figsize=(7, 5), sharex="col")
    for column, (axis, label) in enumerate((("context", "context (tokens)"), ("width", "width (n_embd), context 256"))):
        for what, marker in (("training", "o"), ("evaluation", "s")):
            points = sorted((p for p in result["growth"] if (p["axis"], p["what"]) == (axis, what)), key=lambda p: p["value"])
            values = [p["value"] for p in points]
            axes[0, column].loglog(values, [p["tokens_per_s"] for p in points], marker + "-", markersize=4, label=what)
            axes[1, column].semilogx(values, [p["peak_mib"] / 1024 for p in points], marker + "-", markersize=4)
        axes[1, column].set(xlabel=label, xticks=values, ylim=(0, None))
        axes[1, column].set_xticklabels([f"{v:,}" for v in values], fontsize=7)
        axes[1, column].minorticks_off()
        axes[0, column].set(ylim=(100, None), title=result["machine"]["growth"]["device"])
    axes[0, 0].set(ylabel="tokens/s")
    axes[1, 0].set(ylabel="peak memory (GiB)")
    axes[0, 0].legend()
    return figure


def table(inputs):
    """Print loss by position and retrieval by context size, one line a variant."""
    for pattern, key, title in (("posloss*.json", "mean", "loss (nats), mean of the tenth before"), ("niah*.json", "cells", "needle, all digits right"),
                                ("niah*.json", "cells", "needle, first digit right")):
        results = read_results(inputs, pattern, key)
        if not results:
            continue
        block = results[0][1]["model_config"]["block_size"]
        if key == "mean":
            ends = [m * block for m in (1, 2, 4, 8, 10, 16) if m * block <= len(results[0][1]["mean"])]
        else:
            ends = sorted({c["size"] for c in results[0][1]["cells"]})
        print(f"{title:<38}" + "".join(f"{n:>8,}" for n in ends) + "\n" + " " * 38 + "".join(f"{f'{n / block:.3g}x':>8}" for n in ends))
        for v, seeds in by_variant(results).items():
            if key == "mean":
                cells = [np.mean([np.mean(r["mean"][n - max(1, n // 10):n]) for r in seeds]) for n in ends]
            else:
                what = "exact" if "all" in title else "first"
                cells = [np.mean([c[what] for r in seeds for c in r["cells"] if c["size"] == n]) for n in ends]
            name = VARIANTS[v][0].replace("$", "") + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")
            print(f"{name:<38}" + "".join(f"{c:>8.2f}" for c in cells))
    for v, seeds in by_variant(read_results(inputs, "needle*.json", "trials")).items():
        tops = [t["top"] for r in seeds for t in r["trials"]]
        print(f"top needle score at {seeds[0]['settings']['trial_size']:,} tokens, median of {len(tops)} trials: {VARIANTS[v][0]} {np.median(tops):.2f}")


def checked(draw, inputs):
    """draw(inputs), where a result that has what no program of ours writes is the user's mistake."""
    try:
        return draw(inputs)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as e:
        raise UserError(f"{draw.__name__}: a result there is not as its program writes it ({describe(e)}); move it away") from e


FIGURES = {f.__name__: f for f in (fading, p_n, z_max, learning_curves, posloss, niah, retrieval, needle_scores, top_scores, learned_s, cost)}


def main():
    cfg = configure(PlotConfig)
    if not cfg.files or cfg.files[0] not in (*FIGURES, "all", "table") or cfg.format not in ("png", "pdf", "svg"):
        raise UserError(f"name a figure (all, {', '.join(FIGURES)}) and folders of results; format is png, pdf or svg; see --help")
    name, *inputs = cfg.files
    missing = next((p for p in inputs if not Path(p).exists()), None)
    if missing:
        raise UserError(f"{missing}: no such file or folder")
    if name == "table":
        return checked(table, inputs)
    folder = Path(cfg.out or next((p for p in inputs if Path(p).is_dir()), "out"))
    folder.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for f in FIGURES.values() if name == "all" else [FIGURES[name]]:
        figure = checked(f, inputs)
        if figure is not None:
            out = folder / f"{f.__name__}.{cfg.format}"
            figure.savefig(out)
            plt.close(figure)
            print(out)
            drawn += 1
    if not drawn:
        raise UserError(f"the results in {' '.join(inputs) or 'no folder'} do not have what the figure {name} shows")


if __name__ == "__main__":
    launch(main)
