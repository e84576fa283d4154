"""
Tables, verdicts and figure of this arrangement: layers with a window have RoPE, and layers that see
all keys have no position. README.md in this folder discusses them.

    python -m experiments.windows.windows                            of the stored results
    python -m experiments.windows.windows out/windows --out=FOLDER   of these and new ones; writes
                                                                     results.csv and windows.png
    python -m experiments.windows.windows out/windows --row=mytype   a row of your own beside
                                                                     stored ones, and its picture
"""
import math
from dataclasses import dataclass
from pathlib import Path

from experiments import verdicts
from experiments.verdicts import by_seed, by_size, markdown, minus, spread
from lib import results
from lib.config import configure
from lib.errors import UserError, launch

HERE = Path(__file__).parent
BLOCK = 128  # training length in tokens
SIZES = (128, 512, 2048, 8192, 16384, 32768, 65536, 131072)
ROWS = {  # {row: title in the tables}, in the order of the tables
    "softmax": "(a) softmax", "ssmax": "(b) `ssmax`", "head_scale": "control: `head_scale`",
    "softmax|e": "(a), (e) swapped in", "softmax|clip": "(a), `logn_clip` swapped in",
    "softmax|constant": "(a), constant factor 2", "ssmax_bias": "(d) `ssmax_bias`",
    "ssmax_s1": "(c) `ssmax_s1`", "asentmax": "`asentmax`", "residual": "`residual`",
    "scale_invariant": "scale-invariant", "differential": "differential",
    "differential_ssmax": "differential, `ssmax`", "forget_ssmax": "forgetting, `ssmax`"}
# Rows of the questions for afterwards are named softmax.SLSL and so on.
CHANGES = {
    "": "SL, windows of 32, documents see each other", "window16": "windows of 16",
    "window64": "windows of 64", "masked": "documents masked (`--doc_mask`)",
    "SLSL": "four layers SLSL", "SSSL": "four layers SSSL"}
TABLES = (  # (title, measure, sizes, digits)
    ("Needles found, all digits right", "needles", SIZES, 2),
    ("Top needle score, median of the trials", "score", (128, 2048, 16384, 65536), 3),
    ("Weight of the retrieval heads on the needle", "weight", (128, 2048, 16384, 65536), 3),
    ("Needle ranked first by a retrieval head", "ranked first", (128, 2048, 16384, 65536), 2),
    ("Test loss (nats) before a position", "loss", (128, 512, 2048, 8192), 3),
    ("Needles found among 3 other cities", "look_3", (2048, 8192), 2),
    ("Needles found among 15 other cities", "look_15", (2048, 8192), 2),
    ("Needles found among 63 other cities", "look_63", (2048, 8192), 2),
    ("MQAR, a pair for each 16 tokens: share of the answers", "mqar", (128, 512, 2048, 4096), 2),
    ("MQAR, 8 pairs: share of the answers", "mqar_fixed", (128, 512, 2048, 8192), 2))
# {measure of the results: its name in results.csv}. An answer of MQAR counts wherever it stands in
# what the model writes.
MEASURES = {name: name for name in ("needles", "score", "weight", "ranked first")}
MEASURES |= {f"needles among {n} others": f"look_{n}" for n in (3, 15, 63)}
MEASURES["mqar answers, anywhere"] = "mqar"
COMPARED = {  # {measure: sizes} at which a row of one's own is compared with others
    "needles": (2048, 65536), "score": (2048, 65536), "weight": (2048, 65536),
    "ranked first": (65536,), "look_63": (8192,), "loss": (128, 2048, 8192)}
# {row: (name, colour)} of the figure. SSMax is drawn last, because it lies on the constant.
DRAWN = {"softmax": ("softmax", "#D55E00"),
         "head_scale": ("control: learned constant", "#8C8C8C"),
         "softmax|constant": ("softmax, constant 2 put in", "#E69F00"),
         "ssmax": ("SSMax", "#0072B2")}


@dataclass(frozen=True)
class WindowsConfig(verdicts.ExperimentConfig):
    # arguments
    row: str = ""  # only compare this row of the new results with the stored ones


def collect(folder, sizes=SIZES):
    """Return the table of the results in FOLDER/measured at these sizes."""
    rows = verdicts.named(results.load([Path(folder) / "measured"]))
    return verdicts.collect(rows, MEASURES, sizes)


def first_missed(table, row):
    """
    Return {seed: the first size at which fewer than half of the needles are found}, with inf if
    there is no such size. A seed that was not measured at all sizes up to there is left out.
    """
    missed = {}
    for seed, shares in by_size(table, row, "needles", SIZES).items():
        stop = shares[(shares < 0.5) | shares.isna()]
        if stop.empty:
            missed[seed] = math.inf
        elif stop.notna().iloc[0]:
            missed[seed] = stop.index[0]
    return missed


