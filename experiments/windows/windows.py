"""
Print the tables and verdicts, and draw the figure, of this arrangement: layers with a window have
RoPE, and layers that see all keys have no position.

    python -m experiments.windows.windows out/windows --out=experiments/windows   from new results
    python -m experiments.windows.windows experiments/windows        from the stored numbers
    python -m experiments.windows.windows out/windows --row=mytype   one row beside the stored ones

--out adds the results in out/windows to windows.json, so it is enough to repeat a part of the runs.
"""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.verdicts import (
    LEARNED,
    Prediction,
    holm,
    markdown,
    merge,
    minus,
    number,
    p_value,
    print_verdicts,
    spread,
    verdict,
)
from lib import runtime
from lib.config import configure
from lib.runtime import UserError
from plot import Figure  # with the style of all figures

HERE = Path(__file__).parent
BLOCK = 128  # training length in tokens
SIZES = (128, 512, 2048, 8192, 16384, 32768, 65536, 131072)
LOSS_SIZES = (128, 512, 2048, 8192)
FACTOR_SIZES = (128, 2048, 8192)
SCORE_SIZES = (128, 2048, 16384, 65536)
ROWS = {  # {name: title in the tables}, in the order of the tables
    "softmax": "(a) softmax", "ssmax": "(b) `ssmax`", "head_scale": "control: `head_scale`",
    "softmax|e": "(a), (e) swapped in", "softmax|clip": "(a), `logn_clip` swapped in",
    "softmax|constant": "(a), constant factor 2", "ssmax_bias": "(d) `ssmax_bias`",
    "ssmax_s1": "(c) `ssmax_s1`", "asentmax": "`asentmax`", "residual": "`residual`",
    "scale_invariant": "scale-invariant"}
# The rows of the questions for afterwards are named softmax.SLSL and so on.
CHANGES = {
    "": "SL, windows of 32, documents see each other", "window16": "windows of 16",
    "window64": "windows of 64", "masked": "documents masked (`--doc_mask`)",
    "SLSL": "four layers SLSL", "SSSL": "four layers SSSL"}
# {row: (name, colour)} of the figure. SSMax is drawn last, because it lies on the clip.
DRAWN = {"softmax": ("(a) softmax", "#D55E00"),
         "head_scale": ("control: a learned factor, without n", "#8C8C8C"),
         "softmax|clip": ("clip, swapped into (a)", "#E69F00"),
         "ssmax": ("(b) SSMax", "#0072B2")}


@dataclass(frozen=True)
class WindowsConfig:
    # arguments
    files: tuple = ()  # out/windows, or a folder with windows.json
    row: str = ""  # only compare this row with the stored softmax and ssmax of the same seeds
    # output
    out: str = ""  # folder of windows.json, to which the results are added, and of windows.png


# -----------------------------------------------------------------------------
# results -> numbers


def collect(folder):
    """Return {row: {measure: {seed: number}}} from the results in out/windows. A measure is a text
    such as "needles 2048"."""
    rows = {}
    for path in sorted(Path(folder).glob("measured/*/*/*.json")):
        content = json.loads(path.read_text())
        if "done" in content:
            continue  # the evaluation was killed or is still running
        name, seed = path.parent.name.rsplit("-", 1)
        row = rows.setdefault("|".join(filter(None, (name, content["tag"]))), {})
        for measure, value in numbers(path.parent.parent.name, content).items():
            row.setdefault(measure, {})[seed] = round(float(value), 4)
    for path in sorted(Path(folder).glob("heads_*/*/temperature.jsonl")):
        name, seed = path.parent.name.rsplit("-", 1)
        row = rows.setdefault(name, {})
        header, *records = runtime.read_lines(path)
        for measure, value in factors(header["settings"], records).items():
            row.setdefault(measure, {})[seed] = round(float(value), 4)
    return rows


