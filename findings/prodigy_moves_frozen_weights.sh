#!/usr/bin/env bash
# In Prodigy a group with learning rate 0 goes on moving: from 2.9 to -83
# Versions: prodigyopt 1.1.2, torch 2.13.0 (CPU; two groups of weights that are fitted to 3 from 1).
# Guess: Prodigy finds the rate itself, and lr is a factor: 1 trains a group, and 0, the one other value that it takes
#   beside 1, freezes it.
# True: the groups with rate 0 are left out where the gradient is added to the moments, and not where the weights are
#   changed: the update takes the largest rate of all groups. A group that is frozen in mid-training keeps its momentum
#   for ever, which never decays, and walks on in a straight line. A group that is frozen from the start has no
#   momentum, and with weight decay it shrinks to 0. requires_grad_(False) with grad set to None freezes.
# Hurt: adapters and encoders that are trained for the first part of a run, and frozen embeddings: the loss grows long
#   after the freezing, as if the rate were too high.
# Output seen:
#   frozen from update 50 by lr=0: the frozen weight then, 10 and 50 updates later, and at the end: 2.928 0.479 -9.318 -82.546
#   frozen from the start by lr=0, no decay: the frozen weight then, 10 and 50 updates later, and at the end: 1.000 1.000 1.000 1.000
#   frozen from the start by lr=0, decay 0.1: the frozen weight then, 10 and 50 updates later, and at the end: 1.000 1.000 0.034 0.000
#   frozen from update 50 by requires_grad_(False): the frozen weight then, 10 and 50 updates later, and at the end: 2.928 2.928 2.928 2.928
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 prodigyopt==1.1.2

"$python" - <<'PY'
import contextlib, io
import torch
from prodigyopt import Prodigy
def train(frozen_at, decay, by_rate=True):
    first, second = torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.ones(8))
    with contextlib.redirect_stdout(io.StringIO()):
        optimizer = Prodigy([{"params": [first]}, {"params": [second]}], lr=1.0, weight_decay=decay)
    seen = []
    for update in range(400):
        if update in (frozen_at, frozen_at + 10, frozen_at + 50, 399):
            seen.append(second[0].item())
        optimizer.zero_grad()
        if update >= frozen_at and by_rate:
            optimizer.param_groups[1]["lr"] = 0.0
        elif update >= frozen_at:
            second.requires_grad_(False)
        (first - 3).square().sum().add((second - 3).square().sum()).backward()
        optimizer.step()
    return seen
for name, *options in (("frozen from update 50 by lr=0", 50, 0.0), ("frozen from the start by lr=0, no decay", 0, 0.0),
                       ("frozen from the start by lr=0, decay 0.1", 0, 0.1),
                       ("frozen from update 50 by requires_grad_(False)", 50, 0.0, False)):
    seen = train(*options)
    print(f"{name}: the frozen weight then, 10 and 50 updates later, and at the end:",
          *(f"{weight:.3f}" for weight in seen))
    if name.endswith("update 50 by lr=0"):
        assert abs(seen[0] - 3) < 0.1 and seen[3] < -50
    elif name.endswith("decay 0.1"):
        assert seen[0] == 1 and seen[3] < 0.01
    else:
        assert min(seen) == max(seen)
PY
