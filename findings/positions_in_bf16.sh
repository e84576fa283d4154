#!/usr/bin/env bash
# FSDP2 rounds positions, lengths and other numbers that a block is given to bf16
# Versions: torch 2.13.0, fully_shard on gloo with one process.
# Guess: MixedPrecisionPolicy(param_dtype=torch.bfloat16) computes with bf16 parameters. Integer and fp32
#   arguments of a block, such as positions, lengths or RoPE's angles, arrive as they were given.
# True: each floating-point tensor among the arguments of each wrapped block is cast. 64 positions from 20,001 on
#   become 2 numbers. Integers stay. cast_forward_inputs=False keeps fp32.
# Hurt: models that hand fp32 positions, log n or RoPE's angles from the top to each block.
# Output seen:
#   cast_forward_inputs=True: 64 positions arrive as torch.bfloat16 with 2 different numbers, as torch.int64 with 64
#   cast_forward_inputs=False: 64 positions arrive as torch.float32 with 64 different numbers, as torch.int64 with 64
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x, positions, integers):
        self.seen = positions, integers
        return self.linear(x.to(self.linear.weight.dtype))
positions = torch.arange(20_001, 20_065)
distinct = {}
for cast in (True, False):
    block = Block()
    fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=cast))
    block(torch.randn(64, 4), positions.float(), positions)
    fp32, integers = block.seen
    distinct[cast] = len(fp32.unique()), len(integers.unique())
    print(f"cast_forward_inputs={cast}: 64 positions arrive as {fp32.dtype} with {distinct[cast][0]} different numbers,",
          f"as {integers.dtype} with {distinct[cast][1]}")
dist.destroy_process_group()
assert distinct[True][0] <= 2 and distinct[True][1] == 64 and distinct[False] == (64, 64)
PY
