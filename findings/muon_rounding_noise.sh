#!/usr/bin/env bash
# Muon's update of a small batch is to a large part rounding noise
# Versions: torch 2.13.0 (one matrix of 256 x 256, its gradient of 1 to 64 random tokens).
# Guess: Muon orthogonalises the gradient: it makes the singular values that the gradient has about 1, so a gradient
#   of rank r gives an update of rank r. Rounding to bf16 changes that by less than 1 %.
# True: torch.optim.Muon rounds the gradient to bf16, and each of its five steps multiplies what is small by 3.4, 485
#   times in all. The rounding errors, which lie in all directions, become a large part of the update: 73 % of its
#   square for one token, 12 % for 16. The same five steps in fp32 leave nothing there.
# Hurt: fine-tuning and tests with few tokens in an update. Outputs change for inputs that are orthogonal to all that
#   the batch had.
# Output seen:
#   1 tokens: share of the update outside of the batch's inputs: torch 0.727, the same steps in fp32 0.000
#   4 tokens: share of the update outside of the batch's inputs: torch 0.305, the same steps in fp32 0.000
#   16 tokens: share of the update outside of the batch's inputs: torch 0.118, the same steps in fp32 0.000
#   64 tokens: share of the update outside of the batch's inputs: torch 0.025, the same steps in fp32 0.000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
def outside(update, inputs):
    span = torch.linalg.qr(inputs.T)[0]
    return ((update - update @ span @ span.T).norm() / update.norm()).item() ** 2
torch.manual_seed(0)
shares = {}
for tokens in (1, 4, 16, 64):
    inputs = torch.randn(tokens, 256)
    gradient = torch.randn(256, tokens) @ inputs
    weight = torch.nn.Parameter(torch.zeros(256, 256))
    weight.grad = gradient.clone()
    torch.optim.Muon([weight], lr=1.0, weight_decay=0.0).step()
    exact = gradient / gradient.norm()
    for _ in range(5):
        square = exact @ exact.T
        exact = 3.4445 * exact + (-4.7750 * square + 2.0315 * square @ square) @ exact
    shares[tokens] = outside(weight.detach(), inputs), outside(exact, inputs)
    print(f"{tokens} tokens: share of the update outside of the batch's inputs: "
          f"torch {shares[tokens][0]:.3f}, the same steps in fp32 {shares[tokens][1]:.3f}")
assert shares[1][0] > 0.5 and shares[16][0] > 0.05 and all(exact < 1e-4 for _, exact in shares.values())
PY
