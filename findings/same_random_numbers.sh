#!/usr/bin/env bash
# datasets.map with several processes gives each of them the same random numbers
# Versions: datasets 5.2.0, numpy 2.4.6, torch 2.13.0, Linux (processes are forked).
# Guess: a mapped function that draws from numpy or torch draws other numbers for each row, with num_proc as
#   without.
# True: each process starts from a copy of the generators. Rows at the same place of each part get the same
#   numbers: with num_proc=4, four rows share each draw. Python's own random is seeded anew in each process.
# Hurt: random masks, noise, shuffled answers or spans that map draws: only a part of them is independent.
# Output seen:
#   num_proc=None: different numbers among 400 draws: {'numpy': 400, 'torch': 400, 'python': 400}
#   num_proc=4: different numbers among 400 draws: {'numpy': 100, 'torch': 100, 'python': 400}
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6 torch==2.13.0

"$python" - <<'PY'
import random
import numpy as np
import torch
from datasets import Dataset
rows = Dataset.from_dict({"i": range(400)})
def draw(row):
    return {"numpy": np.random.randint(10**9), "torch": torch.randint(10**9, ()).item(), "python": random.randrange(10**9)}
different = {}
for processes in (None, 4):
    np.random.seed(0)
    torch.manual_seed(0)
    drawn = rows.map(draw, num_proc=processes, load_from_cache_file=False)
    different[processes] = {name: len(set(drawn[name])) for name in ("numpy", "torch", "python")}
    print(f"num_proc={processes}: different numbers among 400 draws: {different[processes]}")
assert different[None] == {"numpy": 400, "torch": 400, "python": 400}
assert different[4] == {"numpy": 100, "torch": 100, "python": 400}
PY
