"""
Tables, verdicts and figure of runs/smollm2.sh: what swapping SSMax into SmolLM2-135M does.

    python results/smollm2/smollm2.py out/smollm2

Prompts are the same for all variants, so differences are paired by prompt; intervals are normal.
"""
import json
import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "results/mini_cpu")]

from claims import markdown  # noqa: E402

from eval_niah import wilson  # noqa: E402

VARIANTS = {"softmax": ("softmax", "#D55E00"), "e": ("(e) SSMax swapped in", "#E69F00"),
            "constant": ("one temperature", "#7F5539"), "clip": ("log-n clip", "#6A3D9A"),
            "tuned_softmax": ("softmax, trained on", "#8C8C8C"),
            "tuned_e": ("(f) in small", "#CC79A7")}
SIZES = (1024, 4096, 8192, 16384)
TRAINED = 100_000  # RoPE's theta


def needles(folder):
    """{(variant, theta, size): {(hay, depth, i): all digits right}}"""
    found = {}
    for path in sorted(Path(folder).glob("*/*/niah-*.jsonl")):
        _, theta, size = path.stem.split("-")
        hay, variant = path.parts[-3:-1]
        _, *records = map(json.loads, path.read_text().splitlines())
        cell = found.setdefault((variant, int(theta), int(size)), {})
        cell |= {(hay, r["cell"], r["i"]): float(r["exact"]) for r in records}
    return found


def losses(folder):
    """{(variant, theta): mean loss by position}"""
    found = {}
    for path in sorted(Path(folder).glob("novels/*/posloss-*.json")):
        content = json.loads(path.read_text())
        if "mean" in content:
            found[path.parent.name, int(content["tag"])] = np.array(content["mean"])
    return found


def paired(one, other):
    """(mean, half of the 95 % interval) of the differences of two {prompt: number}."""
    differences = [one[key] - other[key] for key in sorted(one.keys() & other.keys())]
    error = np.std(differences, ddof=1) / math.sqrt(len(differences))
    return np.mean(differences), 1.96 * error, len(differences)


def verdict(mean, half):
    """Of a prediction that the mean is above 0."""
    return "holds" if mean > half else "does not" if mean < -half else "undecided"


def main():
    folder, = sys.argv[1:]
    found, loss = needles(folder), losses(folder)
    best = max(theta for _, theta, _ in found)
    rows = []
    for theta in sorted({theta for _, theta, _ in found}):
        for variant, (name, _) in VARIANTS.items():
            cells = []
            for size in SIZES:
                asked = [*found.get((variant, theta, size), {}).values()]
                low, high = wilson(sum(asked), len(asked)) if asked else (0, 0)
                cells.append(f"{np.mean(asked):.2f} ({low:.2f}–{high:.2f}), {len(asked)}"
                             if asked else "–")
            rows.append([name, f"x {theta / TRAINED:g}", *cells])
    markdown("Needles found, all digits right, both kinds of hay: share (95 %), prompts",
             ["", "theta", *(f"{size:,}" for size in SIZES)], rows)
    rows = []
    for theta in sorted({theta for _, theta in loss}):
        for variant, (name, _) in VARIANTS.items():
            if (variant, theta) in loss:
                mean = loss[variant, theta]
                rows.append([name, f"x {theta / TRAINED:g}", f"{mean[:8192].mean():.4f}",
                             *(f"{mean[end - end // 10:end].mean():.4f}" for end in SIZES)])
    markdown("Loss (nats a token): mean to 8,192, and in the tenth before a length",
             ["", "theta", "<= 8,192", *(f"{size:,}" for size in SIZES)], rows)
    rows = []
    for theta, size in sorted({(theta, size) for _, theta, size in found}):
        for variant in [*VARIANTS][1:]:
            pair = found.get((variant, theta, size)), found.get(("softmax", theta, size))
            if all(pair):
                mean, half, n = paired(*pair)
                rows.append([f"{VARIANTS[variant][0]} minus softmax, {size:,} tokens, theta x "
                             f"{theta / TRAINED:g}", f"{mean:+.3f} ± {half:.3f}", n,
                             verdict(mean, half)])
    markdown("Needles, paired by prompt: more than softmax?", ["", "difference", "prompts", ""],
             rows)
    tops = {}
    for path in sorted(Path(folder).glob("novels/*/needle-*.json")):
        content = json.loads(path.read_text())
        if "trials" in content:
            tops[path.parent.name] = np.median([trial["top"] for trial in content["trials"]])
    markdown("Top needle score at 8,192 tokens, median of 20 trials", ["", "score"],
             [[VARIANTS[variant][0], f"{top:.3f}"] for variant, top in tops.items()])
    draw(found, best, Path(__file__).parent / "needles.png")


def draw(found, best, path):
    figure = plt.figure(figsize=(7, 2.8), layout="constrained")
    thetas = sorted({TRAINED, best})
    for axis, theta in zip(figure.subplots(1, len(thetas), sharey=True, squeeze=False)[0], thetas,
                           strict=True):
        for variant, (name, color) in VARIANTS.items():
            sizes = [size for size in SIZES if (variant, theta, size) in found]
            asked = [[*found[variant, theta, size].values()] for size in sizes]
            axis.plot(sizes, [np.mean(x) for x in asked], "o-", color=color, label=name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
        axis.minorticks_off()
        axis.axvline(8192, color="0.4", linestyle=":", label="training length 8,192")
        axis.set(title=f"RoPE's theta x {theta / TRAINED:g}", ylim=(-0.03, 1.03))
    figure.supxlabel("context size (tokens)")
    figure.supylabel("needles found (all digits)")
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
