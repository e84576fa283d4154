#!/usr/bin/env bash
# item(), float() and bool() of a sharded tensor's sum are the numbers of one process
# Versions: torch 2.13.0 (DTensor, two gloo processes on a CPU).
# Guess: x.norm().item() is the norm of x, and `if x.isnan().any():` goes the same way in all processes, however x is
#   sharded: DTensor has the semantics of one tensor.
# True: the reduced tensor is still a sum, mean or maximum to be taken over the processes, and item(), float() and
#   bool() read the part of the own process without a word. full_tensor() is right.
# Hurt: logged norms of weights and gradients, and checks for NaN: one process skips the update, the other does not,
#   and their copies of the model drift apart.
# Output seen:
#   sum: process 0 reads 3.0, process 1 7.0, full_tensor() is 10.0
#   mean: process 0 reads 1.5, process 1 3.5, full_tensor() is 2.5
#   norm: process 0 reads 2.236, process 1 5.0, full_tensor() is 5.477
#   isnan().any(): process 0 reads False, process 1 True, full_tensor() is True
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - "$work" <<'PY'
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import Shard, distribute_tensor
def read(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    whole = torch.tensor([1.0, 2.0, 3.0, float("nan")])
    x, finite = (distribute_tensor(values, mesh, [Shard(0)]) for values in (whole, whole.nan_to_num(4.0)))
    mine = [finite.sum().item(), finite.mean().item(), round(finite.norm().item(), 3), bool(x.isnan().any())]
    full = [value.full_tensor().item() for value in (finite.sum(), finite.mean(), finite.norm(), x.isnan().any())]
    seen = [None, None]
    dist.all_gather_object(seen, mine)
    if rank == 0:
        for name, first, second, right in zip(("sum", "mean", "norm", "isnan().any()"), *seen, full):
            print(f"{name}: process 0 reads {first}, process 1 {second}, full_tensor() is {right if right is True else round(right, 3)}")
        assert seen[0][0] == 3.0 and seen[1][0] == 7.0 and full[0] == 10.0
        assert seen[0][3] is False and seen[1][3] is True and full[3] is True
    dist.destroy_process_group()
mp.start_processes(read, nprocs=2, start_method="fork")
PY
