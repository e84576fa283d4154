"""
Print the tables and verdicts, and draw the figure, of why needles are missed (see lib/readout.py).

    python -m experiments.readout.readout out/readout/measured out/windows/measured \
        --out=experiments/readout                                      from new results
    python -m experiments.readout.readout experiments/readout          from the stored numbers

--out adds the results to readout.json, so it is enough to repeat a part of the runs.
"""
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.verdicts import Prediction, markdown, minus, print_verdicts
from lib import runtime
from lib.config import configure
from lib.evaluate import progress
from lib.readout import KINDS_OF_MISS
from lib.runtime import UserError
from plot import Figure  # with the style of all figures

FEW = 5  # seeds with fewer misses than this are left out where a prediction says "mostly"
SEEN = ("6", "7")  # seeds of the windows that we had looked at before we amended `faded`
# The seeds that the plan named, by the beginning of a setting's name (SmolLM2 has none). More were
# measured later. Where a prediction is about `faded`, those of SEEN are left out here, too.
PLANNED = {"score": "6 7 8 9 10", "look": "6 7 8 9 10", "theta50": "1 2 3 4 5",
           "yarn": "1 2 3 4 5", "mqar": "1 2 3"}
SETTINGS = {  # {beginning of a folder's name: title of its table}
    "score": "Windows with RoPE, no position where a layer sees all",
    "look_3": "The same with 3 look-alikes", "look_15": "The same with 15 look-alikes",
    "look_63": "The same with 63 look-alikes",
    "theta50": "RoPE in every layer, theta x 50", "yarn": "RoPE in every layer, YaRN",
    "mqar_fixed": "MQAR, 8 pairs, RoPE in every layer, theta x 50",
    "smollm2": "SmolLM2-135M, needles in noise", "smollm2x2": "The same with theta x 2"}
ROWS = {"softmax": "(a) softmax", "ssmax": "(b) `ssmax`", "head_scale": "control",
        "softmax|e": "(e) swapped into (a)",
        # these two are not in the figure
        "softmax|clip": "clip swapped into (a)", "softmax|constant": "(a) with one temperature"}
FOLDERS = {"a_softmax": "softmax", "b_ssmax": "ssmax"}  # {name in experiments/mini_cpu: row}
COLORS = {"softmax": "#D55E00", "ssmax": "#0072B2", "head_scale": "#8C8C8C",
          "softmax|e": "#E69F00"}


@dataclass(frozen=True)
class ReadoutConfig:
    # arguments
    files: tuple = ()  # folders of results, or the folder of readout.json
    # output
    out: str = ""  # folder of readout.json, to which the results are added, and of readout.png


# -----------------------------------------------------------------------------
# results -> numbers


def collect(folder):
    """Return {setting: {row: {size: {seed: what the heads did}}}} from the results in a folder."""
    measured = {}
    for path in sorted(Path(folder).glob("*/*/needle*.json")):
        content = json.loads(path.read_text())
        # a model whose training was interrupted does not count
        if not content.get("readout") or progress(content["iter"], content["max_iters"]):
            continue
        setting = next((name for name in SETTINGS if path.parts[-3].startswith(f"{name}-")
                        or path.parts[-3].startswith(f"{name}_")), None)
        name, _, seed = path.parent.name.rpartition("-")
        # a folder without a seed, such as smollm2, leaves the name empty: it was softmax
        row = "|".join(filter(None, (FOLDERS.get(name, name) or "softmax", content["tag"])))
        if setting and row in ROWS:
            summary = content["readout"]
            share = np.mean([trial["exact"] for trial in content["trials"]])
            keep = ("ranked_first", "heads_first", "chance", "weight", "share", "effective",
                    "misses", "wrong_tokens")
            by_size = measured.setdefault(setting, {}).setdefault(row, {})
            by_size.setdefault(str(summary["size"]), {})[seed] = {
                "n": len(content["trials"]), "found": round(float(share), 4),
                **{key: summary[key] for key in keep if key in summary}}  # older results lack some
    return measured


def get(measured, setting, row, size, key):
    """Return {seed: number}; {} if it was not measured."""
    seeds = measured.get(setting, {}).get(row, {}).get(str(size), {})
    return {seed: record[key] for seed, record in seeds.items()}


def of_planned_seeds(measured):
    """Return what was measured of the seeds that the plan named."""
    planned = {}
    for setting, rows in measured.items():
        seeds = PLANNED.get(setting.partition("_")[0], "").split()
        planned[setting] = {
            row: {size: {seed: record for seed, record in records.items() if seed in seeds}
                  for size, records in sizes.items()}
            for row, sizes in rows.items()}
    return planned


