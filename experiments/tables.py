"""
Tables, verdicts and pictures of an experiment, from its results.csv, predictions.csv and lines.csv.

    python -m experiments.tables windows                  of the stored results
    python -m experiments.tables windows --range=True     the least and largest seed, not the mean
    python -m experiments.tables windows out/windows --out=experiments/windows
                                   these and new results; writes results.csv and the pictures
    python -m experiments.tables windows out/windows --line=mine
                                   a new line beside stored ones of the same seeds, and a picture

lines.csv has the rows of the tables in their order: group (title of a table), line, label, baseline
(the price of a line is its loss above that of this one), block (training length in tokens), figure
(name of the picture that shows the line, or nothing) and colour.
"""
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
COLUMNS = ["line", "run", "variant", "tag", "seed", "measure", "tokens", "value", "error", "n"]
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
    range: bool = False  # print the least and largest seed instead of the mean
    out: str = ""  # folder for results.csv and the pictures; empty: they are not written


# -----------------------------------------------------------------------------
# numbers


def collect(folder):
    """Return the rows of results.csv for the results in FOLDER/measured."""
    parts = []
    for path in sorted(Path(folder, "measured").iterdir()):
        rows = results.load([path])
        rows = rows[rows["by"].isin(["tokens", "position"])]
        # of other text than the results are
        loss = "validation loss" if path.name == "validation" else "loss"
        measure = rows["measure"].replace({"long loss": loss, "test loss": loss})
        run = rows["run"].str.split("/").str[-1]
        line = run.where(rows["tag"] == "", run + "|" + rows["tag"])
        parts.append(rows.assign(run=run, line=line, measure=measure))
    return pd.concat(parts)[COLUMNS].round({"value": 4, "error": 4})


def with_new(rows, folders):
    """
    Return the rows with those of new results, which replace stored ones. Results of a measure, or
    of a number of tokens, that no stored row has are left out.
    """
    number = ["measure", "tokens"]
    stored = rows.set_index(number).index
    for folder in folders:
        new = collect(folder)
        new = new[new.set_index(number).index.isin(stored)]
        rows = pd.concat([rows, new]).drop_duplicates(INDEX, keep="last")
    return rows.sort_values(INDEX)


def with_prices(table, lines):
    """Return the table with the measure "price": a line's loss above that of its baseline."""
    losses = table[table.index.isin(["loss"], level="measure")].unstack("line")
    prices = {row.line: losses[row.line] - losses[row.baseline] for row in lines.itertuples()
              if row.line in losses and row.baseline in losses}
    if not prices:
        return table
    prices = pd.concat(prices, names=["line"]).dropna()
    return pd.concat([table, prices.rename({"loss": "price"}, level="measure")]).sort_index()


def by_size(table, line, measure):
    """Return a DataFrame of a measure with a row for each size and a column for each seed."""
    key = (line, measure)
    return table[key].unstack("seed") if key in table.index else pd.DataFrame()


# -----------------------------------------------------------------------------
# tables


