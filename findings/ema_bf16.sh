#!/usr/bin/env bash
# An average of bf16 weights stops at a quarter of the way
# Versions: torch 2.13.0, CPU.
# Guess: AveragedModel with decay .999 reaches constant weights within 10,000 updates, up to rounding.
# True: AveragedModel keeps the average in the dtype of the model. The weights go from 0 to 1 and stay
#   there; the bf16 average stops at .25, because a thousandth of the remaining distance is rounded away.
# Hurt: EMA evaluation of a bf16 model: it evaluates weights from the beginning of the training.
# Output seen:
#   average after 10,000 updates at weight 1: bf16 0.2500, fp32 1.0000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
def average(dtype):
    model = torch.nn.Linear(1, 1, bias=False).to(dtype)
    torch.nn.init.zeros_(model.weight)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    ema.update_parameters(model)
    torch.nn.init.ones_(model.weight)
    for _ in range(10_000):
        ema.update_parameters(model)
    return ema.module.weight.item()
bf16, fp32 = average(torch.bfloat16), average(torch.float32)
print(f"average after 10,000 updates at weight 1: bf16 {bf16:.4f}, fp32 {fp32:.4f}")
assert bf16 < 0.5 and fp32 > 0.99
PY
