#!/usr/bin/env bash
# A fully masked row has a gradient as many times too large as it has keys
# Versions: torch 2.13.0, CPU, scaled_dot_product_attention with torch.finfo(float32).min as the mask.
# Guess: the fused kernel and the math path agree in the gradient as they do in the output.
# True: a row whose scores are all finfo.min gives the mean of the values in both. The fused kernel's
#   backward pass rebuilds the weights from a log-sum-exp, where log 8 is rounded away beside -3.4e38: each of
#   the 8 weights is 1 instead of 1/8. A boolean mask, or -inf, gives 0 and a gradient of 0.
# Hurt: padded rows whose outputs reach the loss, for instance through a mean over the positions.
# Output seen:
#   output: fused 0.2447, math 0.2447; gradient of a value: fused 1.0000, math 0.1250
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
def value_gradient(backend):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
    v.requires_grad_()
    mask = torch.zeros(3, 8)
    mask[1] = torch.finfo(torch.float32).min
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out[:, :, 1].sum().backward()
    return out[0, 0, 1, 0].item(), v.grad[0, 0, 0, 0].item()
fused, math = value_gradient(SDPBackend.FLASH_ATTENTION), value_gradient(SDPBackend.MATH)
print(f"output: fused {fused[0]:.4f}, math {math[0]:.4f}; gradient of a value: fused {fused[1]:.4f}, math {math[1]:.4f}")
assert abs(fused[0] - math[0]) < 1e-5 and abs(math[1] - 0.125) < 1e-4 and abs(fused[1] - 1) < 1e-3
PY
