#!/usr/bin/env bash
# With rotary-embedding-torch bf16 queries share positions beyond token 256, unless fp32 ones came first
# Versions: rotary-embedding-torch 0.9.1, torch 2.13.0 (CPU).
# Guess: the module's frequencies are fp32, so bf16 queries, as under autocast, are rotated by exact angles and rounded at
#   the end, with an error of .2 to .4 %.
# True: rotate_queries_or_keys counts the positions in the dtype of its input. bf16 has 8 bits, so from 256 on 2
#   neighbours get one position, from 512 on 4, from 1,024 on 8: RoPE then says nothing of their order. The angles are
#   kept, so a call with fp32 cures all later ones of its length, and the order of calls decides what a model computes.
# Hurt: training and evaluation in bf16 with more than 256 tokens. A checkpoint that was trained in bf16 is another model
#   in fp32, and after one long fp32 batch.
# Output seen:
#   tokens 256: rotations that differ 256, error 0.2 %; after an fp32 call 256, error 0.2 %
#   tokens 1,024: rotations that differ 513, error 21.4 %; after an fp32 call 1024, error 0.2 %
#   tokens 8,192: rotations that differ 897, error 61.4 %; after an fp32 call 8192, error 0.2 %
#   positions that token 4,090 and its 7 successors are given: 4096 4096 4096 4096 4096 4096 4096 4096
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 rotary-embedding-torch==0.9.1 einops==0.8.2

"$python" - <<'PY'
import torch
from rotary_embedding_torch import RotaryEmbedding
q = torch.randn(64, generator=torch.Generator().manual_seed(0)).bfloat16()  # the same at each position
for n in (256, 1024, 8192):
    qs = q.expand(1, 1, n, 64)
    rope, warm = RotaryEmbedding(dim=64), RotaryEmbedding(dim=64)
    exact = warm.rotate_queries_or_keys(qs.float())
    shown = []
    for module in (rope, warm):
        rotated = module.rotate_queries_or_keys(qs)
        assert rotated.dtype == torch.bfloat16
        error = ((rotated.float() - exact).norm() / exact.norm()).item()
        shown += [len(rotated[0, 0].unique(dim=0)), error]
    print(f"tokens {n:,}: rotations that differ {shown[0]}, error {shown[1]:.1%}; after an fp32 call {shown[2]}, "
          f"error {shown[3]:.1%}".replace("%", " %"))
    assert shown[3] < 0.005 and (shown[1] < 0.005) == (n == 256)
    assert n == 256 or shown[0] < 0.6 * n
print("positions that token 4,090 and its 7 successors are given:",
      *rope.get_seq_pos(8192, dtype=torch.bfloat16)[4090:4098].int().tolist())
PY
