"""Tables of results (lib/results.py), as the evaluations and plot.py print them."""
import math
import os
import textwrap

import pandas as pd

from lib.measures import MINUS
from lib.results import check_seeds, differences, labels_of, load, over_seeds

MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper ends at 20
# {measure: its title}. A measure that is not here is its own title.
TITLES = {
    "needles": "needles found, all digits right, by context size",
    "needles, first digit": "needles found, first digit right, by context size",
    "needles, anywhere": "needles found anywhere in the text, by context size",
    "weight": "weight on the needle, mean of the retrieval heads",
    "score": "top needle score by context size, median of the trials",
    "ranked first": "needle ranked first by a retrieval head, share of the trials",
    "chance": "needle ranked first by chance, share of the trials",
}
WIDTH = 120  # characters
OVERVIEW = ("needles", f"needles{MINUS}")  # of the evaluations by tokens, in the overview of runs


def title_of(rows):
    """Return the title of the table of rows of one measure."""
    measure = rows["measure"].iloc[0]
    if measure.endswith(MINUS):
        return f"{measure}, with the same seed, on the same prompts or pieces"
    if (rows["by"] == "position").any():
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
    at_end = rows.query("by == 'end' and measure.str.contains(' loss')")
    if len(at_end):
        column = at_end["measure"].str.replace(" loss", "")
        print_lines("losses in nats at the end (training: mean of the last tenth)",
                    at_end.assign(tokens=column), str)
    # a loss is known at many positions; the table shows some
    shown = rows.query("by == 'tokens' or by == 'position' and tokens / block in @MULTIPLES")
    for measure in sorted(shown["measure"].unique(), key=place_of):
        of_measure = shown[shown["measure"] == measure]
        print_lines(title_of(of_measure), of_measure, "{:,.0f}".format)
    print_folders(rows)


def place_of(measure):
    """Return a key that sorts measures: losses, those of TITLES, others. Differences follow."""
    name = measure.removesuffix(MINUS)
    return not name.endswith(" loss"), [*TITLES, name].index(name), measure


def print_lines(title, rows, head_of):
    """Print a table with a line for each line of `rows`, and a column for each of their tokens.
    Below it stands in which settings the lines differ."""
    table = {}
    for line, label in labels_of(rows).items():
        cells = over_seeds(rows[rows["line"] == line])
        most = cells["n"].max()
        texts = {}
        for tokens, mean, error, n in cells.itertuples():
            texts[tokens] = plus_minus(mean, error)
            if n < most:
                texts[tokens] += f" (of {n})"
        table[label] = texts
    print(f"\n{title}")
    print_frame(pd.DataFrame(table).T.sort_index(axis=1).rename(columns=head_of))
    if texts := differences(rows):
        print(textwrap.fill(f"settings that differ: {'; '.join(texts)}", WIDTH))


def print_frame(frame):
    """Print a DataFrame. If it is wider than WIDTH, its columns are divided into several parts."""
    print(frame.to_string(line_width=WIDTH, na_rep="-", float_format="{:.3f}".format))


def print_folders(rows):
    """Print the folders of the results of each line."""
    print("\nfolders of these results")
    for line, label in labels_of(rows).items():
        folders = rows.loc[rows["line"] == line, "path"].map(os.path.dirname)
        print(f"{label}: {' '.join(folders.unique())}")


def print_runs(rows):
    """
    Print the overview of runs: one line for each run, and one for each tag of its evaluations. The
    most needles come first, and of equal ones the lowest loss.
    """
    rows = rows.query("block > 0")  # not of a table of many runs
    if rows.empty:
        return
    folders = rows["path"].map(lambda path: os.path.dirname(os.path.abspath(path)))
    above = os.path.commonpath([os.path.dirname(folder) for folder in folders.unique()])
    names = folders.map(lambda folder: os.path.relpath(folder, above))
    names = names.where(rows["tag"] == "", names + " [" + rows["tag"] + "]")
    # the losses at the end are compared, whatever number of updates they are after
    tokens = rows["tokens"].mask(rows["by"] == "end", 0)
    rows = rows.assign(run=names, tokens=tokens)

    shown = rows.query("by == 'position' or by == 'tokens' and measure in @OVERVIEW or "
                       "by == 'end' and measure == 'validation loss'")
    most_tokens = shown.groupby("measure")["tokens"].max()
    values = shown[shown["tokens"] == shown["measure"].map(most_tokens)]
    values = values.pivot(index="run", columns="measure", values="value")
    measures = sorted(values, key=lambda measure: (measure not in OVERVIEW, place_of(measure)))
    best = [measure for measure in measures if not measure.endswith(MINUS)]
    runs = rows.groupby("run")[["variant", "seed"]].first().join(values[measures])
    if best:
        runs = runs.sort_values(best, ascending=[measure != "needles" for measure in best])

    at = {measure: f"at {tokens:,.0f}" for measure, tokens in most_tokens.items() if tokens}
    heads = []  # of two lines
    for name in runs:
        measure, minus, _ = name.partition(MINUS)
        heads.append((measure, minus or at.get(name, "")))
    runs.columns = pd.MultiIndex.from_tuples(heads)
    print(f"runs in {above}")
    print_frame(runs.rename_axis(None))
    print()


def plus_minus(mean, error):
    """Return "mean ± error" with two digits of the error, but four decimals where these show it.
    Without an error, which is NaN, or with one of rounding alone, return the mean."""
    if not error >= 1e-7:
        return f"{round(mean, 4) + 0.0:,.4f}".rstrip("0").rstrip(".")  # + 0.0: never -0
    digits = max(0, 1 - math.floor(math.log10(error)))
    if error >= 0.00005:
        digits = min(4, digits)
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
