#!/usr/bin/env bash
# polars and duckdb cut scores to whole numbers if the first rows have none with a fraction
# Versions: polars 2.1.0, duckdb 2.0.1 (rows of scores 1, then of .75, made in memory or written as JSON lines).
# Guess: a value that does not fit the type found in the first rows is refused, as polars does for its own JSON reader
#   and for a plain list, or the column becomes a float one. polars documents strict=True, the default, as an error.
# True: pl.DataFrame of rows looks at 100 of them, and duckdb at 20,480 JSON lines. Later scores are cast: polars cuts
#   .75 to 0, duckdb rounds .25 to 0. Lists are worse: in polars the first row alone decides, [[1], [.75]] is
#   [[1], [0]]. Keys that come later are left out.
# Hurt: tables of evaluation results and of per-token losses: means are too low, and no row is missing.
# Output seen:
#   99 scores of 1, 99 of .75: mean in polars 0.875, in pandas 0.875; columns ['id', 'score', 'note']
#   100 scores of 1, 100 of .75: mean in polars 0.500, in pandas 0.875; columns ['id', 'score']
#   lists of losses [[1, 2], [0.75, 2.5]] in polars: [[1, 2], [0, 2]]
#   20,000 scores of 1, 20,000 of .25: mean in duckdb 0.625 of 40,000 rows, in pandas 0.625; columns ['id', 'score', 'note']
#   21,000 scores of 1, 21,000 of .25: mean in duckdb 0.500 of 42,000 rows, in pandas 0.625; columns ['id', 'score']
. "$(dirname "$0")/common.sh"
venv polars==2.1.0 duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6

"$python" - "$work" <<'PY'
import json
import sys
import duckdb
import pandas
import polars
def rows(whole, rest, score):
    late = [{"id": whole + i, "score": score, "note": "late"} for i in range(rest)]
    return [{"id": i, "score": 1} for i in range(whole)] + late
seen = {}
for whole, rest in ((99, 99), (100, 100)):
    table = rows(whole, rest, 0.75)
    frame = polars.DataFrame(table)
    seen[whole] = frame["score"].mean(), pandas.DataFrame(table)["score"].mean(), frame.columns
    print(f"{whole} scores of 1, {rest} of .75: mean in polars {seen[whole][0]:.3f}, in pandas {seen[whole][1]:.3f}; "
          f"columns {seen[whole][2]}")
nested = polars.DataFrame({"losses": [[1, 2], [0.75, 2.5]]})["losses"].to_list()
print(f"lists of losses [[1, 2], [0.75, 2.5]] in polars: {nested}")
for whole, rest in ((20_000, 20_000), (21_000, 21_000)):
    table, name = rows(whole, rest, 0.25), f"{sys.argv[1]}/rows.jsonl"
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in table)
    data = duckdb.sql(f"from '{name}'")
    mean, count = data.aggregate("avg(score), count(*)").fetchall()[0]
    seen[whole] = mean, pandas.read_json(name, lines=True)["score"].mean(), data.columns
    print(f"{whole:,} scores of 1, {rest:,} of .25: mean in duckdb {mean:.3f} of {count:,} rows, in pandas "
          f"{seen[whole][1]:.3f}; columns {data.columns}")
assert seen[99][0] == seen[99][1] == seen[100][1] == 0.875 and seen[100][0] == 0.5 and nested == [[1, 2], [0, 2]]
assert seen[20_000][0] == seen[20_000][1] == seen[21_000][1] == 0.625 and seen[21_000][0] == 0.5
assert all(("note" in columns) == (whole in (99, 20_000)) for whole, (_, _, columns) in seen.items())
PY
