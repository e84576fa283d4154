"""
What swapping SSMax into SmolLM2-135M does: tables, verdicts and figure of run.sh in this folder.

    python -m experiments.smollm2.smollm2 out/smollm2 --out=experiments/smollm2

All variants get the same prompts, so differences are paired by prompt. Intervals are normal.
"""
import contextlib
import dataclasses
import json
import math
from pathlib import Path

import numpy as np

from experiments.verdicts import markdown, over_prompts
from lib.config import configure
from lib.evaluate import wilson
from lib.runtime import UserError, atomic_write, launch
from plot import Figure  # with the style of all figures

VARIANTS = {"softmax": ("softmax", "#D55E00"), "e": ("(e) SSMax swapped in", "#E69F00"),
            "constant": ("one temperature", "#7F5539"), "clip": ("log-n clip", "#6A3D9A"),
            "tuned_softmax": ("softmax, trained on", "#8C8C8C"),
            "tuned_e": ("(f) in small", "#CC79A7")}
SIZES = (1024, 4096, 8192, 16384)
TRAINED = 100_000  # RoPE's theta
EQUAL = 1e-9  # with this margin "no more" and "equal" hold if all prompts are answered alike


@dataclasses.dataclass(frozen=True)
class SmolConfig:
    files: tuple = ()  # out/smollm2
    out: str = ""  # folder for needles.png; empty: none


def needles(folder):
    """Return {(variant, theta, size): {(hay, depth, i): 1.0 if all digits are right, else 0.0}}."""
    answers = {}
    # the summary is written last, so an evaluation that has one is finished
    for summary in sorted(Path(folder).glob("*/*/niah-*.json")):
        _, theta, size = summary.stem.split("-")
        hay, variant = summary.parts[-3:-1]
        _, *lines = summary.with_suffix(".jsonl").read_text().splitlines()
        cell = answers.setdefault((variant, int(theta), int(size)), {})
        cell |= {(hay, r["cell"], r["i"]): float(r["exact"]) for r in map(json.loads, lines)}
    return answers


def results(folder, pattern, key):
    """Return {(variant, theta): the value of `key`} of the finished results."""
    values = {}
    for path in sorted(Path(folder).glob(pattern)):
        content = json.loads(path.read_text())
        if key in content:
            values[path.parent.name, int(content["tag"])] = content[key]
    return values


def times(theta):
    return f"theta x {theta / TRAINED:g}"


def share(answers):
    """Return the mean of {prompt: right}, its interval and the number of prompts, as text."""
    if not answers:
        return "–"
    low, high = wilson(sum(answers.values()), len(answers))
    return f"{np.mean([*answers.values()]):.2f} ({low:.2f}–{high:.2f}), {len(answers)}"


def predictions(answers, loss, tops, best):
    """
    Return [(number in README.md, text, measured, verdict)] of the predictions that are measured.

    answers: see `needles`. loss, tops: see `results`. best: the theta that was chosen.
    """
    rows = []

    def say(number, text, measured, low, high, least=-math.inf, most=math.inf):
        """The prediction holds if the interval from low to high is between least and most."""
        verdict = "does not" if high < least or low > most else "undecided"
        rows.append([number, text, measured,
                     "holds" if least < low and high < most else verdict])

    def finds(number, text, variant, theta, size, **bounds):
        if cell := answers.get((variant, theta, size)):
            say(number, f"{size:,}, {times(theta)}: {variant} finds {text}", share(cell),
                *wilson(sum(cell.values()), len(cell)), **bounds)

    def finds_more(number, text, one, other, theta, size, **bounds):
        mean, half, n = over_prompts(
            *(answers.get((variant, theta, size), {}) for variant in (one, other)))
        if n > 1:
            # Without a difference the interval has no width, and the rule calls that certain even
            # for few prompts. So the table says that all are alike.
            alike = "" if half else " all alike"
            say(number, f"{size:,}, {times(theta)}: {one} finds {text} {other}",
                f"{mean:+.3f} ± {half:.3f}, {n}{alike}", mean - half, mean + half, **bounds)

    def differs(number, text, measure, one, other, theta, least=-math.inf, most=math.inf):
        with contextlib.suppress(KeyError):  # not measured yet
            value = measure(one, theta) - measure(other, theta)
            rows.append([number, f"{one} minus {other}, {times(theta)}: {text}", f"{value:+.4f}",
                         f"{'right' if least < value < most else 'wrong'}, without interval"])

    def early(variant, theta):
        return np.mean(loss[variant, theta][:8192])

    def late(variant, theta):
        return np.mean(loss[variant, theta][-1638:])

    for size in (1024, 4096):
        finds(1, "more than .9", "softmax", TRAINED, size, least=0.9)
    for size in SIZES[:3]:
        finds_more(2, "no more than", "e", "softmax", TRAINED, size, most=EQUAL)
    for variant in ("softmax", "e", "constant", "clip"):
        finds(3, "less than .1", variant, TRAINED, 16384, most=0.1)
    finds_more(4, "more than", "e", "softmax", best, 16384, least=0)
    finds_more(4, "no more than", "e", "constant", best, 16384, most=EQUAL)
    for size in SIZES[:3]:
        finds_more(5, "the same as", "clip", "softmax", TRAINED, size, least=-EQUAL, most=EQUAL)
    finds_more(5, "no less than", "clip", "softmax", best, 16384, least=-EQUAL)
    finds_more(5, "no more than", "clip", "e", best, 16384, most=EQUAL)
    differs(6, "loss before 8,192 is higher", early, "e", "softmax", TRAINED, least=0)
    differs(6, "loss in the last tenth before 16,384 is lower", late, "e", "softmax", best, most=0)
    e_tops, softmax_tops = (
        dict(enumerate(trial["top"] for trial in tops.get((variant, TRAINED), ())))
        for variant in ("e", "softmax"))
    mean, half, n = over_prompts(e_tops, softmax_tops)
    if n > 1:
        say(7, "8,192, theta x 1, e minus softmax: top score within .05",
            f"{mean:+.3f} ± {half:.3f}, {n}", mean - half, mean + half, least=-0.05, most=0.05)
    differs(8, "loss before 8,192 within .02", early, "tuned_e", "tuned_softmax", TRAINED,
            least=-0.02, most=0.02)
    return rows


