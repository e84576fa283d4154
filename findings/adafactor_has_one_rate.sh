#!/usr/bin/env bash
# In pytorch-optimizer AdaFactor ignores the learning rate and its schedule: 1e-5 and 1e-1 train the same weights
# Versions: pytorch-optimizer 4.1.0, torch 2.13.0 (CPU), numpy 2.4.6 (a regression; a rate that falls to 0 in 200
#   updates, and 200 more).
# Guess: AdaFactor(parameters, lr=1e-3) has the learning rate 1e-3, as its signature says, and a scheduler changes it.
# True: unless relative_step=False is given, each step makes a rate of its own, the smaller of 1e-2 and 1 / sqrt(steps)
#   times the size of the weights. lr is stored in the group, the scheduler lowers it there, and logs show it, but no
#   step reads it: at 0 the weights go on moving. transformers' Adafactor raises an error for lr beside relative_step,
#   and torch's takes lr as the upper limit.
# Hurt: sweeps of learning rates (all equal, so lr seems not to matter), comparisons of optimizers, warm-up, annealing,
#   and fine-tuning at a low rate, which runs at a high one.
# Output seen:
#   pytorch-optimizer's AdaFactor, lr 1e-5, 1e-3, 1e-1:
#     moved 1.3989, 1.3989, 1.3989 and at a rate of 0 0.3608, 0.3608, 0.3608
#   with relative_step=False, lr 1e-5, 1e-3, 1e-1:
#     moved 0.0010, 0.0974, 1.7890 and at a rate of 0 0.0000, 0.0004, 0.0037
#   torch's Adafactor, lr 1e-5, 1e-3, 1e-1:
#     moved 0.0010, 0.0970, 1.7210 and at a rate of 0 0.0000, 0.0000, 0.0000
. "$(dirname "$0")/common.sh"
venv pytorch-optimizer==4.1.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from pytorch_optimizer import AdaFactor

def train(kind, lr, **options):
    """The distance from the start in 400 updates, and in the last 200, in which the learning rate is 0."""
    torch.manual_seed(0)
    x, y = torch.randn(512, 16), torch.randn(512, 8)
    layer = torch.nn.Linear(16, 8)
    start = layer.weight.detach().clone()
    optimizer = kind(layer.parameters(), lr=lr, **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 200))
    for step in range(400):
        if step == 200:
            assert optimizer.param_groups[0]["lr"] == 0
            half = layer.weight.detach().clone()
        rows = torch.randint(512, (32,))
        optimizer.zero_grad()
        (layer(x[rows]) - y[rows]).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return (layer.weight - start).norm().item(), (layer.weight - half).norm().item()

seen = {}
for name, kind, options in (("pytorch-optimizer's AdaFactor", AdaFactor, {}),
                            ("with relative_step=False", AdaFactor, {"relative_step": False}),
                            ("torch's Adafactor", torch.optim.Adafactor, {})):
    seen[name] = [train(kind, lr, **options) for lr in (1e-5, 1e-3, 1e-1)]
    print(f"{name}, lr 1e-5, 1e-3, 1e-1:\n  moved " + ", ".join(f"{total:.4f}" for total, _ in seen[name]),
          "and at a rate of 0 " + ", ".join(f"{after:.4f}" for _, after in seen[name]))
own, absolute, other = seen.values()
assert own[0] == own[1] == own[2] and own[0][1] > 0.02
for row in (absolute, other):
    assert row[0][0] < 0.1 * row[1][0] < 0.1 * row[2][0] and row[0][1] < 0.001
PY
