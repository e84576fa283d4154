"""
Tables, verdicts and pictures of an experiment, from its results.csv, predictions.csv and lines.csv.

    python -m experiments.tables windows                  of the stored results
    python -m experiments.tables windows out/windows --out=experiments/windows
                                   these and new results; writes results.csv and the pictures
    python -m experiments.tables windows out/windows --line=mine
                                   a new line beside stored ones of the same seeds, and a picture

lines.csv has the rows of the tables in their order: group (title of a table), line, label, baseline
(the price of a line is its loss above that of this one), block (training length in tokens), figure
(name of the picture that shows the line, or nothing) and colour.
"""
import math
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import pandas as pd

import plot
from experiments import verdicts
from experiments.verdicts import by_seed
from lib import results
from lib.config import configure
from lib.errors import UserError, launch
from lib.storage import atomic_write

HERE = Path(__file__).parent
COLUMNS = ["line", "seed", "measure", "tokens", "value", "error", "n"]  # of results.csv
INDEX = ["line", "measure", "tokens", "seed"]
FIRST = ["needles", "loss"]  # the first tables of a group
SHARES = ("needles", "ranked first", "MQAR")  # these measures have two digits, others three
PANELS = {"needles": "needles found", "price": "price: loss above the baseline's (nats)",
          "weight": "attention weight on the needle"}
BESIDE = ("softmax", "ssmax", "head_scale")  # what --line is shown beside
GALLERY = {"#D55E00": "softmax's logits", "#0072B2": "SSMax", "#CC79A7": "the clip, put in"}


@dataclass(frozen=True)
class TablesConfig:
    # arguments
    files: tuple = ()  # an experiment, and folders of new results that its run.sh has made
    line: str = ""  # only compare this new line with stored ones
    # output
    out: str = ""  # folder for results.csv and the pictures; empty: they are not written


# -----------------------------------------------------------------------------
# numbers


def collect(folder):
    """Return the rows of results.csv for the results in FOLDER/measured."""
    parts = []
    for path in sorted(Path(folder, "measured").iterdir()):
        rows = results.load([path])
        rows = rows[rows["unit"].isin(["tokens", "position"])]
        # eval_posloss.py names a loss after its split
        measure = rows["measure"].replace({"long loss": "loss", "test loss": "loss"})
        line = rows["variant"].where(rows["tag"] == "", rows["variant"] + "|" + rows["tag"])
        if len(rows):  # a file of measured/ may have just begun
            parts.append(rows.assign(line=line, measure=measure))
    if not parts:
        raise UserError(f"{folder}/measured has no results; run.sh of the experiment fills it")
    return pd.concat(parts)[COLUMNS].round({"value": 4, "error": 4})


def stored(path):
    """Return the rows of a results.csv. The value of a model that gave NaN is empty."""
    empty = {name: [""] for name in ("value", "error", "n")}  # a line may be called none or NA
    rows = pd.read_csv(path, keep_default_na=False, na_values=empty)
    return rows[COLUMNS].astype({"value": float, "n": "Int64"})


def with_new(rows, folders, block_of):
    """
    Return the rows with those of new results, which replace stored ones. Left out are measures and
    sizes that no stored line of the same training length has.
    """
    def numbers(rows):
        blocks = rows["line"].map(block_of).fillna(block_of.iloc[0])
        return pd.MultiIndex.from_arrays([rows["measure"], rows["tokens"], blocks])

    if folders:
        new = pd.concat(map(collect, folders))
        twice = new[new.duplicated(INDEX)]
        if len(twice):
            raise UserError(f"{', '.join(folders)}: there are two results of "
                            f"{twice['line'].iloc[0]} with seed {twice['seed'].iloc[0]}; move one "
                            "of them away")
        new = new[numbers(new).isin(numbers(rows))]
        rows = pd.concat([rows, new]).drop_duplicates(INDEX, keep="last")
    return rows.sort_values(INDEX)


