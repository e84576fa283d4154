#!/usr/bin/env bash
# In bf16 the embedding gradient of a frequent token stops growing: 4,096 occurrences count as 256
# Versions: torch 2.13.0 (CPU).
# Guess: a token's gradient is the sum over the places where it occurs, rounded to bf16 once (0.4 %), as in other
#   reductions of bf16.
# True: nn.Embedding and weight[ids] add one place after the other into a bf16 row. Ones stop at 256; gradients with a
#   common part lose a third of it at a thousand places. index_add_ and segment_reduce do the same. The backward of
#   index_select(0, ids) and that of one_hot(ids) @ weight, the same numbers forward, are right.
# Hurt: pure bf16 training of long texts: new lines, spaces and padding learn too little, in no other dtype or layer.
# Output seen:
#   64 places: error of the gradient (and gradient of the sum) nn.Embedding 0.9% (64), weight[ids] 0.9% (64), index_select 0.2% (64), one_hot @ weight 0.2% (64)
#   256 places: error of the gradient (and gradient of the sum) nn.Embedding 1.6% (256), weight[ids] 1.6% (256), index_select 0.2% (256), one_hot @ weight 0.2% (256)
#   1024 places: error of the gradient (and gradient of the sum) nn.Embedding 34.7% (256), weight[ids] 34.7% (256), index_select 0.2% (1024), one_hot @ weight 0.2% (1024)
#   4096 places: error of the gradient (and gradient of the sum) nn.Embedding 77.3% (256), weight[ids] 77.3% (256), index_select 0.2% (4096), one_hot @ weight 0.2% (4096)
#   16384 places: error of the gradient (and gradient of the sum) nn.Embedding 92.7% (256), weight[ids] 92.7% (256), index_select 0.2% (16384), one_hot @ weight 0.2% (16384)
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch.nn import functional as F
def gradient(look_up, ids, upstream):
    weight = torch.zeros(2, upstream.shape[1], dtype=upstream.dtype, requires_grad=True)
    look_up(ids, weight).backward(upstream)
    return weight.grad[1].double()
ways = {"nn.Embedding": F.embedding, "weight[ids]": lambda ids, weight: weight[ids],
    "index_select": lambda ids, weight: weight.index_select(0, ids),
    "one_hot @ weight": lambda ids, weight: F.one_hot(ids, 2).to(weight.dtype) @ weight}
for count in (64, 256, 1024, 4096, 16384):
    ids = torch.ones(count, dtype=torch.long)
    torch.manual_seed(0)
    upstream = (torch.randn(count, 256) + torch.randn(256)).bfloat16() / count
    exact, ones = upstream.double().sum(0), torch.ones(count, 1, dtype=torch.bfloat16)
    error = {}
    for name, look_up in ways.items():
        off = ((gradient(look_up, ids, upstream) - exact).norm() / exact.norm()).item()
        error[name] = off, gradient(look_up, ids, ones).item()
    print(f"{count} places: error of the gradient (and gradient of the sum)",
          ", ".join(f"{name} {off:.1%} ({total:.0f})" for name, (off, total) in error.items()))
    for name, (off, total) in error.items():
        right = name in ("index_select", "one_hot @ weight")
        assert off < 0.01 if right else (off > 0.2) == (count >= 1024), (name, off)
        assert total == (count if right else min(count, 256))
PY
