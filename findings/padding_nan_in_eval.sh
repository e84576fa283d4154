#!/usr/bin/env bash
# A row of padding alone is NaN in eval and finite in training
# Versions: torch 2.13.0, CPU, nn.MultiheadAttention.
# Guess: without dropout train() and eval() compute the same function.
# True: eval under no_grad takes a fast path of its own. Where every key is masked it returns NaN; the
#   path of train() uses scaled_dot_product_attention, which returns 0 for such a row.
# Hurt: validation of a model that trains well: one empty row makes the batch's mean loss NaN.
# Output seen:
#   first row differs by 9e-08; second row: train 0.0 eval nan
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
torch.manual_seed(0)
attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
x = torch.randn(2, 5, 16)
padding = torch.tensor([[False] * 5, [True] * 5])  # the second row has no real token
with torch.no_grad():
    train, _ = attention.train()(x, x, x, key_padding_mask=padding, need_weights=False)
    evaluated, _ = attention.eval()(x, x, x, key_padding_mask=padding, need_weights=False)
print("first row differs by", f"{(train[0] - evaluated[0]).abs().max():.0e};",
      "second row: train", train[1, 0, 0].item(), "eval", evaluated[1, 0, 0].item())
assert train.isfinite().all() and evaluated[0].isfinite().all() and evaluated[1].isnan().all()
PY