def with_prices(table, lines):
    """Return the table with the measure "price": a line's loss above that of its baseline."""
    losses = table[table.index.isin(["loss"], level="measure")]
    loss_of = {line: values.droplevel("line") for line, values in losses.groupby("line")}
    prices = {}
    for row in lines[lines["line"].isin(loss_of) & lines["baseline"].isin(loss_of)].itertuples():
        ours, theirs = loss_of[row.line].align(loss_of[row.baseline], join="inner")
        prices[row.line] = ours - theirs
    if not prices:
        return table
    prices = pd.concat(prices, names=["line"])
    return pd.concat([table, prices.rename({"loss": "price"}, level="measure")]).sort_index()


# -----------------------------------------------------------------------------
# tables


def short(x, digits):
    """Return a number as text without the 0 before its point, as in .45 and -.003."""
    text = f"{x:.{digits}f}"
    if text.startswith(("0.", "-0.")):
        text = text.replace("0.", ".", 1)
    return text if text.strip("-.0") else text.removeprefix("-")


def with_interval(values):
    """Return "mean ± half of the 95 % interval" of a Series."""
    if len(values) < 2:
        return short(values.mean(), 3) if len(values) else "–"
    half = results.half_interval(values.sem(skipna=False), len(values))
    return " ± ".join(short(x, 3) for x in (values.mean(skipna=False), half))


def print_measure(table, lines, measure):
    """
    Print a measure of a group of lines, a column for each size. Needles and losses have the price
    beside them.
    """
    block = lines["block"].iloc[0]
    digits = 2 if measure.startswith(SHARES) else 3
    names = lines["line"].tolist()
    table = table[table.index.isin(names, level="line")]
    values = table[table.index.isin([measure], level="measure")]
    if values.empty:
        return
    by_size = values.groupby(["line", "tokens"])
    # A seed that failed with NaN is not left out, but one that was not measured is. (The mean of a
    # GroupBy adds in another order, which would change the last digit of ties in stored tables.)
    means = by_size.agg(lambda values: values.mean(skipna=False))
    texts, n = means.map(lambda x: short(x, digits)), by_size.size()
    most = n.groupby("line").transform("max")
    texts = texts.where(n == most, texts + " (of " + n.astype(str) + ")")
    texts = texts.unstack("tokens", fill_value="–")
    sizes = list(texts)
    texts.insert(0, "n", most.groupby("line").first())
    priced = {"needles": [block, 16 * block], "loss": [block, *sizes[-2:]]}.get(measure, [])
    for size in priced:
        prices = [by_seed(table, line, "price", size) for line in texts.index]
        if any(map(len, prices)):
            texts[f"price {size / block:g}x"] = list(map(with_interval, prices))
    texts = texts.reindex([name for name in names if name in texts.index])
    labels = lines.set_index("line")["label"]
    heads = {size: f"{size / block:g}x" for size in sizes}
    results.print_table(f"{lines['group'].iloc[0]}: {measure}",
                        texts.rename(index=labels, columns=heads))


def print_verdicts(family, predictions):
    rows = []
    for prediction, outcome in zip(predictions, verdicts.judge(predictions), strict=True):
        text, *more = wrap(prediction.text, 50)
        measured = f"{with_interval(prediction.values)} {prediction.unit}"
        rows.append([f"{prediction.number!s:3} {text}", measured, len(prediction.values), *outcome])
        rows += [[f"    {line}", "", "", "", ""] for line in more]
    table = pd.DataFrame(rows, columns=["", "mean ± 95 %", "n", "verdict", "by Holm"])
    results.print_table(f"Predictions: {family} (a number is positive if its prediction is right, "
                        "or it is the difference)", table.set_index(""))


# -----------------------------------------------------------------------------
# pictures


