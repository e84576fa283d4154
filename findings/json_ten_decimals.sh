#!/usr/bin/env bash
# Dataset.to_json writes ten decimals: small numbers become 0
# Versions: datasets 5.2.0, pandas 3.1.1.
# Guess: JSON Lines hold each float64 so that it is read back as it was, as json.dumps and Dataset.to_csv write
#   it.
# True: to_json goes through pandas, which rounds to ten places after the point, not ten digits. A p-value or a
#   probability of 1e-12 is 0, a learning rate of 1.23456789e-7 keeps four digits. Numbers inside of lists too.
# Hurt: stored probabilities, p-values, learning rates and gradient norms; a logarithm of them is -inf.
# Output seen:
#   values [1e-12, 1.23456789e-07, 0.3333333333333333]
#   to_json [0.0, 1.235e-07, 0.3333333333], in a list [0.0, 1.235e-07, 0.3333333333], to_csv [1e-12, 1.23456789e-07, 0.3333333333333333]
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6 pandas==3.1.1

"$python" - "$work" <<'PY'
import json, sys
from datasets import Dataset
values = [1e-12, 1.23456789e-7, 1 / 3]
rows = Dataset.from_dict({"value": values, "list": [[value] for value in values]})
rows.to_json(sys.argv[1] + "/rows.jsonl")
rows.to_csv(sys.argv[1] + "/rows.csv")
with open(sys.argv[1] + "/rows.jsonl") as file:
    written = [json.loads(line) for line in file]
with open(sys.argv[1] + "/rows.csv") as file:
    csv = [float(line.split(",")[0]) for line in file.readlines()[1:]]
print(f"values {values}")
print(f"to_json {[row['value'] for row in written]}, in a list {[row['list'][0] for row in written]}, to_csv {csv}")
assert [row["value"] for row in written] == [row["list"][0] for row in written] == [0.0, 1.235e-07, 0.3333333333]
assert csv == values == [json.loads(json.dumps(value)) for value in values]
PY