def draw(answers, best, path):
    """Draw needles found against context size, a line for each variant and theta."""
    figure = Figure(figsize=(6, 2.8), layout="constrained")
    axis = figure.subplots()
    # The tuned variants are left out, because they were asked in one kind of hay only.
    variants = [variant for variant in VARIANTS if not variant.startswith("tuned")]
    for i, variant in enumerate(variants):
        name, color = VARIANTS[variant]
        for theta, line in ((TRAINED, "-"), (best, "--")):
            shares = {size: np.mean([*answers[variant, theta, size].values()])
                      for size in SIZES if (variant, theta, size) in answers}
            x = np.array([*shares]) * 2 ** (0.06 * (i - 2))  # side by side, as some are equal
            label = name if theta == TRAINED and shares else None
            axis.plot(x, shares.values(), "o", ls=line, ms=4, color=color, label=label)
    axis.axvline(8192, color="0.4", linestyle=":", label="training length 8,192")
    axis.set_xscale("log", base=2)
    axis.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axis.minorticks_off()
    axis.set(xlabel="context size (tokens)", ylabel="needles found (all digits)",
             ylim=(-0.03, 1.03))
    counts = sorted(len(cell) for (variant, *_), cell in answers.items() if variant in variants)
    note = f"points stand side by side\n{counts[0]} to {counts[-1]} prompts each"
    figure.legend(loc="outside right", alignment="left", title=f"dashed: {times(best)}\n{note}")
    with atomic_write(path) as file:
        figure.savefig(file, format="png")


def main():
    cfg = configure(SmolConfig)
    if len(cfg.files) != 1 or not (answers := needles(cfg.files[0])):
        raise UserError("name a folder with results, such as out/smollm2; bash "
                        "experiments/smollm2/run.sh makes them")
    loss = results(cfg.files[0], "loss/*/posloss-*.json", "mean")
    tops = results(cfg.files[0], "novels/*/needle-*.json", "trials")
    best = max(theta for _, theta, _ in answers)
    markdown("The predictions: shares (95 %, Wilson) or paired differences, prompts; the losses of "
             "6 and 8 have no interval",
             ["", "prediction", "measured", ""], predictions(answers, loss, tops, best))
    shares, losses = [], []
    for theta in sorted({TRAINED, best}):
        for variant, (name, _) in VARIANTS.items():
            cells = [share(answers.get((variant, theta, size))) for size in SIZES]
            if {*cells} != {share({})}:
                shares.append([name, f"x {theta / TRAINED:g}", *cells])
            if mean := loss.get((variant, theta)):
                before = [mean[:8192], *(mean[end - end // 10:end] for end in SIZES)]
                losses.append([name, f"x {theta / TRAINED:g}",
                               *(f"{np.mean(part):.4f}" for part in before)])
    markdown("Needles found, all digits right: share (95 %), prompts; both kinds of hay, those "
             "that were trained on only noise",
             ["", "theta", *(f"{size:,}" for size in SIZES)], shares)
    markdown("Loss (nats per token): mean to 8,192, and in the tenth before a length",
             ["", "theta", "<= 8,192", *(f"{size:,}" for size in SIZES)], losses)
    scores = [[VARIANTS[variant][0], f"{np.median([trial['top'] for trial in trials]):.3f}",
               f"{sum(trial['exact'] for trial in trials)} of {len(trials)}"]
              for (variant, _), trials in tops.items()]
    markdown("Trials at 8,192 tokens of novels: median of the top needle score; needles found",
             ["", "score", "found"], scores)
    if cfg.out:
        draw(answers, best, Path(cfg.out) / "needles.png")


if __name__ == "__main__":
    launch(main)
