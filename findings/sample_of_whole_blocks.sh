#!/usr/bin/env bash
# DuckDB: a sample of 1 % is whole blocks of 2,048 rows, or nothing at all
# Versions: duckdb 2.0.1, pandas 3.1.1, numpy 2.4.6 (200,000 texts of 20 sources, one source after the other).
# Guess: USING SAMPLE 1% draws each row with a probability of 1 %: about 2,000 rows of all sources.
# True: a sample in percent draws the blocks of 2,048 rows in which tables are read, each as a whole. One of
#   three samples is empty, the others have rows that stood beside each other, of a few sources. The mean of a column
#   scatters 13 times as much as that of 2,000 rows drawn one by one. A number of rows (USING SAMPLE 2000) and
#   "1 PERCENT (bernoulli)" draw rows. Tables of pandas and Parquet files are sampled in the same way.
# Hurt: lengths, qualities and shares of a corpus estimated from a sample, and validation sets drawn like this: corpora
#   are stored by source, by date or by document.
# Output seen:
#   USING SAMPLE 1%, 200 times: whole blocks True and some empty True
#   SYSTEM(1%), seeds 0 to 5: 0 0 6144 2048 2048 2048 rows of 0 0 4 1 1 1 sources
#     of 200 samples 35 % are empty; the mean length of the others is 713 +- 344
#   BERNOULLI(1%), seeds 0 to 5: 1999 1984 1962 1987 1924 2041 rows of 20 20 20 20 20 20 sources
#     of 200 samples 0 % are empty; the mean length of the others is 742 +- 26
#   RESERVOIR(2000), seeds 0 to 5: 2000 2000 2000 2000 2000 2000 rows of 20 20 20 20 20 20 sources
#     of 200 samples 0 % are empty; the mean length of the others is 742 +- 26
#   mean length of all: 744
. "$(dirname "$0")/common.sh"
venv duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6

"$python" - <<'PY'
import duckdb
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
source = np.arange(200_000) // 10_000
texts = pd.DataFrame({"source": source, "length": rng.lognormal(5 + 0.1 * source).astype(int)})
database = duckdb.connect()
database.execute("set threads = 1")
database.execute("create table texts as select * from texts")
ask = "select count(*), count(distinct source), avg(length) from texts "
told = [database.execute(ask + "using sample 1%").fetchone() for _ in range(200)]
whole = all(count % 2048 in (0, 200_000 % 2048) for count, _, _ in told)
print("USING SAMPLE 1%, 200 times: whole blocks", whole, "and some empty", any(count == 0 for count, _, _ in told))
spread = {}
for name in ("SYSTEM(1%)", "BERNOULLI(1%)", "RESERVOIR(2000)"):
    query = ask + f"tablesample {name} repeatable "
    rows, sources, means = zip(*(database.execute(f"{query} ({seed})").fetchone() for seed in range(200)))
    means = [mean for mean in means if mean]
    spread[name] = np.std(means)
    print(f"{name}, seeds 0 to 5:", *rows[:6], "rows of", *sources[:6], "sources")
    print(f"  of 200 samples {100 * rows.count(0) / 200:.0f} % are empty;",
          f"the mean length of the others is {np.mean(means):.0f} +- {spread[name]:.0f}")
    if name == "SYSTEM(1%)":
        assert all(count % 2048 in (0, 200_000 % 2048) for count in rows) and rows.count(0) > 40
    else:
        assert min(rows) > 1700 and min(sources) == 20
print(f"mean length of all: {texts.length.mean():.0f}")
assert whole and spread["SYSTEM(1%)"] > 8 * spread["RESERVOIR(2000)"]
PY
