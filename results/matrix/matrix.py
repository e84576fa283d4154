"""
The reference table: attention types by positions, from the runs of runs/matrix.sh.

    python results/matrix/matrix.py out/matrix --out=results/matrix    matrix.json and matrix.png
    python results/matrix/matrix.py results/matrix                     again, of matrix.json

A row is (what was trained, what was swapped in or "", position at evaluation). The rule, intervals
and Holm's correction are those of ../mini_cpu/claims.py.
"""
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "results/mini_cpu")]

from claims import LEARNED, holm, interval, markdown, minus, p_value, spread, verdict  # noqa: E402

from lib import runtime  # noqa: E402
from lib.config import configure  # noqa: E402
from lib.runtime import UserError  # noqa: E402

MULTIPLES = (1, 4, 10, 16)
TYPES = ("softmax", "ssmax", "ssmax_bias", "residual", "head_scale", "asentmax", "scale_invariant")
COLUMNS = {  # of the table and the figure: what was trained with, position at evaluation
    "RoPE": ("rope", "as_trained"), "RoPE, theta x 50": ("rope", "theta50"),
    "p-RoPE": ("prope", "as_trained"), "p-RoPE, theta x 50": ("prope", "theta50"),
    "NoPE": ("nope", "as_trained")}


@dataclass(frozen=True)
class MatrixConfig:
    files: tuple = ()  # out/matrix, or a folder with matrix.json
    out: str = ""  # folder for matrix.json and matrix.png


