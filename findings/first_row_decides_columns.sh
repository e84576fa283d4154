#!/usr/bin/env bash
# A key that the first row lacks is dropped from the whole dataset
# Versions: datasets 5.2.0, pyarrow 26.0.1.
# Guess: from_list and from_generator fill missing keys with None, as they do inside nested dicts, and map adds
#   all keys that its function returns.
# True: the first row decides the columns. Values of other keys are left out, without an error or a warning: in
#   from_list, in from_generator, and in what a mapped function returns.
# Hurt: optional fields (a system prompt, tools, a rejected answer) that the first example happens not to have.
# Output seen:
#   from_list: ['prompt']; from_generator: ['prompt']; map: ['prompt', 'n']; from_list, last row first: ['prompt', 'system']
#   the same rows inside a column: {'prompt': 'b', 'system': 'be brief'}
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6

"$python" - <<'PY'
from datasets import Dataset
rows = [{"prompt": "a"}, {"prompt": "b", "system": "be brief"}, {"prompt": "c", "system": "rhyme"}]
nested = Dataset.from_list([{"row": row} for row in rows])
columns = {"from_list": Dataset.from_list(rows).column_names,
    "from_generator": Dataset.from_generator(lambda: iter(rows)).column_names,
    "map": Dataset.from_list(rows).map(lambda row: {"n": 1} if row["prompt"] == "a" else {"n": 2, "m": 3}).column_names,
    "from_list, last row first": Dataset.from_list(rows[::-1]).column_names}
print("; ".join(f"{name}: {names}" for name, names in columns.items()))
print("the same rows inside a column:", nested[1]["row"])
assert columns["from_list"] == columns["from_generator"] == ["prompt"] and "system" in nested[1]["row"]
assert columns["map"] == ["prompt", "n"] and "system" in columns["from_list, last row first"]
PY
