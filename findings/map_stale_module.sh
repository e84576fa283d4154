#!/usr/bin/env bash
# datasets.map returns the old result after a constant of a module has changed
# Versions: datasets 5.2.0, pyarrow 26.0.1.
# Guess: map computes again when the function would compute something else, as it does in a notebook.
# True: a function of the main script is hashed with the globals that it reads, a function of an imported module
#   by its name alone. After K in that module has changed, map returns the cached rows of the old K.
# Hurt: whoever keeps the preprocessing in a module and changes a constant of it.
# Output seen:
#   K from 1 to 10: function of a module [0, 1, 2, 3, 4], function of the script [0, 10, 20, 30, 40]
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6

"$python" - "$work" <<'PY'
import sys, tempfile, types
from datasets import Dataset, load_from_disk
folder = tempfile.mkdtemp(dir=sys.argv[1])
Dataset.from_dict({"x": list(range(5))}).save_to_disk(folder)
module = types.ModuleType("preprocessing")  # as if imported from preprocessing.py
sys.modules["preprocessing"] = module
exec("K = 1\ndef multiply(row): return {'y': row['x'] * K}", module.__dict__)
before = list(load_from_disk(folder).map(module.multiply)["y"])
module.K = 10
after = list(load_from_disk(folder).map(module.multiply)["y"])
K = 1
def multiply(row): return {"y": row["x"] * K}
list(load_from_disk(folder).map(multiply)["y"])
K = 10
main = list(load_from_disk(folder).map(multiply)["y"])
print(f"K from 1 to 10: function of a module {after}, function of the script {main}")
assert before == after == [0, 1, 2, 3, 4] and main == [0, 10, 20, 30, 40]
PY