def draw_lines(table, lines, path):
    """Draw needles, prices and attention by context size: the mean and a dot for each seed."""
    lines = lines.drop_duplicates("line")
    rows = table.reset_index(name="value").merge(lines, on="line").assign(error=math.nan, n=1)
    rows["tokens"] /= rows["block"]
    # dashed, because SSMax lies on other lines in places
    styles = {row.line: {"color": row.colour, "label": row.label,
                         "linestyle": "--" if "SSMax" in row.label else "-"}
              for row in lines.itertuples()}
    panels = [measure for measure in PANELS if measure in set(rows["measure"])]
    figure = plot.new_figure(figsize=(4.4 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, measure in zip(axes, panels, strict=True):
        shown = rows[rows["measure"] == measure]
        plot.draw(axis, shown, styles)
        axis.set_xscale("log", base=2)
        axis.set_xticks(shown["tokens"].unique())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(title=PANELS[measure], xlabel="context size / training length")
    lines = plot.labelled(figure)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4)
    plot.save(figure, path)


def draw_gallery(table, lines, path):
    """Draw the needles found by each attention, at three sizes, with a dot for each seed."""
    names = lines["label"].str.split(", ").str[0]
    places = {name: -place for place, name in enumerate(names.unique())}
    figure = plot.new_figure(figsize=(9, 0.32 * len(places) + 1.4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, size in zip(axes, (128, 8192, 65536), strict=True):
        for row, name in zip(lines.itertuples(), names, strict=True):
            values = by_seed(table, row.line, "needles", size)
            y = places[name] + 0.2 - 0.2 * list(GALLERY).index(row.colour)
            axis.scatter(values, [y] * len(values), color=row.colour, alpha=0.3, s=10)
            axis.scatter(values.mean(), y, color=row.colour, s=36)
        axis.set(title=f"needles found at {size // 128}x", xlim=(-0.04, 1.04))
    axes[0].set_yticks(list(places.values()), list(places))
    for color, label in GALLERY.items():
        axes[0].scatter([], [], color=color, label=label)
    figure.legend(loc="outside lower center", ncols=3)
    plot.save(figure, path)


# -----------------------------------------------------------------------------


def beside_stored(table, lines, name):
    """Return the part of a table with the seeds of a new line, and rows of lines.csv that put this
    line beside stored ones."""
    if name not in table.index.unique("line"):
        raise UserError(f"there are no results of {name}; run.sh {name} makes them")
    seeds = table[name].index.unique("seed")
    rows = lines[lines["line"].isin({*BESIDE} - {name})].drop_duplicates("line")
    new = rows[:1].assign(line=name, label=name, colour="#6A3D9A")
    with_clip = new.assign(line=f"{name}|clip", label=f"{name}, the clip put in", colour="#CC79A7")
    rows = pd.concat([rows, new, with_clip])
    rows = rows.assign(group=f"{name}, and stored lines of the same seeds", figure=name)
    return table[table.index.isin(seeds, level="seed")], rows


def main():
    cfg = configure(TablesConfig)
    name, *folders = cfg.files or [""]
    home = HERE / name
    if not (home / "lines.csv").exists():
        names = [str(path.parent.relative_to(HERE)) for path in sorted(HERE.rglob("lines.csv"))]
        raise UserError(f"name one experiment of {', '.join(names)}")
    lines = pd.read_csv(home / "lines.csv", keep_default_na=False)
    block_of = lines.drop_duplicates("line").set_index("line")["block"]
    rows = with_new(stored(home / "results.csv"), folders, block_of)
    table = rows.set_index(INDEX)["value"]

    out = cfg.out
    if cfg.line:
        table, lines = beside_stored(table, lines, cfg.line)
        out = cfg.out or (folders[0] if folders else "")
    else:
        if out:
            with atomic_write(Path(out, "results.csv"), "w") as file:
                rows.to_csv(file, index=False)
        families = verdicts.read_predictions(home / "predictions.csv", table)
        for family, predictions in families.items():
            print_verdicts(family, predictions)
    measures = [*FIRST, *sorted(set(table.index.unique("measure")) - {*FIRST})]
    table = with_prices(table, lines)
    for _, group in lines.groupby("group", sort=False):
        for measure in measures:
            print_measure(table, group, measure)
    if out:
        for figure, shown in lines[lines["figure"] != ""].groupby("figure"):
            draw = draw_gallery if figure == "gallery" else draw_lines
            draw(table, shown, Path(out, f"{figure}.png"))


if __name__ == "__main__":
    launch(main)
