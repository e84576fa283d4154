#!/usr/bin/env bash
# datasets' map drops a column for 1,000 rows if the first of them lacks it; a stream keeps it
# Versions: datasets 5.2.0, pyarrow 26.0.1.
# Guess: a function given to map may add a key to some rows alone: the others get None, as in a stream, or an error says
#   that the rows differ.
# True: map writes 1,000 rows at a time, and the first row of each thousand decides which columns are written. A key that
#   this row lacks is lost in all 1,000, silently. If it has the key, a later row without it is a KeyError.
# Hurt: flags and labels that are set on rare rows (a text too long, an answer not found, toxic): the counts are 0, and
#   filters by them keep everything. A test on a few rows, the first of which has the key, shows nothing.
# Output seen:
#   marked [5, 999, 1500, 2999]: columns after map ['length'], marks found 0, in a stream 4
#   marked [1, 2, 3]: columns after map ['length'], marks found 0, in a stream 3
#   marked [0]: KeyError 'note'
#   all of 1,000 marked: marks found 1000
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6

"$python" - <<'PY'
from datasets import Dataset

def mark(row):
    return row | {"note": "long"} if row["length"] in marked else row

def count(rows):
    return sum(row.get("note") == "long" for row in rows)

texts = Dataset.from_dict({"length": list(range(3000))})
for marked in ({5, 999, 1500, 2999}, {1, 2, 3}):
    mapped = texts.map(mark, load_from_cache_file=False)
    stream = texts.to_iterable_dataset().map(mark)
    print(f"marked {sorted(marked)}: columns after map {mapped.column_names}, marks found {count(mapped)}, "
          f"in a stream {count(stream)}")
    assert (mapped.column_names, count(mapped), count(stream)) == (["length"], 0, len(marked))
marked = {0}
try:
    texts.map(mark, load_from_cache_file=False)
    raise SystemExit("no error")
except KeyError as error:
    print(f"marked [0]: KeyError {error}")
marked = set(range(1000))
mapped = texts.select(range(1000)).map(mark, load_from_cache_file=False)
print(f"all of 1,000 marked: marks found {count(mapped)}")
assert count(mapped) == 1000
PY
