"""Tables of results (lib/results.py), as the evaluations and plot.py print them."""
import itertools
import math
import os
import textwrap

from lib.results import (
    MINUS,
    TITLES,
    check_seeds,
    differences,
    labels_of,
    load,
    over_seeds,
)

MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper ends at 20
WIDTH = 120  # characters; a wider table is turned


def title_of(measure):
    """Return the title of the table of a measure."""
    if measure.endswith(MINUS):
        return f"{measure}, with the same seed, on the same prompts or pieces"
    if measure.endswith(" loss"):
        return f"{measure} (nats), mean of the tenth before a position"
    return TITLES.get(measure, measure)


def print_tables(inputs):
    """Print what was measured. inputs: result files, or folders of them."""
    print_measures(check_seeds(load(inputs)))


def print_measures(rows):
    """Print a table for each measure, with mean ± standard error of each line, and then the folders
    of all results."""
    print("mean ± standard error: over the seeds; for a single seed, over its prompts or pieces of "
          "text")
    at_end = rows[(rows["by"] == "end") & rows["measure"].str.contains(" loss")]
    if len(at_end):
        column = at_end["measure"].str.replace(" loss", "")
        print_lines("losses in nats at the end (training: mean of the last tenth)",
                    at_end.assign(tokens=column), str)
    # a loss is known at many positions; the table shows some
    is_multiple = (rows["tokens"] / rows["block"]).isin(MULTIPLES)
    rows_by_tokens = rows[(rows["by"] == "tokens") | (rows["by"] == "position") & is_multiple]
    for measure in sorted(rows_by_tokens["measure"].unique(), key=place_of):
        of_measure = rows_by_tokens[rows_by_tokens["measure"] == measure]
        print_lines(title_of(measure), of_measure, "{:,.0f}".format)
    print_folders(rows)


def place_of(measure):
    """Return a key that sorts measures: losses, those of TITLES, others. Differences follow."""
    name = measure.removesuffix(MINUS)
    return not name.endswith(" loss"), [*TITLES, name].index(name), measure


def print_lines(title, rows, head_of):
    """Print a table with a line for each line of `rows`, and a column for each of their tokens.
    Below it stands in which settings the lines differ."""
    labels = labels_of(rows)
    columns = sorted(rows["tokens"].unique())
    table = [["", *map(head_of, columns)]]
    for line, of_line in rows.groupby("line", sort=False):
        cells = over_seeds(of_line)
        texts = {}
        for tokens, mean, error, n in cells.itertuples():
            of = f" (of {n})" if n < cells["n"].max() else ""
            texts[tokens] = plus_minus(mean, error) + of
        table.append([labels[line], *(texts.get(column, "-") for column in columns)])
    print(f"\n{title}")
    print("\n".join(fit(table)))
    if texts := differences(rows):
        print(textwrap.fill(f"settings that differ: {'; '.join(texts)}", WIDTH))


def print_folders(rows):
    """Print the folders of the results of each line."""
    rows = rows[rows["block"].notna()]  # a table from a .csv has no folders
    print("\nfolders of these results")
    for line, label in labels_of(rows).items():
        folders = dict.fromkeys(str(path.parent) for path in rows.loc[rows["line"] == line, "path"])
        print(f"{label}: {' '.join(folders)}")


def print_runs(rows):
    """
    Print the overview of runs: one line for each run, and one for each tag of its evaluations. The
    most needles come first, and of equal ones the lowest loss.
    """
    rows = rows[rows["block"].notna()]
    if not len(rows):
        return
    rows = rows.assign(folder=rows["path"].map(lambda path: str(path.parent.absolute())))
    losses = sorted(rows.loc[rows["by"] == "position", "measure"].unique())
    shown = rows[rows["measure"].isin(["needles", f"needles{MINUS}", *losses])
                 & rows["by"].isin(["tokens", "position"])]
    far = shown.groupby("measure")["tokens"].max()  # the most tokens that were measured
    shown = shown[shown["tokens"] == shown["measure"].map(far)]
    at_end = rows[(rows["by"] == "end") & (rows["measure"] == "validation loss")]

    run = ["folder", "tag"]
    numbers = {}
    for measure, of_measure in [*shown.groupby("measure"), *at_end.groupby("measure")]:
        numbers[measure] = of_measure.groupby(run)["value"].first()
    runs = rows.groupby(run)[["variant", "seed"]].first().assign(**numbers)
    measures = sorted(numbers, key=lambda measure: (measure[:7] != "needles", place_of(measure)))
    best = [measure for measure in measures if not measure.endswith(MINUS)]
    runs = runs.sort_values(best, ascending=[measure != "needles" for measure in best])

    above = os.path.commonpath([os.path.dirname(folder) for folder, _ in runs.index])
    table = [["", "variant", "seed", *(textwrap.fill(measure, 12) for measure in measures)]]
    for (folder, tag), variant, seed, *values in runs[["variant", "seed", *measures]].itertuples():
        name = os.path.relpath(folder, above) + (f" [{tag}]" if tag else "")
        cells = ["-" if math.isnan(value) else f"{value:.3f}" for value in values]
        table.append([name, textwrap.fill(variant, 20), str(seed), *cells])
    print(f"runs in {above}")
    at = [f"{measure}: at {far[measure]:,.0f} tokens" for measure in best if measure in far]
    if at:
        print("; ".join(at))
    print("\n".join(fit(table)) + "\n")


# -----------------------------------------------------------------------------
# text


def fit(table):
    """
    Return the text lines of a table that is at most WIDTH wide. The first row and the first cell of
    each row are heads. A table that is too wide is turned, and divided if it still is.
    """
    for width in range(60, 24, -4):
        lines = layout([[textwrap.fill(head, width), *cells] for head, *cells in table])
        if max(map(len, lines)) <= WIDTH:
            return lines
    turned = [list(row) for row in zip(*table, strict=True)]
    turned[0] = [textwrap.fill(head, 18) for head in turned[0]]
    for n in range(len(table), 0, -1):  # columns side by side
        lines = []
        for first in range(1, len(table), n):
            lines += layout([[row[0], *row[first:first + n]] for row in turned])
        if max(map(len, lines)) <= WIDTH:
            break
    return lines


def layout(table):
    """Return the text lines of a table, given as rows of cells. A cell may have several lines."""
    table = [[cell.split("\n") for cell in row] for row in table]
    widths = [max(len(part) for cell in column for part in cell)
              for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        for first, *others in itertools.zip_longest(*row, fillvalue=""):
            aligned = [part.rjust(width)
                       for part, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    return lines


def plus_minus(mean, error):
    """Return "mean ± error" with two digits of the error; without an error, which is NaN, or one
    that would be rounded to 0, the mean alone."""
    if not error >= 0.00005:
        return f"{round(mean, 4) + 0.0:,.4f}".rstrip("0").rstrip(".")  # + 0.0: never -0
    digits = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
