#!/usr/bin/env bash
# cumsum(-1) of a sharded tensor starts again at each shard, cumsum(1) does not
# Versions: torch 2.13.0 (DTensor, two gloo processes on a CPU).
# Guess: dimension -1 of a matrix is dimension 1. An operation along the sharded dimension gathers or is refused, as
#   softmax, sort and topk do.
# True: the rule of cumsum, cumprod and logcumsumexp compares the dimension that it is given with the one that is
#   sharded, and -1 is another: each process adds up its own part, and the result is labelled as one tensor.
# Hurt: positions, masks and nucleus sampling by cumsum(-1) over a sharded vocabulary or sequence.
# Output seen:
#   cumsum: dimension 1: 1 2 3 4 5 6; dimension -1: 1 2 3 1 2 3
#   cumprod: dimension 1: 2 4 8 16 32 64; dimension -1: 2 4 8 2 4 8
#   logcumsumexp: dimension 1: 1 1.69 2.1 2.39 2.61 2.79; dimension -1: 1 1.69 2.1 1 1.69 2.1
#   softmax: dimension 1: 0.167 0.167 0.167 0.167 0.167 0.167; dimension -1: 0.167 0.167 0.167 0.167 0.167 0.167
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - "$work" <<'PY'
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
def both(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    ones = torch.ones(1, 6)
    for operation in ("cumsum", "cumprod", "logcumsumexp", "softmax"):
        rows = {}
        for placement in (Replicate(), Shard(1)):
            sharded = distribute_tensor(2 * ones if operation == "cumprod" else ones, mesh, [placement])
            for dimension in (1, -1):
                rows[placement, dimension] = getattr(sharded, operation)(dimension).full_tensor()[0]
        if rank == 0:
            texts = [" ".join(f"{x:.3g}" for x in rows[Shard(1), dimension].tolist()) for dimension in (1, -1)]
            print(f"{operation}: dimension 1: {texts[0]}; dimension -1: {texts[1]}")
        whole = rows[Replicate(), 1]
        assert torch.allclose(rows[Shard(1), 1], whole) and torch.allclose(rows[Replicate(), -1], whole)
        assert torch.allclose(rows[Shard(1), -1], whole) == (operation == "softmax")
    dist.destroy_process_group()
mp.start_processes(both, nprocs=2, start_method="fork")
PY