def mostly(measured, setting, row, size, kind):
    """Return {seed: the share of its misses that are of this kind, minus one half}."""
    shares = {}
    for seed, misses in get(measured, setting, row, size, "misses").items():
        if sum(misses.values()) >= FEW:
            shares[seed] = misses[kind] / sum(misses.values()) - 0.5
    return shares


# -----------------------------------------------------------------------------
# predictions, as README.md numbers them (9 to 14 are about one model: no interval)


def predictions(measured):
    entries = []

    def say(claim, text, values, unit="share", margin=None):
        entries.append(Prediction(claim, text, unit, values, margin))

    def say_mostly(claim, where, setting, row, size, kind):
        shares = mostly(measured, setting, row, size, kind)
        if kind == "faded":  # the definition of this word was changed after a look at these seeds
            shares = {seed: share for seed, share in shares.items() if seed not in SEEN}
        say(claim, f"{where}: misses of {ROWS[row]} are mostly {kind}", shares)

    def change(row, key, begin=128, end=65536):
        return minus(get(measured, "score", row, end, key), get(measured, "score", row, begin, key))

    def growth(row):  # in octaves
        begin, end = (get(measured, "score", row, size, "effective") for size in (128, 65536))
        return {seed: float(np.log2(end[seed] / begin[seed])) for seed in begin.keys() & end.keys()}

    for size, x in ((1024, 8), (2048, 16)):
        for row in COLORS:  # the rows of the figure
            say_mostly(1, f"theta x 50, {x}x", "theta50", row, size, "out of place")
    for row in ("softmax", "softmax|e"):
        say_mostly(2, "YaRN, 16x", "yarn", row, 2048, "out of place")
    for row in ("softmax", "head_scale"):
        say_mostly(3, "windows, 512x", "score", row, 65536, "faded")
    for row in ("softmax", "ssmax"):
        say(4, f"windows: {ROWS[row]} ranks the needle first at 512x as often as at 1x, within .1",
            change(row, "ranked_first"), margin=0.1)
    for row in ("softmax", "head_scale"):
        say(5, f"windows: the share of {ROWS[row]} falls from 1x to 512x",
            change(row, "share", 65536, 128))
    say(5, "windows: the share of (b) stays, within .05", change("ssmax", "share"), margin=0.05)
    say(6, "windows: effective keys of (a) grow more than 16-fold to 512x",
        {seed: octaves - 4 for seed, octaves in growth("softmax").items()}, "octaves")
    say(6, "windows: effective keys of (b) grow less than 2-fold",
        {seed: 1 - octaves for seed, octaves in growth("ssmax").items()}, "octaves")
    say_mostly(7, "63 look-alikes, 64x", "look_63", "softmax", 8192, "faded")
    for row in ("softmax", "ssmax"):
        say_mostly(8, "MQAR, 8 pairs, 16x", "mqar_fixed", row, 2048, "confused")
    return entries


# -----------------------------------------------------------------------------
# output


def print_tables(measured):
    print_verdicts(predictions(of_planned_seeds(measured)), " on the seeds that the plan named")
    print_verdicts(predictions(measured), " on all seeds")
    for setting, title in SETTINGS.items():
        lines = []
        for row in ROWS:
            sizes = measured.get(setting, {}).get(row, {})
            for size in sorted(sizes, key=int):
                lines.append([ROWS[row], f"{int(size):,}", *cells(sizes[size].values())])
        markdown(f"{title}. Found to effective keys: means over the prompts of all seeds; the "
                 "misses are numbers of prompts; last: those wrong at the first token",
                 ["", "tokens", "seeds", "prompts", "found", "ranked first", "by chance",
                  "heads that rank it first", "weight", "share of the output",
                  "effective keys", *KINDS_OF_MISS, "at the first token"],
                 lines)


def cells(records):
    """Return the cells of a table's line from the records of all seeds of a row and size."""
    records = list(records)

    def mean(key, digits):
        if any(key not in record for record in records):
            return ""  # older results lack heads_first
        return f"{np.mean([record[key] for record in records]):,.{digits}f}"

    misses = [sum(record["misses"][kind] for record in records) for kind in KINDS_OF_MISS]
    return [len(records), sum(record["n"] for record in records), mean("found", 2),
            mean("ranked_first", 2), mean("chance", 4), mean("heads_first", 2), mean("weight", 3),
            mean("share", 3), mean("effective", 1),
            *misses, sum(record["wrong_tokens"].get("0", 0) for record in records)]


