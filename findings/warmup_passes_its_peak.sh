#!/usr/bin/env bash
# torch ChainedScheduler: with a cosine before the warm-up in the list, the rate goes to 25 times its peak
# Versions: torch 2.13.0 (peak .001; 100 updates of warm-up and a cosine over 1,000 at the same time).
# Guess: ChainedScheduler multiplies the two schedules: their order does not matter, and no rate is above .001.
# True: both compute the next rate from the present one. The cosine multiplies the rate's distance from eta_min, and so
#   changes even a rate of nearly 0 by a part of eta_min. LinearLR multiplies by the ratio of two values of the warm-up,
#   which is 10,000 in the first step from a start of 1e-6 and a million from 1e-8 (a start of 0 is not allowed). If the
#   cosine comes first, LinearLR multiplies the cosine's small change, too, and all later rates are too high by this
#   factor. Only the last one is eta_min, as it should. With the warm-up first, or with eta_min=0, all is right.
# Hurt: trainings with a warm-up from nearly 0 in ChainedScheduler: they diverge, or are compared at another peak.
# Output seen:
#   start_factor=0.001, eta_min=0.0001: peak with the warm-up first .00098, with the cosine first .00098
#   start_factor=1e-06, eta_min=0.0001: peak with the warm-up first .00098, with the cosine first .00122
#   start_factor=1e-08, eta_min=0.0001: peak with the warm-up first .00098, with the cosine first .02505
#   start_factor=1e-08, eta_min=1e-05: peak with the warm-up first .00098, with the cosine first .00338
#   start_factor=1e-08, eta_min=0: peak with the warm-up first .00098, with the cosine first .00098
#   1e-08, 0.0001, cosine first: rate at update 0, 1, 10, 100, 500, 1000: 0 .00026 .00257 .02505 .01289 .00010
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import warnings

import torch
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR

warnings.simplefilter("error")                                 # nothing warns
def rates(start_factor, eta_min, cosine_first):
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    warmup = LinearLR(optimizer, start_factor, total_iters=100)
    cosine = CosineAnnealingLR(optimizer, T_max=1000, eta_min=eta_min)
    schedule = ChainedScheduler([cosine, warmup] if cosine_first else [warmup, cosine])
    seen = [optimizer.param_groups[0]["lr"]]
    for _ in range(1000):
        optimizer.step()
        schedule.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return seen

peaks = {}
for start_factor, eta_min in ((1e-3, 1e-4), (1e-6, 1e-4), (1e-8, 1e-4), (1e-8, 1e-5), (1e-8, 0)):
    right, wrong = (max(rates(start_factor, eta_min, cosine_first)) for cosine_first in (False, True))
    peaks[start_factor, eta_min] = right, wrong
    print(f"start_factor={start_factor}, eta_min={eta_min}: peak with the warm-up first {right:.5f}, "
          f"with the cosine first {wrong:.5f}".replace(" 0.0", " .0"))
example = rates(1e-8, 1e-4, True)
print("1e-08, 0.0001, cosine first: rate at update 0, 1, 10, 100, 500, 1000: 0",
      *(f"{example[i]:.5f}".lstrip("0") for i in (1, 10, 100, 500, 1000)))
assert all(right < 1e-3 for right, _ in peaks.values())
assert peaks[1e-8, 1e-4][1] > 0.02 and peaks[1e-8, 1e-5][1] > 0.003 and peaks[1e-8, 0][1] < 1e-3
PY
