#!/usr/bin/env bash
# torch.rand in bf16 is below .001 three times as often as one time in a thousand
# Versions: torch 2.13.0, CPU.
# Guess: rand_like(x) < p is true with probability p, up to the rounding of p, also for a bf16 x.
# True: most bf16 draws are multiples of 1/256, so near 0 they are too few and too coarse. A draw below .001 comes
#   nearly 3 times too often, and a draw of 0, whose logarithm is infinite, with 2 of 1,000. bernoulli in bf16 is
#   right.
# Hurt: masks and token dropping by rand_like(hidden) < p, and noise as -log(-log(rand_like(logits))).
# Output seen:
#   torch.float32: share below .001 0.00101, .01 0.01003, .1 0.10019; zeros 0.00000; bernoulli(.001) 0.00099
#   torch.bfloat16: share below .001 0.00298, .01 0.01198, .1 0.10201; zeros 0.00197; bernoulli(.001) 0.00099
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
n = 4_000_000
below = {}
for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    draws = torch.rand(n, dtype=dtype)
    for p in (0.001, 0.01, 0.1):
        below[dtype, p] = (draws < p).double().mean().item()
    below[dtype, "bernoulli"] = right = torch.bernoulli(torch.full((n,), 0.001, dtype=dtype)).double().mean().item()
    print(f"{dtype}: share below .001 {below[dtype, 0.001]:.5f}, .01 {below[dtype, 0.01]:.5f}, .1 {below[dtype, 0.1]:.5f};",
          f"zeros {(draws == 0).double().mean():.5f}; bernoulli(.001) {right:.5f}")
assert below[torch.bfloat16, 0.001] > 0.002 and max(
    abs(below[torch.float32, 0.001] - 0.001), abs(below[torch.bfloat16, "bernoulli"] - 0.001)) < 1e-4
PY
