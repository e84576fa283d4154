#!/usr/bin/env bash
# Without torch.compile, flex_attention ignores the blocks of a BlockMask and attends to all keys
# Versions: torch 2.13.0 (512 tokens; each block of 128 queries may see its own block of keys).
# Guess: BlockMask.from_kv_blocks, without a mask_mod, lets each query see the blocks that it lists, compiled or not.
#   to_dense(), sparsity() and the printed picture say so.
# True: not compiled, flex_attention looks at mask_mod alone, and the default one hides nothing: the result is full
#   attention. Compiled, the blocks are obeyed. The warning without compilation is about speed and memory.
# Hurt: block-sparse attention for long contexts with selected blocks: its tests and small experiments without
#   compilation show the quality of full attention.
# Output seen:
#   blocks that to_dense() shows: [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], sparsity 75%
#   not compiled: off from attention within the blocks by 0.67, from full attention by 3.3e-07
#   compiled: off from attention within the blocks by 2.4e-07, from full attention by 0.67
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import shutil
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, 512, 16) for _ in range(3))
own = torch.zeros(1, 1, 4, 4, dtype=torch.int32)
own[..., 0] = torch.arange(4)
mask = BlockMask.from_kv_blocks(torch.ones(1, 1, 4, dtype=torch.int32), own, BLOCK_SIZE=128)
print(f"blocks that to_dense() shows: {mask.to_dense()[0, 0].tolist()}, sparsity {mask.sparsity():.0f}%")
blocks = torch.block_diag(*torch.ones(4, 128, 128)).bool()
expected, full = sdpa(q, k, v, attn_mask=blocks), sdpa(q, k, v)
def off(attention):
    output = attention(q, k, v, block_mask=mask)
    return [(output - other).abs().max().item() for other in (expected, full)]
eager = off(flex_attention)
print("not compiled: off from attention within the blocks by {:.2g}, from full attention by {:.2g}".format(*eager))
assert eager[0] > 0.1 and eager[1] < 1e-5
if shutil.which("g++"):  # the compiler needs one
    compiled = off(torch.compile(flex_attention))
    print("compiled: off from attention within the blocks by {:.2g}, from full attention by {:.2g}".format(*compiled))
    assert compiled[0] < 1e-5 and compiled[1] > 0.1
PY
