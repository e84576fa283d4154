#!/usr/bin/env bash
# AdamW on bf16 parameters never forgets a burst of large gradients
# Versions: torch 2.13.0, CPU.
# Guess: the second moment of AdamW follows an exponential average, only less precisely in bf16.
# True: the moments have the dtype of the parameters. In bf16 an update by .999 is smaller than half a unit
#   in the last place, so the second moment can rise but never decays. Ten gradients of 100 hold it at its
#   peak for ever: in fp32 it is 400 times lower after 6,000 updates, so the step is 20 times too small.
# Hurt: pure bf16 training with the default beta2=.999 after one loss spike.
# Output seen:
#   second moment 5,990 updates after the burst: bf16 100.0000, fp32 0.2485
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
def second_moment(dtype):
    p = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    optimizer = torch.optim.AdamW([p], lr=1e-4, betas=(0.9, 0.999))
    for step in range(6000):
        p.grad = torch.full_like(p, 100.0 if step < 10 else 1e-3)
        optimizer.step()
    return optimizer.state[p]["exp_avg_sq"].item()
bf16, fp32 = second_moment(torch.bfloat16), second_moment(torch.float32)
print(f"second moment 5,990 updates after the burst: bf16 {bf16:.4f}, fp32 {fp32:.4f}")
assert bf16 > 90 and fp32 < 0.3
PY
