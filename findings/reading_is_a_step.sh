#!/usr/bin/env bash
# Asking for an optimizer's state before the first update changes the training
# Versions: torch 2.13.0, CPU, torch.distributed.checkpoint (one process, no process group).
# Guess: get_state_dict reads. A run that asks for it at the start, to load a checkpoint or to save one at step 0,
#   trains as one that does not.
# True: if the optimizer has no state yet, it takes a step with gradients of 0 to have one. The weights stay, but the
#   step is counted. The first updates of AdamW are then smaller, SGD with dampening damps the first gradient,
#   and Rprop, whose step size has become 0, never trains. optimizer.state_dict() reads.
# Hurt: scripts that try to load a checkpoint and else begin: each fresh run differs from one without the attempt.
# Output seen:
#   AdamW: losses [1.3171, 1.011, 0.7969, 0.6467], after get_state_dict [1.3171, 1.0803, 0.8722, 0.7143]
#   SGD, dampening .9: losses [1.3171, 0.9117, 0.5967, 0.3698], after get_state_dict [1.3171, 1.2727, 1.1915, 1.0827]
#   Rprop: losses [1.3171, 1.0115, 0.7675, 0.5898], after get_state_dict [1.3171, 1.3171, 1.3171, 1.3171]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict
kinds = {"AdamW": lambda p: torch.optim.AdamW(p, lr=0.1), "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "SGD, dampening .9": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.9)}
def losses(kind, read):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = kinds[kind](model.parameters())
    before = model.weight.clone()
    read(model, optimizer)
    assert model.weight.equal(before)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    values = []
    for _ in range(4):
        loss = (model(x) - 1).square().mean()
        values.append(round(loss.item(), 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return values
for kind in ("AdamW", "SGD, dampening .9", "Rprop"):
    plain = losses(kind, lambda model, optimizer: (model.state_dict(), optimizer.state_dict()))
    asked = losses(kind, get_state_dict)
    print(f"{kind}: losses {plain}, after get_state_dict {asked}")
    assert plain == losses(kind, lambda *_: None) and asked[0] == plain[0] and asked[1] > plain[1] + 0.01
assert len(set(asked)) == 1
PY
