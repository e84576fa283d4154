#!/usr/bin/env bash
# torch: OneCycleLR in a SequentialLR divides the learning rate of all other parts by 25, those before it, too
# Versions: torch 2.13.0 (AdamW with lr=.001; 10 updates at a constant rate and a cycle of 20, or the reverse).
# Guess: SequentialLR changes nothing before a part's turn: 10 updates at .001, and then a cycle with its peak at .001.
# True: OneCycleLR writes initial_lr = max_lr / 25 into the optimizer when made, and beta1 = .95. SequentialLR sets
#   the rate back to initial_lr at its start, and so the constant part runs at .00004, with the cycle's beta1. If the
#   cycle comes first, all parts after it are divided by 25, too: a constant of .001 after it is .00004. max_lr has this
#   effect, even where lr says something else. Nothing warns.
# Hurt: a frozen phase, a constant phase or a cooldown around a cycle: it trains hardly at all and looks useless.
# Output seen:
#   constant alone: rate .00100, beta1 0.90
#   constant, then cosine: rate .00100, beta1 0.90
#   constant, then cycle: rate .00004, beta1 0.95
#   cycle, then constant: rate .00004, beta1 0.95
#   cycle with max_lr=.01, then constant: rate .00040, beta1 0.95
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import warnings

import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, OneCycleLR, SequentialLR

warnings.simplefilter("error")                                 # nothing warns
def constant(optimizer):
    return ConstantLR(optimizer, factor=1, total_iters=0)

def cycle(optimizer, max_lr=1e-3):
    return OneCycleLR(optimizer, max_lr, total_steps=20)

def during_constant(parts, turn):
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    schedule = SequentialLR(optimizer, [make(optimizer) for make in parts], [10] if turn == 0 else [20])
    groups = []
    for _ in range(20 * turn + 10):
        groups.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]))
        optimizer.step()
        schedule.step()
    assert len(set(groups[-10:])) == 1                         # constant, as it should be
    return groups[-1]

seen = {}
for name, parts, turn in (("constant alone", [constant, constant], 0),
                          ("constant, then cosine", [constant, lambda optimizer: CosineAnnealingLR(optimizer, 20)], 0),
                          ("constant, then cycle", [constant, cycle], 0),
                          ("cycle, then constant", [cycle, constant], 1),
                          ("cycle with max_lr=.01, then constant",
                           [lambda optimizer: cycle(optimizer, 1e-2), constant], 1)):
    seen[name] = during_constant(parts, turn)
    print("{}: rate {:.5f}, beta1 {:.2f}".format(name, *seen[name]).replace("rate 0.", "rate ."))
rates = [round(rate, 8) for rate, _ in seen.values()]
assert rates == [1e-3, 1e-3, 4e-5, 4e-5, 4e-4]
PY
