#!/usr/bin/env bash
# local-attention's autopad: without a mask, the zeros that it adds are attended to
# Versions: local-attention 1.11.2, torch 2.13.0 (window 8, 1,000 random texts of each length).
# Guess: autopad=True makes any length work: it fills the last window, computes, and cuts the result. A text without
#   padding needs no mask.
# True: without a mask and without causal=True the added zeros are keys like others, with the score 0 and the value
#   0: the last windows' outputs are pulled to 0, the more so the more is added. A mask of ones, or causal=True, is right.
# Hurt: encoders with local attention: one text's outputs depend on the remainder of its length.
# Output seen:
#   both sides, 24 tokens: error without a mask 0.0%, with a mask of ones 0.0%; norm of the last output 1.00 times the right one
#   both sides, 23 tokens: error without a mask 2.9%, with a mask of ones 0.0%; norm of the last output 0.96 times the right one
#   both sides, 21 tokens: error without a mask 8.5%, with a mask of ones 0.0%; norm of the last output 0.87 times the right one
#   both sides, 17 tokens: error without a mask 17.3%, with a mask of ones 0.0%; norm of the last output 0.65 times the right one
#   causal, 24 tokens: error without a mask 0.0%, with a mask of ones 0.0%; norm of the last output 1.00 times the right one
#   causal, 23 tokens: error without a mask 0.0%, with a mask of ones 0.0%; norm of the last output 1.00 times the right one
#   causal, 21 tokens: error without a mask 0.0%, with a mask of ones 0.0%; norm of the last output 1.00 times the right one
#   causal, 17 tokens: error without a mask 0.0%, with a mask of ones 0.0%; norm of the last output 1.00 times the right one
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 local-attention==1.11.2

"$python" - <<'PY'
import torch
from local_attention import LocalAttention
def reference(q, k, v, causal):
    place = torch.arange(q.shape[1])
    window = place // 8
    seen = ((window[:, None] - window) <= 1) & ((window[:, None] - window) >= -1)
    if causal:
        seen &= place <= place[:, None]
    return (q @ k.mT / 4).masked_fill(~seen, -torch.inf).softmax(-1) @ v
def error(a, b):
    return ((a - b).norm() / b.norm()).item()
for causal in (False, True):
    attention = LocalAttention(dim=16, window_size=8, causal=causal, look_backward=1, look_forward=0 if causal else 1,
        autopad=True, use_rotary_pos_emb=False)
    for length in (24, 23, 21, 17):
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1000, length, 16)
        plain = attention(q, k, v)
        masked = attention(q, k, v, mask=torch.ones(1000, length, dtype=torch.bool))
        right = reference(q, k, v, causal)
        norm = (plain[:, -1].norm(dim=-1) / right[:, -1].norm(dim=-1)).mean().item()
        print(f"{'causal' if causal else 'both sides'}, {length} tokens: error without a mask {error(plain, right):.1%}, with a "
              f"mask of ones {error(masked, right):.1%}; norm of the last output {norm:.2f} times the right one")
        assert error(masked, right) < 1e-5 and (error(plain, right) > 0.01) == (not causal and length != 24)
PY
