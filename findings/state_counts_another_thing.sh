#!/usr/bin/env bash
# StreamingDataLoader counts rows by the length of a batch's first part: with packing it resumes at row 50 of 400
# Versions: mosaicml-streaming 0.13.0, torch 2.13.0 (CPU), transformers 4.57.6, numpy 2.1.3 (1,000 rows, batches of 8).
# Guess: the loader knows its batch size, so state_dict() has the number of rows that were read, whatever collate_fn
#   makes of them. A run that is resumed goes on with the next row.
# True: the number of rows is taken from the batch that collate_fn returns: len() of the first value of a dictionary, of
#   the whole of a tensor, and otherwise of batch[0]. Packed texts of shape (1, tokens) are 1 row. A list of rows that
#   have two columns is 2 rows. A list of texts has as many rows as its first text has tokens (or letters). Only a state
#   beyond the end of the data raises an error; all others are loaded.
# Hurt: runs that are interrupted, with packing or with a collate_fn that keeps texts of different lengths in a list:
#   most of what was read is read again, or a part of the epoch is left out.
# Output seen:
#   dictionary of columns: 400 rows read, state 400; the rest of the epoch: 600 rows, 0 of them again; 0 never read
#   packed: 400 rows read, state 50; the rest of the epoch: 950 rows, 350 of them again; 0 never read
#   list of rows: 400 rows read, state 100; the rest of the epoch: 900 rows, 300 of them again; 0 never read
#   list of texts: 80 rows read, state 443; the rest of the epoch: 557 rows, 0 of them again; 363 never read
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.1.3 transformers==4.57.6 catalogue==2.0.10 xxhash==4.1.0 Brotli==1.2.1 zstd==1.5.7.2 \
    python-snappy==0.7.3 pillow==13.0.0
# Without the clients of the clouds, which local files do not need
"$python" -m pip install --quiet --no-compile --no-deps --target "$work/streaming" mosaicml-streaming==0.13.0

PYTHONPATH="$work/streaming" "$python" - "$work/data" <<'PY'
import sys
from types import ModuleType
import numpy as np
import torch
import transformers.tokenization_utils_base
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = ModuleType(name)                       # needed for images alone: two names are enough here
    sys.modules[name].VisionDataset = sys.modules[name].to_tensor = object
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

rng = np.random.default_rng(0)
with MDSWriter(out=sys.argv[1], columns={"id": "int", "tokens": "ndarray:int32"}) as writer:
    for i in range(1000):                                      # a text has 5 to 99 tokens, each of them is its number
        writer.write({"id": i, "tokens": np.full(rng.integers(5, 100), i, np.int32)})

def loader(collate):
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=sys.argv[1], batch_size=8, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=8, collate_fn=collate)

def read(batch):
    if isinstance(batch, dict):
        return set(batch["id"] if "id" in batch else batch["input_ids"][0].tolist())
    return {row["id"] if isinstance(row, dict) else int(row[0]) for row in batch}

seen = {}
for name, batches, collate in (
        ("dictionary of columns", 50, lambda rows: {name: [row[name] for row in rows] for name in rows[0]}),
        ("packed", 50, lambda rows: {"input_ids": torch.tensor(np.concatenate([row["tokens"] for row in rows]))[None]}),
        ("list of rows", 50, list),
        ("list of texts", 10, lambda rows: [row["tokens"] for row in rows])):
    stopped = loader(collate)
    before = set().union(*(read(batch) for _, batch in zip(range(batches), stopped)))
    state = stopped.state_dict()
    del stopped
    resumed = loader(collate)
    resumed.load_state_dict(state)
    after = set().union(*map(read, resumed))
    del resumed
    seen[name] = len(before), state["sample_in_epoch"], len(after), len(before & after), 1000 - len(before | after)
    print(name + ": {} rows read, state {}; the rest of the epoch: {} rows, {} of them again; {} never read".format(
        *seen[name]))
clean_stale_shared_memory()
assert seen["dictionary of columns"] == (400, 400, 600, 0, 0)
assert seen["packed"] == (400, 50, 950, 350, 0) and seen["list of rows"] == (400, 100, 900, 300, 0)
assert seen["list of texts"][1] > 80 and seen["list of texts"][4] == seen["list of texts"][1] - 80
PY