def print_table(title, head, rows):
    """Print a table with aligned columns, the first two to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"{title}\n")
    for row in (head, *rows):
        cells = [text.ljust(width) if place < 2 else text.rjust(width)
                 for place, (text, width) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())
    print()


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
    return " ± ".join(short(x, 3) for x in verdicts.interval(values))


def print_measure(table, lines, measure, as_range=False):
    """
    Print a measure of a group of lines, a column for each size. Needles and losses have the price
    beside them.
    """
    block = lines["block"].iloc[0]
    digits = 2 if measure.startswith(SHARES) else 3
    of_lines = [by_size(table, line, measure) for line in lines["line"]]
    sizes = sorted({size for seeds in of_lines for size in seeds.index})
    priced = {"needles": [block, 16 * block], "loss": [block, *sizes[-2:]]}.get(measure, [])
    prices = [by_size(table, line, "price") for line in lines["line"]]
    priced = [size for size in priced
              if not as_range and any(size in seeds.index for seeds in prices)]

    def cell(seeds):
        ends = (seeds.min(), seeds.max()) if as_range else (seeds.mean(),)
        return "–".join(dict.fromkeys(short(x, digits) for x in ends)) if len(seeds) else "–"

    rows = []
    for label, seeds, price in zip(lines["label"], of_lines, prices, strict=True):
        if seeds.size:
            cells = [cell(of_size.dropna()) for _, of_size in seeds.reindex(sizes).iterrows()]
            cells += [with_interval(of_size.dropna())
                      for _, of_size in price.reindex(priced).iterrows()]
            rows.append([label, str(seeds.count(axis=1).max()), *cells])
    heads = [f"{size / block:g}x" for size in sizes]
    heads += [f"price {size / block:g}x" for size in priced]
    if rows:
        print_table(f"{lines['group'].iloc[0]}: {measure}", ["", "n", *heads], rows)


def print_verdicts(family, predictions):
    rows = []
    for prediction, outcome in zip(predictions, verdicts.judge(predictions), strict=True):
        text, *more = wrap(prediction.text, 50)
        measured = f"{with_interval(prediction.values)} {prediction.unit}"
        rows.append([str(prediction.number), text, measured, str(len(prediction.values)), *outcome])
        rows += [["", line, "", "", "", ""] for line in more]
    print_table(f"Predictions: {family} (a number is positive if its prediction is right, or it is "
                "the difference)", ["", "", "mean ± 95 %", "n", "verdict", "by Holm"], rows)


# -----------------------------------------------------------------------------
# pictures


def draw_lines(table, lines, path):
    """Draw needles, prices and attention by context size: the mean and a dot for each seed."""
    panels = [measure for measure in PANELS
              if any(by_size(table, line, measure).size for line in lines["line"])]
    figure = plot.new_figure(figsize=(4.4 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, measure in zip(axes, panels, strict=True):
        ticks = set()
        for place, row in enumerate(lines.itertuples()):
            seeds = by_size(table, row.line, measure)
            multiples = seeds.index / row.block
            dashed = "--" if "SSMax" in row.label else "-"  # SSMax lies on other lines in places
            axis.plot(multiples, seeds.mean(axis=1), dashed, color=row.colour, label=row.label)
            shift = 2 ** (0.2 * (place / len(lines) - 0.4))  # so that no dot hides another
            axis.plot(multiples * shift, seeds, "o", color=row.colour, markersize=2.5, alpha=0.4)
            ticks |= set(multiples)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
        axis.minorticks_off()
        axis.set(title=PANELS[measure], xlabel="context size / training length")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=4)
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
    seeds = by_size(table, name, "needles").columns
    rows = lines[lines["line"].isin(BESIDE)].drop_duplicates("line")
    rows = pd.concat([rows, rows[:1].assign(line=name, label=name, colour="#6A3D9A")])
    rows = rows.assign(group=f"{name}, and stored lines of the same seeds", figure=name)
    return table[table.index.isin(seeds, level="seed")], rows


def main():
    cfg = configure(TablesConfig)
    name, *folders = cfg.files or ["nothing"]
    home = HERE / name
    if not (home / "lines.csv").exists():
        names = [str(path.parent.relative_to(HERE)) for path in sorted(HERE.rglob("lines.csv"))]
        raise UserError(f"{name} is not an experiment; choose one of {', '.join(names)}")
    lines = pd.read_csv(home / "lines.csv", keep_default_na=False)
    rows = pd.read_csv(home / "results.csv", dtype={"n": "Int64"}, keep_default_na=False,
                       na_values={"error": "", "n": ""})
    rows = with_new(rows, folders)
    table = rows.set_index(INDEX)["value"]
    out = Path(cfg.out or folders[0]) if cfg.out or cfg.line else None
    if cfg.line:
        table, lines = beside_stored(table, lines, cfg.line)
    elif out:
        with atomic_write(out / "results.csv", "w") as file:
            rows.to_csv(file, index=False)
    if missing := set(lines["line"]) - set(table.index.unique("line")):
        raise UserError(f"results.csv lacks lines that lines.csv names: {sorted(missing)}")

    if not cfg.line:
        families = verdicts.read_predictions(home / "predictions.csv", table)
        for family, predictions in families.items():
            print_verdicts(family, predictions)
    measures = [*FIRST, *sorted(set(table.index.unique("measure")) - {*FIRST})]
    table = with_prices(table, lines)
    for _, group in lines.groupby("group", sort=False):
        for measure in measures:
            print_measure(table, group, measure, cfg.range)
    if out:
        for figure, shown in lines[lines["figure"] != ""].groupby("figure"):
            draw = draw_gallery if figure == "gallery" else draw_lines
            draw(table, shown, out / f"{figure}.png")


if __name__ == "__main__":
    launch(main)
