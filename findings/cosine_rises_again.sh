#!/usr/bin/env bash
# One update too many and CosineAnnealingLR rises again, to its peak
# Versions: torch 2.13.0, CPU.
# Guess: after T_max steps the rate stays at its minimum.
# True: it climbs back along the cosine and reaches the peak after 2 T_max steps, with no warning.
# Hurt: a run that is resumed for more steps, or that steps the scheduler for each micro-batch.
# Output seen:
#   rate after 10 steps 0.10, after 15 0.55, after 20 1.00 (T_max=10)
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
p = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([p], lr=1.0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.1)
rates = [1.0]
for _ in range(20):
    optimizer.step()
    scheduler.step()
    rates.append(optimizer.param_groups[0]["lr"])
print(f"rate after 10 steps {rates[10]:.2f}, after 15 {rates[15]:.2f}, after 20 {rates[20]:.2f} (T_max=10)")
assert rates[10] < 0.11 and rates[20] > 0.99
PY
