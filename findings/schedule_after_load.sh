#!/usr/bin/env bash
# A scheduler made after the optimizer's state is loaded lowers the learning rate of the resumed run
# Versions: torch 2.13.0, CPU.
# Guess: the scheduler and the optimizer are both loaded before the first update, so it does not matter in which
#   order the objects are made.
# True: making a scheduler writes the first rate of the warm-up into the optimizer, and its load_state_dict does
#   not write the saved one. LinearLR, and a SequentialLR already in its cosine, multiply from there: the rate
#   stays a tenth of what it was. LambdaLR is wrong for one update. A scheduler made before loading is right.
# Hurt: runs that are resumed by a helper which loads model and optimizer before the schedule is made.
# Output seen:
#   LinearLR: not interrupted [0.73, 0.82, 0.91], scheduler made before loading [0.73, 0.82, 0.91], after [0.073, 0.082, 0.091]
#   SequentialLR: not interrupted [0.976, 0.946, 0.905], scheduler made before loading [0.976, 0.946, 0.905], after [0.1, 0.097, 0.093]
#   LambdaLR: not interrupted [0.8, 0.9, 1.0], scheduler made before loading [0.8, 0.9, 1.0], after [0.1, 0.9, 1.0]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import copy
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR
kinds = {"LinearLR": lambda o: LinearLR(o, 0.1, 1.0, 10),
    "SequentialLR": lambda o: SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingLR(o, 20)], [5]),
    "LambdaLR": lambda o: LambdaLR(o, lambda step: min(1.0, (step + 1) / 10))}
def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
def rates(optimizer, scheduler, n):
    values = []
    for _ in range(n):
        values.append(round(optimizer.param_groups[0]["lr"], 3))
        optimizer.step()
        scheduler.step()
    return values
for name, make in kinds.items():
    optimizer = sgd()
    scheduler = make(optimizer)
    rates(optimizer, scheduler, 7)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    right = rates(optimizer, scheduler, 3)
    resumed = {}
    for first in (True, False):
        optimizer = sgd()
        if first:
            scheduler = make(optimizer)
        optimizer.load_state_dict(saved[0])
        if not first:
            scheduler = make(optimizer)
        scheduler.load_state_dict(saved[1])
        resumed[first] = rates(optimizer, scheduler, 3)
    print(f"{name}: not interrupted {right}, scheduler made before loading {resumed[True]}, after {resumed[False]}")
    assert resumed[True] == right and resumed[False][0] < 0.2 * right[0]
    assert (resumed[False][2] < 0.4 * right[2]) == (name != "LambdaLR")
PY
