"""
Tables, verdicts and figure of runs/smollm2.sh: what swapping SSMax into SmolLM2-135M does.

    python results/smollm2/smollm2.py out/smollm2 --out=results/smollm2

Prompts are the same for all variants, so differences are paired by prompt; intervals are normal.
"""
import dataclasses
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
from lib.config import configure  # noqa: E402
from lib.runtime import UserError, launch  # noqa: E402

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
    for path in sorted(Path(folder).glob("loss/*/posloss-*.json")):
        content = json.loads(path.read_text())
        if "mean" in content:
            found[path.parent.name, int(content["tag"])] = np.array(content["mean"])
    return found


@dataclasses.dataclass(frozen=True)
class SmolConfig:
    files: tuple = ()  # out/smollm2
    out: str = ""  # folder for needles.png; empty: none


def paired(one, other):
    """[differences] of two {prompt: number}."""
    return [one[key] - other[key] for key in sorted(one.keys() & other.keys())]


def interval(values):
    """(mean, half of its 95 % interval)"""
    return np.mean(values), 1.96 * np.std(values, ddof=1) / math.sqrt(len(values))


def holds(low, high, least=-math.inf, most=math.inf):
    """Whether an interval lies between two numbers, outside of them, or neither."""
    if least < low and high < most:
        return "holds"
    return "does not" if high < least or low > most else "undecided"


def said(bounds):
    words = {"least": "above", "most": "below"}
    return " and ".join(f"{words[key]} {value:.2g}" for key, value in bounds.items())


def predictions(found, loss, tops, best):
    """[(number in README.md, text, measured, verdict)]"""
    rows = []

    def share(number, variant, theta, size, **bounds):
        asked = [*found.get((variant, theta, size), {}).values()]
        if asked:
            low, high = wilson(sum(asked), len(asked))
            rows.append([number,
                         f"{variant}, {size:,}, theta x {theta / TRAINED:g}: {said(bounds)}",
                         f"{np.mean(asked):.2f} ({low:.2f}–{high:.2f})",
                         holds(low, high, **bounds)])

    def more(number, one, other, theta, size, **bounds):
        pair = found.get((one, theta, size)), found.get((other, theta, size))
        if all(pair):
            mean, half = interval(paired(*pair))
            rows.append([number, f"{one} minus {other}, {size:,}, theta x {theta / TRAINED:g}: "
                         f"{said(bounds)}", f"{mean:+.3f} ± {half:.3f}",
                         holds(mean - half, mean + half, **bounds)])

    def number_of(number, text, value, **bounds):
        rows.append([number, f"{text}: {said(bounds)}", f"{value:+.4f}",
                     holds(value, value, **bounds)])

    for size in (1024, 4096):
        share(1, "softmax", TRAINED, size, least=0.9)
    for size in SIZES[:3]:
        more(2, "e", "softmax", TRAINED, size, most=1e-9)
        more(5, "clip", "softmax", TRAINED, size, least=-1e-9, most=1e-9)
    for variant in [*VARIANTS][:4]:
        share(3, variant, TRAINED, 16384, most=0.1)
    more(4, "e", "softmax", best, 16384, least=0)
    more(4, "e", "constant", best, 16384, most=1e-9)
    more(5, "clip", "softmax", best, 16384, least=-1e-9)
    more(5, "clip", "e", best, 16384, most=1e-9)
    if {("e", TRAINED), ("softmax", best), ("e", best)} <= loss.keys():
        before = loss["e", TRAINED][:8192].mean() - loss["softmax", TRAINED][:8192].mean()
        number_of(6, "loss of (e) minus softmax before 8,192", before, least=0)
        late = loss["e", best][-1638:].mean() - loss["softmax", best][-1638:].mean()
        number_of(6, "the same in the last tenth before 16,384, best theta", late, most=0)
    if {"e", "softmax"} <= tops.keys():
        number_of(7, "top score, (e) minus softmax", tops["e"] - tops["softmax"], least=-0.05,
                  most=0.05)
    if {("tuned_e", TRAINED), ("tuned_softmax", TRAINED)} <= loss.keys():
        far = loss["tuned_e", TRAINED] - loss["tuned_softmax", TRAINED]
        number_of(8, "loss before 8,192, (f) minus softmax trained on", far[:8192].mean(),
                  least=-0.02, most=0.02)
    return rows


def main():
    cfg = configure(SmolConfig)
    if len(cfg.files) != 1 or not (found := needles(cfg.files[0])):
        raise UserError("name out/smollm2 with results; bash runs/smollm2.sh makes them")
    loss, tops = losses(cfg.files[0]), {}
    for path in sorted(Path(cfg.files[0]).glob("novels/*/needle-*.json")):
        content = json.loads(path.read_text())
        if "trials" in content:
            tops[path.parent.name] = np.median([trial["top"] for trial in content["trials"]])
    best = max(theta for _, theta, _ in found)
    markdown("The predictions (the losses of 6 and 8 have no interval)",
             ["", "prediction", "measured", ""], predictions(found, loss, tops, best))
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
    markdown("Top needle score at 8,192 tokens, median of 20 trials", ["", "score"],
             [[VARIANTS[variant][0], f"{top:.3f}"] for variant, top in tops.items()])
    if cfg.out:
        draw(found, best, Path(cfg.out) / "needles.png")


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
    launch(main)
