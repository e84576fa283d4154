#!/usr/bin/env bash
# An epoch that accelerate resumes in the middle repeats rows, and leaves others out
# Versions: accelerate 1.15.0, torch 2.13.0.
# Guess: save_state after 5 of 10 batches, then load_state and skip_first_batches(loader, 5) in a new run, as the
#   guide to checkpoints says, gives the other 5 batches.
# True: the saved random state is that of the middle of the epoch. The loader draws a new order from it, and the
#   first 5 batches of that order are skipped. About half of the rest has been seen, and as many rows never come.
#   DataLoaderConfiguration(use_seedable_sampler=True) is right.
# Hurt: runs of one or few epochs that are interrupted, as most long ones are.
# Output seen:
#   plain: 50 rows before, 50 after, 26 of them again, 26 of 100 never
#   seedable sampler: 50 rows before, 50 after, 0 of them again, 0 of 100 never
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys, tempfile
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
def start(seedable):
    set_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    model = torch.nn.Linear(1, 1)
    loader = torch.utils.data.DataLoader(torch.arange(100.0)[:, None], batch_size=10, shuffle=True)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
repeated = {}
for name, seedable in (("plain", False), ("seedable sampler", True)):
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    accelerator, model, optimizer, loader = start(seedable)
    before, after = [], []
    for batch in loader:
        before += batch[:, 0].int().tolist()
        if len(before) == 50:
            accelerator.save_state(folder)
            break
    accelerator, model, optimizer, loader = start(seedable)
    accelerator.load_state(folder)
    for batch in accelerator.skip_first_batches(loader, 5):
        after += batch[:, 0].int().tolist()
    repeated[name] = len({*before} & {*after})
    print(f"{name}: {len(before)} rows before, {len(after)} after, {repeated[name]} of them again,",
          f"{100 - len({*before, *after})} of 100 never")
assert 15 < repeated["plain"] < 35 and repeated["seedable sampler"] == 0
PY
