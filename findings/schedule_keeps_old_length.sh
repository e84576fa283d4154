#!/usr/bin/env bash
# A run that is resumed for twice as many steps keeps the schedule of the shorter run
# Versions: torch 2.13.0, CPU.
# Guess: CosineAnnealingLR(optimizer, T_max=20) ends at step 20, also after it has loaded the state of step 8 of a
#   run of 10. The state is the step; the settings are those of the constructor.
# True: load_state_dict overwrites T_max, total_iters and the milestones with the saved ones. The cosine ends at
#   step 10 and rises again, LinearLR and PolynomialLR stay at their end. A LambdaLR, whose function is not saved,
#   goes on to 20.
# Hurt: whoever continues a run for longer: the second half trains at a rate of 0, or at one that rises.
# Output seen:
#   CosineAnnealingLR: steps 8, 10, 12, 14, 16, 18 of 20 [0.1, 0.0, 0.1, 0.35, 0.65, 0.9]
#   LinearLR: steps 8, 10, 12, 14, 16, 18 of 20 [0.28, 0.1, 0.1, 0.1, 0.1, 0.1]
#   PolynomialLR: steps 8, 10, 12, 14, 16, 18 of 20 [0.2, 0.0, 0.0, 0.0, 0.0, 0.0]
#   LambdaLR: steps 8, 10, 12, 14, 16, 18 of 20 [0.2, 0.5, 0.4, 0.3, 0.2, 0.1]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import copy
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, PolynomialLR
kinds = {"CosineAnnealingLR": lambda o, steps: CosineAnnealingLR(o, steps),
    "LinearLR": lambda o, steps: LinearLR(o, 1.0, 0.1, steps), "PolynomialLR": lambda o, steps: PolynomialLR(o, steps),
    "LambdaLR": lambda o, steps: LambdaLR(o, lambda step: max(0.0, 1 - step / steps))}
def make(kind, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return optimizer, kinds[kind](optimizer, steps)
def rates(optimizer, scheduler, n):
    values = []
    for _ in range(n):
        values.append(round(optimizer.param_groups[0]["lr"], 2))
        optimizer.step()
        scheduler.step()
    return values
for kind in kinds:
    optimizer, scheduler = make(kind, 10)
    rates(optimizer, scheduler, 8)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    as_before = rates(optimizer, scheduler, 12)
    optimizer, scheduler = make(kind, 20)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    resumed = rates(optimizer, scheduler, 12)
    print(f"{kind}: steps 8, 10, 12, 14, 16, 18 of 20 {resumed[::2]}")
    assert (resumed == as_before) == (kind != "LambdaLR")
PY
