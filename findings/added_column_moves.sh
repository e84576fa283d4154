#!/usr/bin/env bash
# A column added to a stream of several shards goes to other rows once the stream is shuffled or split
# Versions: datasets 5.2.0, torch 2.13.0 (CPU; 1,000 rows in 8 shards, the column holds each row's own number).
# Guess: add_column binds a value to each row, and shuffle moves the two together, as it does for a Dataset.
# True: for a stream add_column is a map by the row's index, and the index counts what this iterator sees.
#   shuffle, several workers and split_dataset_by_node are handed down to the shards below the map, and each part
#   counts from 0. Only the first rows of the column are used, again and again, and no error tells of it: a row of each
#   shard is right, if it lies in the first one. The stream in order, or of one shard, is right, so that a look at it
#   shows nothing. Each map and filter with with_indices=True is hit: ids repeat, and a split by the index leaks.
# Hurt: labels, rewards, scores, ids, embeddings added to a corpus: training is on wrong labels.
# Output seen:
#   rows with their own value: in order 100.0%, shuffled 12.5%, two workers 12.5%, second of two nodes 0.0%
#   the same with one shard: in order 100.0%, shuffled 100.0%, two workers 100.0%, second of two nodes 100.0%
#   a Dataset: shuffled 100.0%
#   ids of map(with_indices=True): in order 1000 different ones, shuffled 125
#   validation rows by index % 10 == 0: 100, of them in the shuffled training stream of the other rows: 48
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 datasets==5.2.0

"$python" - <<'PY'
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
numbers = list(range(1000))
def right(rows):
    rows = [(int(row["row"]), int(row["label"])) for row in rows]
    return sum(row == label for row, label in rows) / len(rows)
dataset = Dataset.from_dict({"row": numbers})
shares = {}
for shards, name in ((8, "rows with their own value"), (1, "the same with one shard")):
    stream = dataset.to_iterable_dataset(num_shards=shards).add_column("label", numbers)
    shares[shards] = {"in order": right(stream), "shuffled": right(stream.shuffle(seed=0, buffer_size=100)),
                      "two workers": right(DataLoader(stream, batch_size=None, num_workers=2)),
                      "second of two nodes": right(split_dataset_by_node(stream, rank=1, world_size=2))}
    print(f"{name}:", ", ".join(f"{case} {share:.1%}" for case, share in shares[shards].items()))
print(f"a Dataset: shuffled {right(dataset.add_column('label', numbers).shuffle(seed=0)):.1%}")
assert list(shares[8].values()) == [1, 0.125, 0.125, 0] and list(shares[1].values()) == [1, 1, 1, 1]
assert right(dataset.add_column("label", numbers).shuffle(seed=0)) == 1
stream = dataset.to_iterable_dataset(num_shards=8)
named = stream.map(lambda row, index: {"id": index}, with_indices=True)
ids = [len({row["id"] for row in rows}) for rows in (named, named.shuffle(seed=0, buffer_size=100))]
print(f"ids of map(with_indices=True): in order {ids[0]} different ones, shuffled {ids[1]}")
assert ids == [1000, 125]
validation = {row["row"] for row in stream.filter(lambda row, index: index % 10 == 0, with_indices=True)}
training = stream.filter(lambda row, index: index % 10 != 0, with_indices=True).shuffle(seed=0, buffer_size=100)
leaked = len(validation & {row["row"] for row in training})
print(f"validation rows by index % 10 == 0: {len(validation)}, of them in the shuffled training stream of the other rows: {leaked}")
assert len(validation) == 100 and leaked > 40
PY