PANELS = (("ranked_first", "needle ranked first\n(share of prompts)"),
          ("weight", "weight on the needle\n(mean of the heads)"),
          ("effective", "effective keys\n(best head, median)"))
KIND_COLORS = {"confused": "#CC79A7", "out of place": "#009E73", "faded": "#F0E442",
               "other": "#555555"}


def draw(measured, path):
    """Draw both arrangements side by side: what the heads do, and the kinds of misses of (a)."""
    figure = Figure(figsize=(7.6, 7.2))
    axes = figure.subplots(4, 2, sharey="row", sharex="col")
    for column, setting in enumerate(("theta50", "score")):
        rows = measured.get(setting, {})
        sizes = sorted({int(size) for row in rows.values() for size in row})
        for (key, label), axis in zip(PANELS, axes[:3, column], strict=True):
            shown = [row for row in COLORS if row in rows]
            for i, row in enumerate(shown):
                values_of = {size: list(get(measured, setting, row, size, key).values())
                             for size in sizes if get(measured, setting, row, size, key)}
                color = COLORS[row]
                # some seeds of softmax have few effective keys and the others very many, so that a
                # mean would be far from all of them
                middle = np.median if key == "effective" else np.mean
                axis.plot(values_of.keys(), [middle(values) for values in values_of.values()],
                          color=color, lw=2, label=ROWS[row].replace("`", ""))
                for size, values in values_of.items():  # the rows' dots are side by side
                    beside = size * 2 ** (0.14 * (i - (len(shown) - 1) / 2))
                    axis.plot([beside] * len(values), values, "o", ms=2.5, alpha=0.6, color=color)
            if column == 0:
                axis.set_ylabel(label)
        bars(axes[3, column], measured, setting, sizes)
        axes[0, column].set_title("Windows" if setting == "score" else SETTINGS[setting])
        axes[3, column].set_xscale("log", base=2)
        axes[3, column].set_xticks(
            sizes, [f"{size:,}\n({size // 128}x)" for size in sizes])
        axes[3, column].minorticks_off()
        axes[3, column].set_xlabel("context size (tokens)")
    axes[2, 0].set_yscale("log", base=2)
    axes[2, 0].yaxis.set_major_formatter("{x:,.0f}")
    axes[3, 0].set_ylabel("misses of (a)\n(share of prompts)")
    axes[0, 0].legend(fontsize=7)
    axes[3, 0].legend(fontsize=7, loc="upper left", reverse=True)  # in the order of the bars
    figure.tight_layout()
    with runtime.atomic_write(path) as f:
        figure.savefig(f, format="png")


def bars(axis, measured, setting, sizes):
    """Draw the misses of (a) at each size as bars, divided into their kinds."""
    bottom = np.zeros(len(sizes))
    for kind, color in KIND_COLORS.items():
        heights = []
        for size in sizes:
            records = measured.get(setting, {}).get("softmax", {}).get(str(size), {}).values()
            shares = [record["misses"][kind] / record["n"] for record in records]
            heights.append(np.mean(shares or [0]))
        if not any(heights):
            continue
        axis.bar(np.array(sizes) * 0.8, heights, np.array(sizes) * 0.4, bottom, align="edge",
                 color=color, edgecolor="0.3", lw=0.5, label=kind)
        bottom += heights


def main():
    cfg = configure(ReadoutConfig)
    if not cfg.files:
        raise UserError("name folders of results, or the folder of readout.json")
    stored = {}
    # The stored numbers are read first. The results that `collect` finds replace them below.
    for folder in dict.fromkeys((cfg.out, *cfg.files)):
        path = Path(folder or ".") / "readout.json"
        if folder and path.exists():
            stored = json.loads(path.read_text())
    for folder in cfg.files:
        for setting, rows in collect(folder).items():
            for row, sizes in rows.items():
                for size, seeds in sizes.items():
                    by_size = stored.setdefault(setting, {}).setdefault(row, {})
                    by_size.setdefault(size, {}).update(seeds)
    if not stored:
        raise UserError(f"there are no results in {', '.join(map(str, cfg.files))}; "
                        "bash experiments/readout/run.sh makes them")
    print_tables(stored)
    if cfg.out:
        runtime.write_json(Path(cfg.out) / "readout.json", stored)
        draw(stored, Path(cfg.out) / "readout.png")


if __name__ == "__main__":
    runtime.launch(main)
