#!/usr/bin/env bash
# torch: a new LambdaLR or SequentialLR on a used optimizer ignores the new learning rate and goes to the first one
# Versions: torch 2.13.0 (AdamW; a first stage at .001, a second stage of 100 updates for which lr is set to .00001).
# Guess: after group["lr"] = 1e-5 a new schedule has its peak at 1e-5, as a new schedule on a new optimizer has.
# True: the first schedule writes initial_lr into the optimizer's groups, and later ones do not change it. LambdaLR and
#   CosineAnnealingWarmRestarts multiply initial_lr, and SequentialLR sets lr back to it before its first part: they run
#   the second stage at .001, a hundred times too high. Others take the present lr and are right, so that a warm-up and
#   a cosine in ChainedScheduler have another peak than in SequentialLR. Nothing warns. After del group["initial_lr"]
#   all are right. The schedules of transformers, such as get_cosine_schedule_with_warmup, are LambdaLR.
# Hurt: trainings in stages that keep the optimizer, or load its state, which has initial_lr in it, too: annealing,
#   extension to long texts, fine-tuning after pretraining.
# Output seen:
#   LambdaLR: peak of the second stage .00100, with the state loaded .00100, after del .00001
#   CosineAnnealingWarmRestarts: peak of the second stage .00100, with the state loaded .00100, after del .00001
#   SequentialLR: peak of the second stage .00100, with the state loaded .00100, after del .00001
#   ChainedScheduler: peak of the second stage .00001, with the state loaded .00001, after del .00001
#   CosineAnnealingLR: peak of the second stage .00001, with the state loaded .00001, after del .00001
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import warnings

import torch
from torch.optim.lr_scheduler import (ChainedScheduler, CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR,
                                      LinearLR, SequentialLR)

warnings.simplefilter("error")                                 # nothing warns
def warmup(optimizer):
    return LinearLR(optimizer, 0.1, total_iters=10)

schedules = {
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: min(step / 10, (110 - step) / 100)),
    "CosineAnnealingWarmRestarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 50),
    "SequentialLR": lambda optimizer: SequentialLR(optimizer, [warmup(optimizer), CosineAnnealingLR(optimizer, 90)],
                                                   milestones=[10]),
    "ChainedScheduler": lambda optimizer: ChainedScheduler([warmup(optimizer), CosineAnnealingLR(optimizer, 100)]),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, 100),
}
weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.ones(1)

def peak(optimizer, schedule):
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return max(rates)

def second_peak(make, forget=False, load=False):
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    assert 9e-4 < peak(optimizer, make(optimizer)) <= 1e-3
    if load:
        state = optimizer.state_dict()
        optimizer = torch.optim.AdamW([weight], lr=1e-5)
        optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = 1e-5
    if forget:
        del optimizer.param_groups[0]["initial_lr"]
    return peak(optimizer, make(optimizer))

for name, make in schedules.items():
    plain, forgotten, loaded = second_peak(make), second_peak(make, forget=True), second_peak(make, load=True)
    print(f"{name}: peak of the second stage {plain:.5f}, with the state loaded {loaded:.5f}, "
          f"after del {forgotten:.5f}".replace(" 0.", " ."))
    right = name in ("ChainedScheduler", "CosineAnnealingLR")
    assert plain == loaded and (plain < 1.1e-5 if right else plain > 9e-4) and forgotten < 1.1e-5
PY