def collect(folder):
    """{"trained|swapped|position": {seed: {"needles": [of MULTIPLES], "loss": [..]}}}"""
    found = {}
    for path in sorted(Path(folder).glob("measured/*/*/*.json")):
        content, (trained, seed) = json.loads(path.read_text()), path.parent.name.rsplit("-", 1)
        row = f"{trained}|{content['tag']}|{path.parent.parent.name}"
        record = found.setdefault(row, {}).setdefault(seed, {})
        ends = [k * content["model_config"]["block_size"] for k in MULTIPLES]
        if "cells" in content:
            shares = [[cell["exact"] for cell in content["cells"] if cell["size"] == end]
                      for end in ends]
            record["needles"] = [round(float(np.mean(x)), 4) if x else None for x in shares]
        elif "mean" in content:
            mean = np.array(content["mean"])
            record["loss"] = [round(float(mean[end * 7 // 8:end].mean()), 4)
                              if end <= len(mean) else None for end in ends]
    return found


class Table:
    def __init__(self, rows):
        self.rows = rows

    def get(self, kind, trained, position, k, swapped=""):
        """{seed: number} of a row at k times the training length."""
        seeds = self.rows.get(f"{trained}|{swapped}|{position}", {})
        found = {seed: record[kind][MULTIPLES.index(k)]
                 for seed, record in seeds.items() if kind in record}
        return {seed: number for seed, number in found.items() if number is not None}

    def learned(self, trained):
        """"4 of 5" seeds that look up where and as they were trained."""
        found = self.get("needles", trained, "as_trained", 1).values()
        return f"{sum(x >= LEARNED for x in found)} of {len(found)}"

    def predictions(self):
        """[(number in README.md, prediction, {seed: number}, margin or None)]"""
        def needles(trained, position, k, swapped=""):
            return self.get("needles", trained, position, k, swapped)

        def loss(trained, position, k, swapped=""):
            return self.get("loss", trained, position, k, swapped)

        as_, t50, rope = "as_trained", "theta50", "softmax-rope"
        alibi = loss("softmax-alibi", as_, 16)
        rows = (row.split("|") for row in self.rows)
        others = [self.get("loss", trained, at, 16, swapped) for trained, swapped, at in rows
                  if trained.startswith("softmax-") and trained != "softmax-alibi"]
        least = {seed: min(other[seed] for other in others if seed in other)
                 for seed in alibi}
        ours = needles("ssmax-rope", t50, 4)
        clip = needles(rope, t50, 10, "logn_clip")
        return [
            (1, "ssmax at 16x: p-RoPE finds more than RoPE, as trained",
             minus(needles("ssmax-prope", as_, 16), needles("ssmax-rope", as_, 16)), None),
            (2, "RoPE as trained, 16x: ssmax has lower loss than softmax",
             minus(loss(rope, as_, 16), loss("ssmax-rope", as_, 16)), None),
            (3, "ssmax at 4x: theta x 50 no less than p-RoPE, within .1",
             {s: x + 0.1 for s, x in minus(ours, needles("ssmax-prope", as_, 4)).items()}, None),
            (4, "p-RoPE, 16x: scale_invariant finds more than ssmax",
             minus(needles("scale_invariant-prope", as_, 16), needles("ssmax-prope", as_, 16)),
             None),
            (5, "16x: ALiBi has lower loss than every other softmax", minus(least, alibi), None),
            (5, "16x: ALiBi finds less than .1",
             {s: 0.1 - x for s, x in needles("softmax-alibi", as_, 16).items()}, None),
            (6, "NoPE, 4x: ssmax finds more than softmax",
             minus(needles("ssmax-nope", as_, 4), needles("softmax-nope", as_, 4)), None),
            (7, "4x: residual about ssmax, within .1",
             minus(needles("residual-rope", t50, 4), ours), 0.1),
            (7, "4x: asentmax about ssmax, within .1",
             minus(needles("asentmax-rope", t50, 4), ours), 0.1),
            (8, "10x: logn_clip about (e), within .1",
             minus(clip, needles(rope, t50, 10, "ssmax")), 0.1),
            (8, "1x: logn_clip has lower loss than (e)",
             minus(loss(rope, t50, 1, "ssmax"), loss(rope, t50, 1, "logn_clip")), None),
            (9, "10x: llama4 finds less than logn_clip",
             minus(clip, needles(rope, t50, 10, "llama4")), None),
            (9, "10x: log_floor finds less than logn_clip",
             minus(clip, needles(rope, t50, 10, "log_floor")), None),
            (10, "softmax, 4x: NTK about theta x 50, within .1",
             minus(needles(rope, "ntk", 4), needles(rope, t50, 4)), 0.1),
            (11, "softmax, 4x: a sink changes little, within .1",
             minus(needles("softmax-sink", t50, 4), needles(rope, t50, 4)), 0.1)]


def print_tables(table):
    said = table.predictions()
    ps = [p_value(values, margin) if len(values) > 1 else None for _, _, values, margin in said]
    rows = []
    for (number, text, values, _), p, corrected in zip(said, ps, holm(ps), strict=True):
        mean, half = interval(values.values()) if values else (np.nan, np.nan)
        rows.append([number, text, f"{mean:+.3f} ± {half:.3f}", len(values), f"**{verdict(p)}**",
                     verdict(corrected)])
    markdown("The predictions: positive where right, mean ± half of the 95 % interval over seeds",
             ["", "prediction", "measured", "seeds", "", "by Holm"], rows)
    for kind, title in (("needles", "Needles found, all digits right"),
                        ("loss", "Test loss (nats) in the last eighth before a position")):
        rows = []
        for key in sorted(table.rows, key=lambda key: key.split("|")[::-1]):
            trained, swapped, position = key.split("|")
            cells = [spread(table.get(kind, trained, position, k, swapped)) for k in MULTIPLES]
            rows.append([trained, swapped, position, table.learned(trained), *cells])
        markdown(f"{title}: mean over the seeds (least–largest)",
                 ["trained", "swapped in", "position", "learned", *(f"{k}x" for k in MULTIPLES)],
                 rows)


def draw(table, path):
    """A grid of small curves: needles by length, a row a type, a column a position."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure = plt.figure(figsize=(9, 9), layout="constrained")
    axes = figure.subplots(len(TYPES), len(COLUMNS), sharex=True, sharey=True)
    for kind, line in zip(TYPES, axes, strict=True):
        for (title, (trained, position)), axis in zip(COLUMNS.items(), line, strict=True):
            found = [table.get("needles", f"{kind}-{trained}", position, k) for k in MULTIPLES]
            for seed in found[0] if all(found) else ():
                axis.plot(MULTIPLES, [of[seed] for of in found], ".", color="#0072B2", alpha=0.4)
            if all(found):
                means = [np.mean(list(of.values())) for of in found]
                axis.plot(MULTIPLES, means, color="#0072B2")
            axis.set_xscale("log", base=2)
            axis.set_xticks(MULTIPLES, [f"{k}x" for k in MULTIPLES])
            axis.minorticks_off()
            axis.set_ylim(-0.05, 1.05)
            if line is axes[0]:
                axis.set_title(title, fontsize=9)
        line[0].set_ylabel(kind, fontsize=9)
    figure.supxlabel("context size, as a multiple of the training length")
    figure.supylabel("needles found (line: mean, dots: seeds)")
    figure.savefig(path, dpi=130)


def main():
    cfg = configure(MatrixConfig)
    if len(cfg.files) != 1:
        raise UserError("name out/matrix, or the folder of matrix.json")
    path = Path(cfg.files[0]) / "matrix.json"
    rows = collect(cfg.files[0]) if cfg.out or not path.exists() else json.loads(path.read_text())
    if not rows:
        raise UserError(f"no results in {cfg.files[0]}; bash runs/matrix.sh makes them")
    print_tables(Table(rows))
    if cfg.out:
        runtime.write_json(Path(cfg.out) / "matrix.json", rows)
        draw(Table(rows), Path(cfg.out) / "matrix.png")


if __name__ == "__main__":
    runtime.launch(main)
