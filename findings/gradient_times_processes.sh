#!/usr/bin/env bash
# The gradient of mse_loss of a sharded tensor is too large by the number of processes
# Versions: torch 2.13.0 (DTensor, 4 or 5 rows in two gloo processes on a CPU).
# Guess: F.mse_loss of a DTensor has the loss and the gradient of one tensor, as x.square().mean() and l1_loss have.
# True: with shards of the same size the loss is right, and the gradient is that of each shard's own mean: twice too
#   large in two processes. With 5 rows the loss is the mean of two means, and the rows count differently.
#   smooth_l1_loss, huber_loss and binary_cross_entropy do the same.
# Hurt: tensor or sequence parallel training with such a loss: with SGD or clipping the rate is another one for each
#   number of processes, and beside other losses this one weighs too much, while its logged value is right.
# Output seen:
#   4 rows, mse_loss: loss times 1.00, gradient of each row times 2.00 2.00 2.00 2.00
#   4 rows, smooth_l1_loss: loss times 1.00, gradient of each row times 2.00 2.00 2.00 2.00
#   4 rows, huber_loss: loss times 1.00, gradient of each row times 2.00 2.00 2.00 2.00
#   4 rows, binary_cross_entropy: loss times 1.00, gradient of each row times 2.00 2.00 2.00 2.00
#   4 rows, l1_loss: loss times 1.00, gradient of each row times 1.00 1.00 1.00 1.00
#   5 rows, mse_loss: loss times 1.14, gradient of each row times 1.67 1.67 1.67 2.50 2.50
#   5 rows, smooth_l1_loss: loss times 1.14, gradient of each row times 1.67 1.67 1.67 2.50 2.50
#   5 rows, huber_loss: loss times 1.14, gradient of each row times 1.67 1.67 1.67 2.50 2.50
#   5 rows, binary_cross_entropy: loss times 1.11, gradient of each row times 1.67 1.67 1.67 2.50 2.50
#   5 rows, l1_loss: loss times 1.00, gradient of each row times 1.00 1.00 1.00 1.00 1.00
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - "$work" <<'PY'
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.tensor import Shard, distribute_tensor
def losses(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    for rows in (4, 5):
        values = torch.arange(1, rows + 1) / 8
        for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "l1_loss"):
            whole = values.clone().requires_grad_()
            loss = getattr(F, name)(whole, torch.zeros(rows))
            loss.backward()
            sharded, target = (distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (values, torch.zeros(rows)))
            of_shards = getattr(F, name)(sharded.requires_grad_(), target).full_tensor()
            of_shards.backward()
            ratios = (sharded.grad.full_tensor() / whole.grad).tolist()
            if rank == 0:
                print(f"{rows} rows, {name}: loss times {of_shards / loss:.2f}, gradient of each row times",
                      *(f"{ratio:.2f}" for ratio in ratios))
            right = all(abs(ratio - 1) < 1e-3 for ratio in ratios)
            assert right == (name == "l1_loss")
            assert rows == 5 or right or all(abs(ratio - 2) < 1e-3 for ratio in ratios)
    dist.destroy_process_group()
mp.start_processes(losses, nprocs=2, start_method="fork")
PY
