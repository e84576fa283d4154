#!/usr/bin/env bash
# Loading an optimizer's state casts fp32 moments to bf16
# Versions: torch 2.13.0, CPU.
# Guess: load_state_dict restores what state_dict returned, so a resumed run continues where it stopped.
# True: Optimizer.load_state_dict casts floating-point state to the dtype of the parameter. Moments that
#   somebody kept in fp32 beside bf16 weights come back as bf16, with no warning.
# Hurt: custom optimizers and mixed-precision wrappers that keep fp32 state for bf16 weights: the run
#   changes its arithmetic at the first resume.
# Output seen:
#   saved torch.float32 1.2345678, loaded torch.bfloat16 1.2343750
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
p = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
optimizer = torch.optim.AdamW([p])
p.grad = torch.ones_like(p)
optimizer.step()
optimizer.state[p]["exp_avg_sq"] = torch.full((3,), 1.2345678)
saved = optimizer.state_dict()
resumed = torch.optim.AdamW([p])
resumed.load_state_dict(saved)
before, after = saved["state"][0]["exp_avg_sq"], resumed.state[p]["exp_avg_sq"]
print(f"saved {before.dtype} {before[0].item():.7f}, loaded {after.dtype} {after[0].item():.7f}")
assert before.dtype == torch.float32 and after.dtype == torch.bfloat16
PY
