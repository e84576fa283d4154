#!/usr/bin/env bash
# In datasets a score that map writes over a column of True and False becomes True
# Versions: datasets 5.2.0, pyarrow 26.0.1.
# Guess: map stores what its function returns: a new type of a column replaces the old type, as for texts and numbers.
# True: map first tries the column's old type, and keeps it if pyarrow can cast. Every number but 0 casts to True:
#   0.3, -2.0, and the class 2. A stream keeps the numbers. In a column of integers 0.5 is kept, since that cast fails.
# Hurt: a label `correct` that is replaced by a reward, a probability or a class. A new column name cures it.
# Output seen:
#   map: [False, True, True] stream: [0.0, 0.3, -2.0] map of integers: [0.0, 0.3, -2.0]
#   map of classes 0, 1, 2: [False, True, True] mean of the scores: 0.67 instead of -0.57
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1

"$python" - <<'PY'
from datasets import Dataset
scores = [0.0, 0.3, -2.0]
rows = Dataset.from_dict({"id": [0, 1, 2], "correct": [True, False, False]})
numbers = Dataset.from_dict({"id": [0, 1, 2], "correct": [1, 0, 0]})
def score(row):
    return {"correct": scores[row["id"]]}
mapped = rows.map(score)["correct"][:]
stream = [row["correct"] for row in rows.to_iterable_dataset().map(score)]
integers = numbers.map(score)["correct"][:]
classes = rows.map(lambda row: {"correct": row["id"]})["correct"][:]
print("map:", mapped, "stream:", stream, "map of integers:", integers)
print(f"map of classes 0, 1, 2: {classes} mean of the scores: {sum(mapped) / 3:.2f} instead of {sum(scores) / 3:.2f}")
assert mapped == classes == [False, True, True] and stream == integers == scores
assert all(type(value) is bool for value in mapped)
PY
