#!/usr/bin/env bash
# datasets: after shuffle() a mixture of streams comes in tens of one source, and all processes have the same source
# Versions: datasets 5.2.0, numpy 2.4.6 (two streams of 64 shards in shares of .9 and .1, mixed by interleave_datasets).
# Guess: each row has its source by chance, before a shuffle, after it, and in each process. A batch of 1,024 rows has
#   102 rare ones, give or take 10; one of 8 x 4 rows has none of them in 3 % of the steps.
# True: the order of the sources comes from one random generator, and each part of the stream gets a copy of it.
#   shuffle() fills its buffer from 10 parts in turn (max_buffer_input_shards), which all draw the same source: ten rows
#   in a row. The buffer only spreads the tens out: batches of 1,024 have 4 to 16 % of rare rows. split_dataset_by_node
#   gives the copy to each process: row for row they read the same source, so 8 x 4 rows have the mixture of 4. It helps
#   to shuffle each stream before mixing, and to give each process another seed.
# Hurt: pretraining on mixtures: shares and gradients of the batches are as noisy as in batches of a fifth or an
#   eighth of the size, and the loss follows the source.
# Output seen:
#   one process, 50 batches of 1,024
#     mixture: rare rows in a batch 7.8% to 12.3%, spread 0.0086, 0.9 x chance's
#     mixture.shuffle(seed=1): rare rows in a batch 4.3% to 16.3%, spread 0.0203, 2.2 x chance's
#     the same with max_buffer_input_shards=1: rare rows in a batch 8.8% to 12.6%, spread 0.0078, 0.8 x chance's
#     mixture of shuffled streams: rare rows in a batch 7.8% to 12.3%, spread 0.0086, 0.9 x chance's
#   8 processes, 1,000 batches of 8 x 4 rows
#     mixture: processes agree in 100% of the rows; none in 67% of the batches; spread 2.7 x chance's
#     mixture.shuffle(seed=1): processes agree in 100% of the rows; none in 67% of the batches; spread 2.8 x chance's
#     a seed for each process: processes agree in 82% of the rows; none in 4% of the batches; spread 1.0 x chance's
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 numpy==2.4.6

"$python" - <<'PY'
from itertools import islice
import numpy as np
from datasets import IterableDataset, interleave_datasets
from datasets.distributed import split_dataset_by_node

def rows(source, shards):
    for shard in shards:
        yield from ({"rare": source == "rare", "id": f"{shard}-{row}"} for row in range(1000))

def stream(source):
    return IterableDataset.from_generator(rows, gen_kwargs={"source": source, "shards": list(range(64))})

def mix(streams, seed=0):
    return interleave_datasets(streams, probabilities=[0.9, 0.1], seed=seed, stopping_strategy="all_exhausted")

def draw(data, count):
    return np.array([row["rare"] for row in islice(data, count)])

streams = [stream("common"), stream("rare")]
spreads = []
print("one process, 50 batches of 1,024")
for name, data in (("mixture", mix(streams)), ("mixture.shuffle(seed=1)", mix(streams).shuffle(seed=1)),
                   ("the same with max_buffer_input_shards=1", mix(streams).shuffle(seed=1, max_buffer_input_shards=1)),
                   ("mixture of shuffled streams", mix([part.shuffle(seed=1) for part in streams]))):
    share = draw(data, 50 * 1024).reshape(50, 1024).mean(1)
    spreads.append(share.std() / (0.09 / 1024) ** 0.5)
    print(f"  {name}: rare rows in a batch {share.min():.1%} to {share.max():.1%}, "
          f"spread {share.std():.4f}, {spreads[-1]:.1f} x chance's")

none = []
print("8 processes, 1,000 batches of 8 x 4 rows")
for name, parts in (("mixture", [mix(streams)] * 8), ("mixture.shuffle(seed=1)", [mix(streams).shuffle(seed=1)] * 8),
                    ("a seed for each process", [mix(streams, seed) for seed in range(8)])):
    drawn = [draw(split_dataset_by_node(part, rank, 8), 4000).reshape(1000, 4) for rank, part in enumerate(parts)]
    batches = np.concatenate(drawn, 1)
    none.append((~batches.any(1)).mean())
    spread = batches.mean(1).std() / (0.09 / 32) ** 0.5
    alike = (drawn[0] == drawn[1]).mean()
    print(f"  {name}: processes agree in {alike:.0%} of the rows; "
          f"none in {none[-1]:.0%} of the batches; spread {spread:.1f} x chance's")
assert spreads[1] > 1.8 and max(spreads[0], spreads[2], spreads[3]) < 1.3
assert none[0] > 0.6 and none[1] > 0.6 and none[2] < 0.06
PY
