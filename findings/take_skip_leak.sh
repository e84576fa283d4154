#!/usr/bin/env bash
# take() and skip() after shuffle() leak validation rows into training from the second epoch on
# Versions: datasets 5.2.0, streaming datasets.
# Guess: shuffled.take(20) and shuffled.skip(20) are a fixed split.
# True: set_epoch reshuffles the buffer before rows are skipped. Each epoch skips another 20 rows: rows of the
#   validation set enter the training, and training rows drop out.
# Hurt: whoever splits a stream this way and trains for more than one epoch.
# Output seen:
#   validation rows (of 20) among the training rows in epochs 0 to 3: [0, 4, 4, 3]
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6 torch==2.13.0

"$python" - <<'PY'
from datasets import Dataset
rows = Dataset.from_dict({"x": list(range(100))}).to_iterable_dataset(num_shards=4)
shuffled = rows.shuffle(seed=0, buffer_size=10)
validation = {row["x"] for row in shuffled.take(20)}
train = shuffled.skip(20)
leaks = []
for epoch in range(4):
    train.set_epoch(epoch)
    leaks.append(len(validation & {row["x"] for row in train}))
print("validation rows (of 20) among the training rows in epochs 0 to 3:", leaks)
assert leaks[0] == 0 and max(leaks[1:]) > 0
PY
