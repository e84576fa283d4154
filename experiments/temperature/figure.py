"""
Draw the best constant factor on the query by context size, with laws fitted to it; print a table.

    python -m experiments.temperature.figure out/temperature/loss-theta50

It reads the files temperature*.jsonl that experiments.temperature.temperature has written. The laws
are fitted to the first curve. Curves and labels are those of plot.py (lib/rows.py).
"""
import math
from dataclasses import dataclass

import numpy as np

from experiments.temperature.laws import laws
from lib.config import configure
from lib.rows import curves_of, load
from lib.runtime import UserError, launch
from plot import check_one_experiment, draw, finish, folder_for, save, table, token_axis


@dataclass(frozen=True)
class FigureConfig:
    # arguments
    files: tuple = ()  # folders or files of results
    # output
    out: str = ""  # folder for the picture; empty: the first folder of results


def read_temperature(row, lines):
    """Read a result of experiments.temperature.temperature, with the best factor as y."""
    lines = [line for line in lines if not math.isnan(line["best"])]  # NaN: all factors are equal
    row.y = {line["length"]: line["best"] for line in lines}
    # half a 95 % interval is 1.96 errors wide
    row.error = {line["length"]: np.ptp(line["interval"]) / (2 * 1.96) for line in lines}
    title = f"best factor on the query, by context size ({row.content['settings']['what']})"
    row.tables[title] = row.y, row.error


KINDS = {"temperature": ("temperature*.jsonl", read_temperature)}


def temperature(curves):
    """The best factor by context size: a line for each curve, and the fitted laws in gray."""
    axis = draw(curves)
    token_axis(axis, curves)
    n, best = axis.lines[0].get_data()
    fitted = laws(n, best, curves[0][0][0].block_size)
    lines = ("--", (0, (1, 1)), "-.", (0, (1, 4)), "-")
    for (law, (values, off)), line in zip(fitted.items(), lines, strict=True):
        axis.plot(n, values, linestyle=line, color="0.4", label=f"{law}: off by {off:.1%}")
    return finish(axis, curves, "gray: laws fitted to the first curve",
                  xlabel="context size (tokens)", ylabel="best factor on the query")


def main():
    cfg = configure(FigureConfig)
    rows = load(cfg.files, KINDS)
    if not rows:
        raise UserError(f"{' '.join(cfg.files) or 'no folder named'}: there is no "
                        "temperature*.jsonl; name a folder that experiments/temperature/run.sh has "
                        "made")
    check_one_experiment(cfg.files, rows)
    by_kind = curves_of(rows)
    save(temperature(by_kind["temperature"]), folder_for(cfg, cfg.files) / "temperature.png")
    table(by_kind)


if __name__ == "__main__":
    launch(main)
