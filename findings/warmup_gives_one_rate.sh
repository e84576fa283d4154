#!/usr/bin/env bash
# In DeepSpeed, WarmupLR and WarmupDecayLR give all groups one rate: an encoder at 1e-5 and a frozen group train at 1e-3
# Versions: deepspeed 0.19.8 (its schedulers alone), torch 2.13.0 (CPU), numpy 2.4.6 (100 steps of warm-up of 1,000).
# Guess: a scheduler scales the rate of each group, as torch's do. WarmupDecayLR is WarmupLR and a decay after it.
# True: warmup_max_lr, a number in the configuration, replaces the rate of each group, so that rates by layer, a higher
#   rate of new parts and a rate of 0 are gone. WarmupCosineLR scales them. Without warmup_max_lr WarmupLR takes the
#   rates of the optimizer, and WarmupDecayLR .001 whatever they are. The warm-up goes by the logarithm of the step
#   and is at half of the peak after a tenth of the steps, and the first two updates are made at a rate of 0.
# Hurt: fine-tuning with several rates that moves to DeepSpeed; comparisons of schedules, of which one trains the
#   encoder at 100 times the rate of the other.
# Output seen:
#   WarmupLR, max 1e-3: groups at step 101 1.0e-03, 1.0e-03, 1.0e-03; at 550 1.0e-03, 1.0e-03, 1.0e-03
#   WarmupLR: groups at step 101 1.0e-03, 1.0e-05, 0; at 550 1.0e-03, 1.0e-05, 0
#   WarmupDecayLR, max 1e-3: groups at step 101 1.0e-03, 1.0e-03, 1.0e-03; at 550 5.0e-04, 5.0e-04, 5.0e-04
#   WarmupDecayLR: groups at step 101 1.0e-03, 1.0e-03, 1.0e-03; at 550 5.0e-04, 5.0e-04, 5.0e-04
#   WarmupCosineLR: groups at step 101 1.0e-03, 1.0e-05, 0; at 550 5.0e-04, 5.0e-06, 0
#   first group of WarmupLR in the updates 0, 1, 10, 50: 0, 0, 5.0e-04, 8.5e-04
. "$(dirname "$0")/common.sh"
export DS_BUILD_OPS=0
venv deepspeed==0.19.8 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY' > "$work/all" 2> "$work/log" || { cat "$work/all" "$work/log"; exit 1; }
import torch
from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupDecayLR, WarmupLR

peaks = 1e-3, 1e-5, 0.0

def rates(make, steps=(0, 1, 10, 50, 101, 550)):
    """The rates with which three groups, at 1e-3, 1e-5 and 0, make these updates."""
    optimizer = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr} for lr in peaks])
    scheduler = make(optimizer)
    found = []
    for step in range(max(steps) + 1):
        if step in steps:
            found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found

def write(values):
    return ", ".join(f"{value:.1e}" if value else "0" for value in values)

seen = {}
for name, make in (
        ("WarmupLR, max 1e-3", lambda optimizer: WarmupLR(optimizer, 0, 1e-3, 100)),
        ("WarmupLR", lambda optimizer: WarmupLR(optimizer, 0, warmup_num_steps=100)),
        ("WarmupDecayLR, max 1e-3", lambda optimizer: WarmupDecayLR(optimizer, 1000, 0, 1e-3, 100)),
        ("WarmupDecayLR", lambda optimizer: WarmupDecayLR(optimizer, 1000, 0, warmup_num_steps=100)),
        ("WarmupCosineLR", lambda optimizer: WarmupCosineLR(optimizer, 1000, warmup_num_steps=100))):
    seen[name] = rates(make)
    print(f"finding: {name}: groups at step 101 {write(seen[name][4])}; at 550 {write(seen[name][5])}")
first = [row[0] for row in seen["WarmupLR"][:4]]
print(f"finding: first group of WarmupLR in the updates 0, 1, 10, 50: {write(first)}")
for name in ("WarmupLR, max 1e-3", "WarmupDecayLR, max 1e-3", "WarmupDecayLR"):
    assert all(row[0] == row[1] == row[2] for row in seen[name]) and abs(seen[name][4][2] - 1e-3) < 1e-5
for name in ("WarmupLR", "WarmupCosineLR"):
    assert abs(seen[name][4][1] - 1e-5) < 1e-7 and seen[name][4][2] == 0
assert first[0] == first[1] == 0 and abs(first[2] / 5e-4 - 1) < 0.05
PY
sed -n 's/^finding: //p' "$work/all"
