#!/usr/bin/env bash
# map drops a row for which the function returns None, and all updates if it is the last row
# Versions: datasets 5.2.0.
# Guess: None means that this row is not updated, as for a function that never returns anything. The new column is
#   None there, or the mixture is refused.
# True: a row with None is left out of the result. If it is the last row, map returns the dataset as it was,
#   without the updates of all others. (If it is the first row, map raises an AttributeError.)
# Hurt: functions with an early return for rows that need no change: training data or the whole column disappears.
# Output seen:
#   4 rows, None for the second: {'text': ['some text', 'another text', 'a third text'], 'long': [True, True, True]}
#   None for the last: {'text': ['some text', 'another text', 'a third text', 'abc']}; a dict for each: [True, None, True, True]
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6

"$python" - <<'PY'
from datasets import Dataset
def mark_long(row):
    if len(row["text"]) > 3:
        return {"long": True}
def with_short_row_at(place):
    texts = ["some text", "another text", "a third text"]
    texts.insert(place, "abc")
    return Dataset.from_dict({"text": texts})
middle, last = (with_short_row_at(place).map(mark_long) for place in (1, 3))
control = with_short_row_at(1).map(lambda row: mark_long(row) or {"long": None})
print(f"4 rows, None for the second: {middle[:]}")
print(f"None for the last: {last[:]}; a dict for each: {control['long'][:]}")
assert len(middle) == 3 and "abc" not in middle["text"] and middle["long"][:] == [True] * 3
assert len(last) == 4 and last.column_names == ["text"] and control["long"][:] == [True, None, True, True]
PY
