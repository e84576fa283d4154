"""
The results of next.sh so far: speeds, needles, losses, and the predictions of predictions.csv.

    python -m experiments.gpu.next out/next
"""
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import verdicts
from lib import results, storage
from lib.config import configure
from lib.errors import UserError, launch

HERE = Path(__file__).parent
SIZES = (512, 2048, 8192, 10_240, 16_384, 65_536)
WARM_UP = 4  # updates in which torch.compile still works


def speeds(folder):
    """Return a table of tokens/s, the median of the updates of each log in folder/speed."""
    rows = []
    for log in sorted(Path(folder).glob("speed/*/log.jsonl")):
        rates = [record["tokens_per_s"] for record in storage.read_lines(log)
                 if "tokens_per_s" in record]
        if len(rates) > WARM_UP:
            rows.append([log.parent.name, "tokens/s", 0, 1, np.median(rates[WARM_UP:])])
    return verdicts.table_of(rows)


def collect(folder):
    """Return the table of all results in a folder that next.sh has written."""
    tables = [speeds(folder)]
    for part in ("mini", "model"):
        if (Path(folder) / part).is_dir():
            rows = verdicts.named(results.load([Path(folder) / part]))
            tables.append(verdicts.collect(rows, {"needles": "needles"}, SIZES))
    return pd.concat(tables).sort_index()


def main():
    cfg = configure(verdicts.ExperimentConfig)
    if len(cfg.files) != 1 or not Path(cfg.files[0]).is_dir():
        raise UserError("name the folder that next.sh has written, as in out/next")
    table = collect(*cfg.files)
    names = {line: line for line in table.index.unique("line")}
    verdicts.print_by_size(table, names, "Tokens/s", "tokens/s", (0,), digits=0, block=0)
    verdicts.print_by_size(table, names, "Needles found", "needles", SIZES, block=512)
    verdicts.print_by_size(table, names, "Loss (nats)", "loss", SIZES, digits=3, block=512)
    verdicts.print_verdicts(verdicts.read_predictions(HERE / "predictions.csv", table))


if __name__ == "__main__":
    launch(main)
