#!/usr/bin/env bash
# webdataset shuffles the shards once: with a short epoch the same part of the data trains for ever
# Versions: webdataset 1.0.2 (40 shards of 25 samples).
# Guess: shardshuffle=100 puts the shards into a new order in each epoch. An epoch of 100 samples (with_epoch) shows a
#   tenth of the data, another one each time; after 100 epochs all samples were seen.
# True: if no seed is given, the constructor draws one, and each iterator makes its generator of it anew, so that all
#   epochs have one order of the shards. with_epoch(n) does not go on where the last epoch ended: each epoch takes the
#   first n samples of that order. shuffle() mixes samples within its buffer, and reaches only the next shards.
#   A run started again has another order. detshuffle=True has a new order in each epoch, as long as the worker lives.
# Hurt: training with short epochs, to evaluate and save often: at most 149 of 1,000 samples are trained on, some 67 times each.
#   Whole epochs have the same neighbours in each pass: a source or a language always comes at the same place.
# Output seen:
#   first shards of 3 whole epochs: shardshuffle=100 seed=0 [[24, 26, 2], [24, 26, 2], [24, 26, 2]], no seed: 1 order, detshuffle=True: 3 orders
#   100 epochs of 100 samples of 1,000: shardshuffle=100 and shuffle(50): 148 samples seen, with detshuffle=True: 1000, resampled=True: 1000
. "$(dirname "$0")/common.sh"
venv webdataset==1.0.2

"$python" - "$work" <<'PY'
import sys
import webdataset as wds
for shard in range(40):
    with wds.TarWriter(f"{sys.argv[1]}/{shard:02}.tar") as writer:
        for i in range(25):
            writer.write({"__key__": f"{shard * 25 + i:04}", "txt": "text"})
def data(**options):
    return wds.WebDataset(sys.argv[1] + "/{00..39}.tar", **options).decode()
def shards(dataset):
    return list(dict.fromkeys(int(sample["__key__"]) // 25 for sample in dataset))
def seen(dataset, epochs=100):
    dataset = dataset.shuffle(50).with_epoch(100)
    keys = [sample["__key__"] for _ in range(epochs) for sample in dataset]
    assert len(keys) == 100 * epochs
    return len(set(keys))
orders = {}
for name, options in (("seed", dict(seed=0)), ("none", {}), ("detshuffle", dict(detshuffle=True))):
    dataset = data(shardshuffle=100, **options)
    orders[name] = [shards(dataset) for _ in range(3)]
    assert all(sorted(order) == list(range(40)) for order in orders[name])
different = {name: len(set(map(tuple, lists))) for name, lists in orders.items()}
print("first shards of 3 whole epochs: shardshuffle=100 seed=0", str([order[:3] for order in orders["seed"]]) + ",",
      f"no seed: {different['none']} order, detshuffle=True: {different['detshuffle']} orders")
assert different == {"seed": 1, "none": 1, "detshuffle": 3} and shards(data(shardshuffle=100)) != orders["none"][0]
plain, det = seen(data(shardshuffle=100)), seen(data(shardshuffle=100, detshuffle=True))
resampled = seen(data(resampled=True, shardshuffle=False))
print("100 epochs of 100 samples of 1,000: shardshuffle=100 and shuffle(50):", plain, "samples seen, with detshuffle=True:",
      f"{det}, resampled=True: {resampled}")
assert plain < 150 and min(det, resampled) > 990
PY
