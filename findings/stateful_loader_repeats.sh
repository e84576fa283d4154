#!/usr/bin/env bash
# torchdata's StatefulDataLoader resumes a first epoch exactly; with torch's own samplers it repeats rows of a second one
# Versions: torchdata 0.11.0, torch 2.13.0 (1,000 rows, stopped in the middle of an epoch, samplers with a seed).
# Guess: a loader made again as it was, and given the state_dict, goes on with the rows that are left. With shuffle=True,
#   or a DistributedSampler, it does so in any epoch; of RandomSampler the tutorial says that importing torchdata is enough.
# True: SubsetRandomSampler, RandomSampler and WeightedRandomSampler of torch.utils.data keep their order in a generator,
#   which is not in the state. The new loader makes the first epoch's order anew and skips as many rows of it as were
#   read: right in the first epoch, where it is tested, and half repeated, half left out in the middle of the second.
# Hurt: interrupted training on a part of the rows or on weighted rows: it goes on without an error.
# Output seen:
#   shuffle=True: of the 500 rows after resuming, repeated in epoch 1, 2, 3: 0 0 0
#   DistributedSampler: of the 500 rows after resuming, repeated in epoch 1, 2, 3: 0 0 0
#   SubsetRandomSampler: of the 500 rows after resuming, repeated in epoch 1, 2, 3: 0 252 246
#   RandomSampler: of the 500 rows after resuming, repeated in epoch 1, 2, 3: 0 246 258
#   WeightedRandomSampler: of the 500 rows after resuming, repeated in epoch 1, 2, 3: 0 255 249
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchdata==0.11.0

"$python" - <<'PY'
import torch
from torch.utils import data
from torchdata.stateful_dataloader import StatefulDataLoader
rows = torch.arange(1000)
def seed():
    return torch.Generator().manual_seed(1)
loaders = {"shuffle=True": dict(shuffle=True),
    "DistributedSampler": dict(sampler=lambda: data.DistributedSampler(rows, num_replicas=1, rank=0)),
    "SubsetRandomSampler": dict(sampler=lambda: data.SubsetRandomSampler(range(1000), generator=seed())),
    "RandomSampler": dict(sampler=lambda: data.RandomSampler(rows, generator=seed())),
    "WeightedRandomSampler": dict(sampler=lambda: data.WeightedRandomSampler([1.0] * 1000, 1000, False, generator=seed()))}
for name, options in loaders.items():
    def loader():
        torch.manual_seed(0)
        made = {key: value() if callable(value) else value for key, value in options.items()}
        return StatefulDataLoader(rows, batch_size=10, **made)
    result = []
    for epoch in (1, 2, 3):
        first = loader()
        for _ in range(epoch - 1):
            list(first)
        batches = iter(first)
        seen = torch.cat([next(batches) for _ in range(50)])
        state = first.state_dict()
        rest = torch.cat(list(batches))
        again = loader()
        again.load_state_dict(state)
        resumed = torch.cat(list(again))
        repeated = torch.isin(resumed, seen).sum().item()
        result.append(repeated)
        assert len(seen.unique()) == 500 and len(resumed) == 500 and torch.equal(rest, resumed) == (repeated == 0)
    print(f"{name}: of the 500 rows after resuming, repeated in epoch 1, 2, 3:", *result)
    right = name in ("shuffle=True", "DistributedSampler")
    assert result[0] == 0 and (result[1:] == [0, 0] if right else min(result[1:]) > 200)
PY
