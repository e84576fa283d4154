#!/usr/bin/env bash
# Seeds that differ only above 32 bits give the same random numbers on a CPU
# Versions: torch 2.13.0, CPU.
# Guess: manual_seed takes 64 bits, and initial_seed() returns all of them, so each seed has a stream of its own.
# True: the CPU's generator is started with the lower 32 bits. seed * 2**32 + rank gives each seed the numbers of
#   rank alone: two runs with other seeds have the same weights, the same dropout and the same order of the data.
# Hurt: seeds that are composed of a seed, an epoch and a rank, or taken from 64-bit hashes with equal lower
#   halves.
# Output seen:
#   equal numbers: seeds 1 * 2**32 + 3 and 2 * 2**32 + 3 100%, 1 * 2**32 + 3 and 1 * 2**32 + 4 0%
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
def run(seed):
    torch.manual_seed(seed)
    assert torch.initial_seed() == seed
    layer = torch.nn.Linear(100, 100)
    dropped = torch.nn.functional.dropout(torch.ones(100))
    return torch.cat([layer.weight.flatten(), dropped, torch.randperm(100)])
def equal(a, b):
    return (run(a) == run(b)).float().mean().item()
upper = equal(1 * 2**32 + 3, 2 * 2**32 + 3)
lower = equal(1 * 2**32 + 3, 1 * 2**32 + 4)
print(f"equal numbers: seeds 1 * 2**32 + 3 and 2 * 2**32 + 3 {upper:.0%}, 1 * 2**32 + 3 and 1 * 2**32 + 4 {lower:.0%}")
assert upper == 1 and lower < 0.1
PY
