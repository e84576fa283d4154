#!/usr/bin/env bash
# Parameter groups that share a learning rate tensor cannot have rates of their own
# Versions: torch 2.13.0, CPU.
# Guess: with lr=torch.tensor(1.0), which spares torch.compile a recompilation for each rate, groups behave as
#   with lr=1.0.
# True: the groups hold one and the same tensor, and a scheduler writes into it. The last group's rate is that of
#   all. No error, and the groups print the rate that they have.
# Hurt: schedules by group (frozen or slower embeddings, the scales of an attention) in compiled training.
# Output seen:
#   rates after 3 steps of (halved each step, constant): lr=1.0 [0.125, 1.0], lr=tensor(1.0) [1.0, 1.0]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
def rates(lr):
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [a]}, {"params": [b]}], lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5 ** step, lambda step: 1.0])
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    return [float(group["lr"]) for group in optimizer.param_groups]
number, tensor = rates(1.0), rates(torch.tensor(1.0))
print(f"rates after 3 steps of (halved each step, constant): lr=1.0 {number}, lr=tensor(1.0) {tensor}")
assert number == [0.125, 1.0] and tensor == [1.0, 1.0]
PY
