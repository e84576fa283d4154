"""Tables of results (lib/results.py), as the evaluations and plot.py print them."""
import itertools
import math
import os

import numpy as np
import pandas as pd

from lib.results import curves_of, load
from lib.tasks import OF_NEEDLES

MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper ends at 20
TITLES = {  # {(file type, measure): title of its table}
    ("log", "at the end"): "losses in nats at the end (train: mean of the last tenth)",
    ("posloss", "loss"): "{split} loss (nats), mean of the tenth before a position",
    ("posloss", "minus (a)"): "{split} loss minus that of (a), same seed and pieces",
    ("niah", "exact"): "needles found, all digits right, by context size",
    ("niah", "minus (a)"): "needles found minus those of (a), same seed and prompts",
    ("niah", "first"): "needles found, first digit right, by context size",
    ("niah", "substring"): "needles found anywhere in the text, by context size",
    ("scores", "score"): "top needle score by context size, median of the trials",
    ("scores", "weight"): "weight on the needle, mean of the retrieval heads",
    ("scores", "ranked first"): "needle ranked first by a retrieval head, share of the trials",
    ("scores", "chance"): "needle ranked first by chance, share of the trials",
}
OVERVIEW = {  # {column of the overview of runs: (file type, measure)}
    ("needles", "found"): ("niah", "exact"),
    ("needles", "minus (a)"): ("niah", "minus (a)"),
    ("loss", "validation"): ("log", "at the end"),
    ("loss", "far"): ("posloss", "loss"),
    ("loss", "minus (a)"): ("posloss", "minus (a)"),
}


def print_tables(inputs):
    """Print what was measured. inputs: result files, or folders of them."""
    print_curves(curves_of(load(inputs)))


def print_curves(by_type):
    """Print a line for each curve with mean ± standard error, and the folders of its results."""
    print("mean ± standard error: over the seeds; for a single seed, over its prompts or pieces of "
          "text")
    for (file_type, measure), title in TITLES.items():
        curves = by_type.get(file_type, ())
        lines = {curve.label: cells_of(curve, measure) for curve in curves}
        lines = {label: cells for label, cells in lines.items() if cells}
        if not lines:
            continue
        table = pd.DataFrame.from_dict(lines, "index")
        if file_type != "log":
            table = table[sorted(table)].rename(columns="{:,}".format)
        print(f"\n{in_words(title, curves)}\n{table.fillna('-').to_string()}")
    folders = {}  # {label: {folder: None}}, each folder once
    for curve in itertools.chain(*by_type.values()):
        for result in curve.results:
            folders.setdefault(curve.label, {})[str(result.path.parent)] = None
    print("\nfolders of these results")
    for label, names in folders.items():
        print(f"{label}: {' '.join(names)}")


def print_runs(results):
    """
    Print the overview of runs, which fits 120 columns: one line for each run, and one for each tag
    of its evaluations. The most needles come first, and of equal ones the lowest loss.
    """
    lines = {}  # {(folder, tag): {column: value}}
    for result in results:
        line = lines.setdefault((result.path.parent.absolute(), result.tag), {})
        line["", "variant"] = result.variant[:20]
        line["", "seed"] = result.seeds[-1]
    # {file type: the place in its Series that is shown}: the most tokens that were measured
    far = {"log": "validation"}
    for column, (file_type, measure) in OVERVIEW.items():
        shown = [result for result in results
                 if result.file_type == file_type and measure in result.values]
        sizes = [result.values[measure].index.max() for result in shown]
        tokens = far.setdefault(file_type, max(sizes, default=0))
        for result in shown:
            line = lines[result.path.parent.absolute(), result.tag]
            line[column] = result.values[measure].get(tokens)

    above = os.path.commonpath([folder.parent for folder, _ in lines])
    names = [f"{os.path.relpath(folder, above)} [{tag}]" for folder, tag in lines]
    names = [name.removesuffix(" []")[-28:] for name in names]
    columns = pd.MultiIndex.from_tuples([("", "variant"), ("", "seed"), *OVERVIEW])
    table = pd.DataFrame(lines.values(), names, columns)
    by = [("needles", "found"), ("loss", "far"), ("loss", "validation")]
    table = table.sort_values(by, ascending=[False, True, True])
    table = table.dropna(axis=1, how="all")
    print(f"runs in {above}")
    names = {"niah": "needles found", "posloss": "loss, far"}
    print("; ".join(f"{name}: at {far[key]:,} tokens" for key, name in names.items() if far[key]))
    print(table.to_string(na_rep="-", float_format="{:.3f}".format))
    print()


def in_words(text, curves):
    """Return a title or axis label with its split, and with its task if that is not needles."""
    tasks = sorted({curve.first.task for curve in curves})
    splits = sorted({curve.first.split for curve in curves})
    if not set(tasks) <= set(OF_NEEDLES):
        text = text.replace("needles", "answers")
        text = text.replace("digits", "of it").replace("digit", "character")
    text = text.format(split=" and ".join(splits).replace("val", "validation"))
    return text if tasks == ["needle"] else f"{text}, task: {', '.join(tasks)}"


def cells_of(curve, measure):
    """Return {column: "mean ± error"} of a curve; the columns are numbers of tokens."""
    seeds, errors = curve.seeds(measure), curve.error(measure)
    if "ends" in curve.first.header:
        shown = {round(multiple * curve.first.block_size) for multiple in MULTIPLES}
        seeds = seeds[seeds.index.isin(shown)]
    cells = {}
    for column, values in seeds.iterrows():
        of = f" (of {values.count()})" if values.count() < len(curve.results) else ""
        cells[column] = plus_minus(values.mean(), errors.get(column, np.nan)) + of
    return cells


def plus_minus(mean, error):
    """Return "mean ± error" with two digits of the error. No error: NaN."""
    if not error or math.isnan(error):  # 0: all seeds agree
        text = f"{mean:,.4f}".rstrip("0").rstrip(".")
        return text if math.isnan(error) else f"{text} ± 0"
    digits = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
