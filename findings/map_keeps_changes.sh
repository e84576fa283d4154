#!/usr/bin/env bash
# A mapped function that changes its row changes the dataset, but not a stream
# Versions: datasets 5.2.0.
# Guess: map adds what the function returns. The row that it is given is a copy, or is treated alike in both kinds
#   of dataset.
# True: Dataset.map writes the changed row back, although the function returns other columns alone. The same
#   function on a streaming dataset leaves the column as it was. A list that is changed in place is changed in
#   both.
# Hurt: preprocessing that lower-cases or cuts a field for its own use, and whoever debugs on a part in memory and
#   trains on a stream: the two train on different texts.
# Output seen:
#   row: {'text': 'One Two', 'ids': [1, 2, 3]}
#   mapped: {'text': 'one two', 'ids': [1, 2], 'words': 2}
#   mapped in a stream: {'text': 'One Two', 'ids': [1, 2], 'words': 2}
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6

"$python" - <<'PY'
from datasets import Dataset
rows = Dataset.from_dict({"text": ["One Two", "Three"], "ids": [[1, 2, 3], [4, 5]]})
def words(row):
    row["text"] = row["text"].lower()
    row["ids"].pop()
    return {"words": len(row["text"].split())}
memory, stream = rows.map(words)[0], next(iter(rows.to_iterable_dataset().map(words)))
print("row:", rows[0])
print("mapped:", memory)
print("mapped in a stream:", stream)
assert memory == {"text": "one two", "ids": [1, 2], "words": 2} and stream == {**memory, "text": "One Two"}
PY
