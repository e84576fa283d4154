#!/usr/bin/env bash
# pandas: to_parquet with partition_cols adds to what is there: a script that runs twice doubles the corpus
# Versions: pandas 3.1.1, pyarrow 26.0.1, datasets 5.2.0, polars 2.1.0, numpy 2.4.6 (1,000 texts in three languages).
# Guess: to_parquet overwrites, as it does for one file.
# True: with partition_cols each call writes files with random names beside those of the call before, and all readers
#   take all files of a folder. A second run doubles each row; a run after a filter was made stricter leaves the rows
#   that it removed, once, and has the others twice; a smaller sample is a larger one. pyarrow's write_to_dataset, which
#   is inside, does the same. polars' partitions are overwritten, but what the new table has no rows for stays there.
# Hurt: preprocessing that is run again after a change or an interruption: rows with twice the weight, filters without
#   effect, validation rows that were taken out and are there again.
# Output seen:
#   all, 1,000: one file 1,000; in parts 1,000, 473 bad, a text up to 1 times
#     read by datasets 1,000; parts of polars 1,000, 473 bad
#   all again, 1,000: one file 1,000; in parts 2,000, 946 bad, a text up to 2 times
#     read by datasets 2,000; parts of polars 1,000, 473 bad
#   good ones, 337: one file 337; in parts 2,337, 946 bad, a text up to 3 times
#     read by datasets 2,337; parts of polars 687, 160 bad
. "$(dirname "$0")/common.sh"
venv pandas==3.1.1 pyarrow==26.0.1 datasets==5.2.0 polars==2.1.0 numpy==2.4.6

cd "$work"
"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import datasets
import numpy as np
import pandas as pd
import polars as pl

datasets.disable_progress_bars()
rng = np.random.default_rng(0)
texts = pd.DataFrame({"text": np.arange(1000), "quality": rng.random(1000),
                      "language": rng.choice(["de", "en", "fr"], 1000)})
good = texts[(texts.quality > 0.5) & (texts.language != "fr")].reset_index(drop=True)

def count(read):
    return len(read), int((read["quality"] <= 0.5).sum()), read["text"].value_counts().max()

seen = {}
for name, table in (("all", texts), ("all again", texts), ("good ones", good)):
    table.to_parquet("parts", partition_cols=["language"])
    table.to_parquet("one.parquet")
    pl.from_pandas(table).write_parquet("polars", partition_by="language")
    seen[name] = [count(pd.read_parquet(path)) for path in ("parts", "one.parquet")]
    seen[name].append(count(pl.read_parquet("polars").to_pandas()))
    seen[name].append(len(datasets.load_dataset("parquet", data_dir="parts", split="train")))
    (parts, bad, times), one, (by_polars, left, _), by_datasets = seen[name]
    print(f"{name}, {len(table):,}: one file {one[0]:,}; in parts {parts:,}, {bad} bad, a text up to {times} times\n ",
          f"read by datasets {by_datasets:,}; parts of polars {by_polars:,}, {left} bad")
    assert one[0] == len(table) and by_datasets == parts
assert [rows[0][0] for rows in seen.values()] == [1000, 2000, 2000 + len(good)]
assert [rows[2][0] for rows in seen.values()] == [1000, 1000, len(good) + (texts.language == "fr").sum()]
PY