# -----------------------------------------------------------------------------
# tables and figure


def print_tables(table):
    rows = {row: name for row, name in ROWS.items() if row in table.index.unique("line")}
    path = HERE / "predictions.csv"
    verdicts.print_verdicts(verdicts.read_predictions(path, table, "windows"))
    # rows of the gallery, which are not in every folder of results
    if {"differential", "differential_ssmax", "forget_ssmax"} <= rows.keys():
        verdicts.print_verdicts(verdicts.read_predictions(path, table, "attention"),
                                " on other attention")
    for of_table in TABLES:
        verdicts.print_by_size(table, rows, *of_table)

    lines = []
    for row, name in rows.items():
        learned = by_seed(table, row, "needles", 128) >= verdicts.LEARNED
        sizes = sorted(first_missed(table, row).values())
        shown = (sizes[0], sizes[(len(sizes) - 1) // 2], sizes[-1])
        lines.append([name, f"{learned.sum()} of {len(learned)}", *map(in_words, shown)])
    markdown("The first context size at which more than half of the needles are missed, over the "
             "seeds (lower median); learned: found .95 at 128",
             ["", "learned", "least", "median", "largest"], lines)

    measures = [("needles", size, 2) for size in (128, 2048, 8192, 65536)]
    measures += [("loss", size, 3) for size in (128, 2048, 8192)]
    lines = []
    for change, name in CHANGES.items():
        for row in ("softmax", "ssmax"):
            changed = f"{row}.{change}".rstrip(".")
            cells = [spread(by_seed(table, changed, measure, size), digits)
                     for measure, size, digits in measures]
            lines.append([name, ROWS[row], len(by_seed(table, changed, "needles", 128)), *cells])
    markdown("Other patterns, windows, packed documents: needles found, and loss in nats (of 24 "
             "pieces of text; the tables above have 48)",
             ["", "", "seeds", *(f"{m}, {size // BLOCK}x" for m, size, _ in measures)], lines)

    lines = [[64 // heads, measure, *(
                spread(by_seed(table, f"softmax.heads{heads}", measure, size))
                for size in (128, 2048, 8192))]
             for heads in (1, 2, 4)
             for measure in ("least for needles", "half of needles", "best for the loss")]
    markdown("The factor on the query that softmax needs, by the width D of a head",
             ["D", "", "1x", "16x", "64x"], lines)


def in_words(size):
    """Return a size as text; inf: none."""
    return f"{size:,}" if size < math.inf else "none"


def print_row(table, row):
    """Print a row of one's own beside stored rows of the same seeds, and its differences to them.
    """
    names = {name: ROWS.get(name, name) for name in ("softmax", "ssmax", "head_scale", row)}
    for title, measure, *options in TABLES:
        if measure in table.loc[row].index.unique("measure"):
            verdicts.print_by_size(table, names, title, measure, *options)
    missed = ", ".join(map(in_words, first_missed(table, row).values()))
    print(f"First context size at which more than half of the needles are missed, by seed: {missed}"
          "\n")
    for other in ("softmax", "ssmax"):
        differences = {
            f"{measure} at {size:,}": minus(by_seed(table, row, measure, size),
                                            by_seed(table, other, measure, size))
            for measure, sizes in COMPARED.items() for size in sizes}
        verdicts.print_differences(f"{row} minus {ROWS[other]}", differences)


def draw(table, path, row=""):
    """Draw the needles found, and the weight on the needle. row: one more to draw."""
    shown = DRAWN | ({row: (row, "#6A3D9A")} if row else {})
    verdicts.draw_panels(path, {
        "Needles found": (table, "needles", SIZES, shown),
        "Attention weight on the needle": (table, "weight", SIZES, shown)}, BLOCK, label="")


def main():
    cfg = configure(WindowsConfig)
    table = verdicts.with_new(HERE / "results.csv", cfg.files, collect)
    if cfg.row:
        if cfg.row not in table.index.unique("line"):
            raise UserError(f"there are no results of {cfg.row} in {' '.join(cfg.files)}; bash "
                            f"experiments/windows/run.sh {cfg.row} makes them")
        # the table and the picture have the seeds of this row
        seeds = by_seed(table, cfg.row, "needles", 128).index
        table = table[table.index.isin(seeds, level="seed")]
        print_row(table, cfg.row)
        draw(table, Path(cfg.out or cfg.files[0]) / f"{cfg.row}.png", cfg.row)
        return
    print_tables(table)
    if cfg.out:
        verdicts.write_stored(table, Path(cfg.out) / "results.csv")
        draw(table, Path(cfg.out) / "windows.png")


if __name__ == "__main__":
    launch(main)