def factors(settings, records):
    """
    Return {measure: factor} from a result of experiments.temperature for one model.

    For needles it is the least factor tried that finds nine tenths of what the best one finds, and
    the factor at which half are found, read off between two that were tried. For the loss it is
    the best factor.
    """
    if settings["what"] == "loss":
        return {f"best for the loss {record['length']}": record["best"] for record in records}
    of_needles, tried = {}, np.log(settings["factors"])
    for record in records:
        shares = 1 - np.array(record["cost"])
        if shares.max() > 0:  # if no factor finds any, none is enough
            enough = (shares >= 0.9 * shares.max()).argmax()
            of_needles[f"least for needles {record['length']}"] = settings["factors"][enough]
        half = (shares >= 0.5).argmax()  # the first factor that finds half, if one does
        if half > 0:
            near = slice(half - 1, half + 1)
            of_needles[f"half of needles {record['length']}"] = np.exp(
                np.interp(0.5, shares[near], tried[near]))
    return of_needles


def numbers(kind, content):
    """Return {measure: number} of one result. kind: the folder that run.sh wrote it to."""
    if kind == "loss":
        # the mean of the tenth of positions before a size, as eval_posloss.py prints it
        return {f"loss {size}": np.mean(content["mean"][size - size // 10:size])
                for size in LOSS_SIZES if size <= len(content["mean"])}
    if kind.startswith("score"):
        tops = [trial["top"] for trial in content["trials"]]
        return {f"score {kind.removeprefix('score_')}": np.median(tops)}
    prefix = "needles" if kind in ("near", "far", "farthest") else kind
    shares, means = {}, {}
    for cell in content["cells"]:
        # an answer in MQAR counts wherever it stands in the words that the model writes
        share = cell["substring"] if kind.startswith("mqar") else cell["exact"]
        shares.setdefault(cell["size"], []).append(share)
    for size, of_depths in shares.items():
        means[f"{prefix} {size}"] = np.mean(of_depths)
    return means


def get(rows, row, measure):
    """Return {seed: number}; {} if it was not measured."""
    return rows.get(row, {}).get(measure, {})


def first_missed(row):
    """
    Return {seed: the first size at which fewer than half of the needles are found}, with inf if
    there is no such size. A seed that was not measured at all sizes up to there is left out.
    """
    missed = {}
    for seed in row.get("needles 128", {}):
        for size in SIZES:
            share = row.get(f"needles {size}", {}).get(seed)
            if share is None or share < 0.5:
                break
        if share is not None:
            missed[seed] = size if share < 0.5 else math.inf
    return missed


# -----------------------------------------------------------------------------
# predictions, as README.md numbers them


def predictions(rows):
    entries = []

    def say(claim, text, values, unit="share", margin=None):
        entries.append(Prediction(claim, text, unit, values, margin))

    def more(claim, text, measure, row, other, margin=None):
        unit = "nats" if measure.startswith("loss") else "share"
        say(claim, text, minus(get(rows, row, measure), get(rows, other, measure)), unit, margin)

    def change(row, measure, begin, end):
        return minus(get(rows, row, f"{measure} {end}"), get(rows, row, f"{measure} {begin}"))

    half = {seed: share / 2 for seed, share in get(rows, "softmax", "needles 128").items()}
    say(1, "(a) at 512x finds less than half of 1x",
        minus(half, get(rows, "softmax", "needles 65536")))
    say(2, "(b) finds as much at 512x as at 1x, within .1",
        change("ssmax", "needles", 128, 65536), margin=0.1)
    for size, x in ((8192, 64), (32768, 256), (65536, 512)):
        more(3, f"{x}x: (b) finds more than (a)", f"needles {size}", "ssmax", "softmax")
    more(4, "512x: the control finds as much as (b), within .1", "needles 65536", "head_scale",
         "ssmax", 0.1)
    for swap in ("e", "clip", "constant"):
        more(5, f"512x: {ROWS[f'softmax|{swap}']}, finds more than (a)", "needles 65536",
             f"softmax|{swap}", "softmax")
    more(6, "512x: the clip finds as much as (e), within .1", "needles 65536", "softmax|clip",
         "softmax|e", 0.1)
    say(7, "score of (b) rises from 1x to 512x", change("ssmax", "score", 128, 65536))
    for row, name in (("softmax", "(a)"), ("head_scale", "the control")):
        say(7, f"score of {name} falls", change(row, "score", 65536, 128))
    more(8, "512x: score higher with (b) than with the control", "score 65536", "ssmax",
         "head_scale")
    for size, x in ((2048, 16), (8192, 64)):
        more(9, f"{x}x: loss of (b) higher than of (a)", f"loss {size}", "ssmax", "softmax")
    more(9, "1x: loss of (b) equal to (a)'s, within .02", "loss 128", "ssmax", "softmax", 0.02)
    more(10, "64x: loss of the control higher than of (a)", "loss 8192", "head_scale", "softmax")
    more(10, "64x: loss of (b) higher than of the control", "loss 8192", "ssmax", "head_scale")
    more(11, "64x: loss of (e) higher than of the clip", "loss 8192", "softmax|e", "softmax|clip")
    more(12, "64x: loss of ssmax higher than of ssmax_bias", "loss 8192", "ssmax", "ssmax_bias")
    more(12, "512x: ssmax_bias finds as much as ssmax, within .1", "needles 65536", "ssmax_bias",
         "ssmax", 0.1)
    for row in ("ssmax_s1", "asentmax", "residual", "scale_invariant"):
        more(13, f"512x: {row} finds as much as ssmax, within .1", "needles 65536", row, "ssmax",
             0.1)
    more(14, "63 look-alikes, 64x: (b) finds more than (a)", "look_63 8192", "ssmax", "softmax")
    more(14, "the same: the control as much as (b), within .1", "look_63 8192", "head_scale",
         "ssmax", 0.1)
    more(15, "MQAR, 128 pairs at 16x: (b) finds more than (a)", "mqar 2048", "ssmax", "softmax")
    lead = minus(get(rows, "head_scale", "mqar 2048"), get(rows, "ssmax", "mqar 2048"))
    say(15, "the same: (b) no more than the control, within .1",
        {seed: 0.1 + of_control for seed, of_control in lead.items()})
    more(15, "MQAR, 8 pairs at 16x: (b) as much as (a), within .1", "mqar_fixed 2048", "ssmax",
         "softmax", 0.1)

    def log_needed(heads, size):
        needed = get(rows, f"softmax.heads{heads}", f"least for needles {size}")
        return {seed: math.log(factor) for seed, factor in needed.items()}

    growth = {heads: minus(log_needed(heads, 8192), log_needed(heads, 128)) for heads in (1, 4)}
    more_growth = minus(growth[4], growth[1])
    # By the law n^(2/(D-1)) the logarithm grows from 1x to 64x by ln 64 times 2/15 with D = 16, and
    # by ln 64 times 2/63 with D = 64. The prediction is that the difference is less than half of
    # what this says.
    half_of_law = (2 / 15 - 2 / 63) * math.log(64) / 2
    say(16, "the factor needed grows more with D = 16 than with D = 64", more_growth, "log")
    say(16, "the same: by less than half of the law",
        {seed: half_of_law - value for seed, value in more_growth.items()}, "log")
    return entries


# -----------------------------------------------------------------------------
# tables


def ordered(rows):
    """Return the names of the rows that the tables show: known ones first, then a user's own."""
    # the questions for afterwards have tables of their own
    changes = [*filter(None, CHANGES), "heads1", "heads2", "heads4"]
    afterwards = tuple(f".{change}" for change in changes)
    others = sorted(row for row in rows.keys() - ROWS.keys() if not row.endswith(afterwards))
    return [row for row in ROWS if row in rows] + others


def print_table(rows, title, measure, sizes, digits=2):
    """Print a line for each row and a column for each size: the mean over the seeds, and the least
    and largest."""
    lines = []
    for row in ordered(rows):
        cells = [spread(get(rows, row, f"{measure} {size}"), digits) for size in sizes]
        seeds = max(len(get(rows, row, f"{measure} {size}")) for size in sizes)
        if seeds:
            lines.append([ROWS.get(row, row), seeds, *cells])
    heads = [f"{size:,} ({size // BLOCK}x)" for size in sizes]
    markdown(f"{title}: mean over the seeds (least–largest)", ["", "seeds", *heads], lines)


def print_tables(rows):
    print_verdicts(predictions(rows))
    print_table(rows, "Needles found, all digits right", "needles", SIZES)
    lines = []
    for row in ordered(rows):
        missed, at_1x = first_missed(rows[row]), get(rows, row, "needles 128")
        if missed:
            learned = sum(share >= LEARNED for share in at_1x.values())
            sizes = sorted(missed.values())
            middle = (sizes[(len(sizes) - 1) // 2], sizes[-1])
            texts = [f"{size:,}" if size < math.inf else "none" for size in (sizes[0], *middle)]
            lines.append([ROWS.get(row, row), f"{learned} of {len(at_1x)}", *texts])
    markdown("The first context size at which more than half of the needles are missed, over the "
             "seeds (lower median); learned: found .95 at 128",
             ["", "learned", "least", "median", "largest"], lines)
    print_table(rows, "Top needle score, median of the trials", "score", SCORE_SIZES, 3)
    print_table(rows, "Test loss (nats) before a position", "loss", LOSS_SIZES, 3)
    for others in (3, 15, 63):
        print_table(rows, f"Needles found among {others} other cities", f"look_{others}",
                    (2048, 8192))
    print_table(rows, "MQAR, a pair for each 16 tokens: share of the answers", "mqar",
                (128, 512, 2048, 4096))
    print_table(rows, "MQAR, 8 pairs: share of the answers", "mqar_fixed", (128, 512, 2048, 8192))
    print_afterwards(rows)


def print_afterwards(rows):
    """Print one line for each change of the arrangement, and the factor that each head size needs.
    """
    columns = {"needles": ("needles {}", (128, 2048, 8192, 65536), 2),
               "loss": ("loss {}", (128, 2048, 8192), 3)}
    lines = []
    for change, name in CHANGES.items():
        for row in ("softmax", "ssmax"):
            changed = f"{row}.{change}" if change else row
            if changed in rows:
                cells = [spread(get(rows, changed, form.format(size)), digits)
                         for form, sizes, digits in columns.values() for size in sizes]
                seeds = len(get(rows, changed, "needles 128"))
                lines.append([name, ROWS[row], seeds, *cells])
    heads = [f"{title}, {size // BLOCK}x"
             for title, (_, sizes, _) in columns.items() for size in sizes]
    if len(lines) > 2:
        markdown("Other patterns, windows, packed documents: needles found, and loss in nats",
                 ["", "", "seeds", *heads], lines)
    lines = []
    for heads in (1, 2, 4):
        row = rows.get(f"softmax.heads{heads}", {})
        for measure in ("least for needles", "half of needles", "best for the loss"):
            cells = [spread(row.get(f"{measure} {size}", {})) for size in FACTOR_SIZES]
            if any(row.get(f"{measure} {size}") for size in FACTOR_SIZES):
                lines.append([64 // heads, measure, *cells])
    if lines:
        markdown("The factor on the query that softmax needs, by the width D of a head",
                 ["D", "", *(f"{size // BLOCK}x" for size in FACTOR_SIZES)], lines)


def print_row(rows, stored, row, folder):
    """Print a new row beside the stored ones, and its differences to two of them."""
    seeds = get(rows, row, "needles 128").keys()
    if not seeds:
        raise UserError(f"there are no results of {row} in {folder}; bash "
                        f"experiments/windows/run.sh {row} makes them")
    same = {other: {measure: {seed: values[seed] for seed in values.keys() & seeds}
                    for measure, values in stored.get(other, {}).items()}
            for other in ("softmax", "ssmax", "head_scale")}
    shown = {**same, row: rows[row]}
    print_table(shown, "Needles found, all digits right", "needles", SIZES)
    print_table(shown, "Test loss (nats) before a position", "loss", LOSS_SIZES, 3)
    missed = [f"{size:,}" if size < math.inf else "none"
              for size in first_missed(rows[row]).values()]
    print(f"First context size at which more than half of the needles are missed, by seed: "
          f"{', '.join(missed)}")
    seconds = []
    for seed in seeds:
        about, *records = runtime.read_lines(Path(folder) / f"trained/{row}-{seed}/log.jsonl")
        tokens = about["config"]["batch_size"] * about["model_config"]["block_size"]
        seconds += [tokens / record["tokens_per_s"] for record in records
                    if "tokens_per_s" in record]
    if seconds:
        print(f"Time of an update here: {np.median(seconds) * 1000:.0f} ms (median)\n")
    print_differences(shown, row)


def print_differences(rows, row):
    """Print how `row` differs from two stored rows, and whether that may be chance."""
    names, differences = [], []
    for other in ("softmax", "ssmax"):
        for measure in ("needles 2048", "needles 65536", "loss 128", "loss 2048", "loss 8192"):
            difference = minus(get(rows, row, measure), get(rows, other, measure))
            if difference:
                names.append([other, measure, len(difference), number(difference)])
                differences.append(difference)
    ps = [p_value(difference) for difference in differences]
    lines = [[*name, worth(p), worth(corrected)]
             for name, p, corrected in zip(names, ps, holm(ps), strict=True)]
    markdown(f"{row} minus the stored rows, paired by seed, ± half of the 95 % interval; by Holm: "
             f"corrected for these {len(lines)} comparisons",
             ["minus", "what, at how many tokens", "seeds", "difference", "", "by Holm"], lines)


def worth(p):
    """Return in words what a difference with this signed p is worth."""
    if p is None:
        return verdict(p)
    return "a difference" if abs(p) < 0.05 else "may be chance"


# -----------------------------------------------------------------------------
# figure


def papers_arrangement():
    """Return {row: {"needles 512": {seed: share}}} of the paper's arrangement, RoPE in every layer
    and theta x 50, from the results of mini_cpu."""
    rows = {}
    for row, name in (("softmax", "a"), ("ssmax", "b"), ("head_scale", "head_scale")):
        for path in sorted((HERE.parent / "mini_cpu").glob(f"{name}-*.json")):
            cells = {}
            for cell in json.loads(path.read_text())["niah"]["50"]:
                cells.setdefault(cell["size"], []).append(cell["exact"])
            for size, shares in cells.items():
                by_seed = rows.setdefault(row, {}).setdefault(f"needles {size}", {})
                by_seed[path.stem.rsplit("-", 1)[1]] = np.mean(shares)
    return rows


def draw_needles(axis, rows, sizes):
    """Draw needles found against context size. A line is the mean of the seeds, a dot one seed."""
    shown = [row for row in DRAWN if row in rows]
    for i, row in enumerate(shown):
        label, color = DRAWN[row]
        measured = [size for size in sizes if get(rows, row, f"needles {size}")]
        shares = [list(get(rows, row, f"needles {size}").values()) for size in measured]
        axis.plot(measured, [np.mean(values) for values in shares], color=color, lw=2, label=label,
                  linestyle="--" if row == "ssmax" else "-")
        for size, values in zip(measured, shares, strict=True):
            # the dots of the rows are drawn side by side, so that none hides another
            beside = size * 2 ** (0.16 * (i - (len(shown) - 1) / 2))
            axis.plot([beside] * len(values), values, "o", ms=2.5, alpha=0.6, color=color)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size // 1024}k" if size >= 1024 else size for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("context size (tokens)")


def draw(rows, path):
    """Draw the figure of the front page: this arrangement, and beside it the paper's."""
    figure = Figure(figsize=(7.6, 3.1))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
    draw_needles(left, rows, SIZES)
    left.set(title="Windows", ylabel="needles found", ylim=(-0.03, 1.03))
    left.legend(loc="lower left", bbox_to_anchor=(0.06, 0))
    draw_needles(right, papers_arrangement(), (128, 256, 512, 1024, 2048))
    right.set_title("The paper's arrangement, theta x 50")
    for axis in (left, right):
        axis.axvline(BLOCK, color="0.5", linestyle=":")
    figure.tight_layout()
    with runtime.atomic_write(path) as f:
        figure.savefig(f, format="png")


def main():
    cfg = configure(WindowsConfig)
    if len(cfg.files) != 1:
        raise UserError("name one folder: out/windows, or that of windows.json")
    folder = Path(cfg.files[0])
    path = Path(cfg.out or (HERE if cfg.row else folder)) / "windows.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    measured = collect(folder)
    if cfg.row:
        return print_row(measured, stored, cfg.row, folder)
    merge(stored, measured)
    if not stored:
        raise UserError(f"there are no results in {folder}; bash experiments/windows/run.sh makes "
                        "them")
    print_tables(stored)
    if cfg.out:
        runtime.write_json(path, stored)
        draw(stored, path.with_suffix(".png"))


if __name__ == "__main__":
    runtime.launch(main)
