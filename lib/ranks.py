"""The ranks of a distributed run: the processes that torchrun starts."""
import datetime
import os

from lib.errors import UserError, explain, out_of_memory

# torch is imported where it is needed: prepare.py and plot.py do not need it.

# Set by torchrun. Unless both are numbers from 0 on, this is a single process.
RANK, WORLD_SIZE = 0, 1
if all(os.environ.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE")):
    RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def join(device):
    """
    Join the other ranks, if there are any and this was not done before. From then on a rank that
    waits for a lost one fails after an hour. (A rank may write a large checkpoint or read a long
    text for minutes, and torchrun ends the others at once if a process dies.)
    """
    import torch
    import torch.distributed as dist

    if RANK >= WORLD_SIZE:
        raise UserError(f"RANK={RANK} must be below WORLD_SIZE={WORLD_SIZE}: start several "
                        "processes with torchrun, or unset both for one process")
    if WORLD_SIZE == 1 or dist.is_initialized():
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise UserError(f"WORLD_SIZE={WORLD_SIZE} asks for several processes, but {name} is "
                            "not set: start them with torchrun, or unset RANK and WORLD_SIZE for "
                            "one process")
    # torch.distributed.nn keeps the default group that exists when it is imported. Imported later,
    # it would keep gloo's threads alive, which may abort a process that ends (pytorch#179291).
    import torch.distributed.nn  # noqa: F401
    # After a restart torchrun's store still holds the addresses of dead ranks, and half of our
    # restarts waited for these. So we prefix the keys with the number of the restart. On several
    # machines this number may differ (pytorch#135712): there the prefix is constant, and a restart
    # may have to be started again.
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
    backend = "nccl" if device.type == "cuda" else "gloo"
    with explain_lost_rank():
        store, rank, world_size = next(dist.rendezvous("env://"))
        dist.init_process_group(
            backend, store=dist.PrefixStore(f"attempt {restart}", store), rank=rank,
            world_size=world_size, timeout=datetime.timedelta(hours=1))
    # NCCL allocates its memory at the first reduction, so we do one before the model needs it
    all_reduce([torch.zeros(1, device=device)])


def explain_lost_rank():
    """Return a context in which a lost rank becomes a UserError on the others."""
    return explain(f"rank {RANK} cannot reach the other ranks; if one of them failed, its message "
                   "says why; run the same command again to continue", RuntimeError, status=1)


def all_reduce(tensors):
    """Sum each tensor over all ranks, in place."""
    if WORLD_SIZE == 1:
        return
    import torch.distributed as dist
    with explain_lost_rank():
        # all started at once, to wait for the network once
        for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
            work.wait()


def all_gather(item):
    """Return the list of the `item` of each rank. Items are pickled, so they should be small."""
    if WORLD_SIZE == 1:
        return [item]
    import torch.distributed as dist
    gathered = [None] * WORLD_SIZE
    with explain_lost_rank():
        dist.all_gather_object(gathered, item)
    return gathered


def must_agree(**items):
    """Raise a UserError on all ranks if an item differs between any rank and rank 0."""
    of_rank_0 = all_gather(items)[0]
    differ = [name for name, item in items.items() if item != of_rank_0[name]]
    for rank, names in enumerate(all_gather(differ)):
        if names:
            raise UserError(f"rank {rank} differs from rank 0 in {', '.join(names)}; start all "
                            "ranks with the same command, on a disk that all machines share")


def attempt(work, *args):
    """Return work(*args). If memory runs out on any rank, raise an OutOfMemoryError on all."""
    import torch
    try:
        result, failed = work(*args), False
    except Exception as e:
        if not out_of_memory(e):
            raise
        # the exception keeps the attempt's tensors alive, so we leave this block first
        result, failed = None, True
    if any(all_gather(failed)):
        torch.cuda.empty_cache()  # free the cached blocks of the failed sizes
        raise torch.OutOfMemoryError
    return result


def print0(*args):
    """Print on rank 0 only."""
    if RANK == 0:
        print(*args, flush=True)
