"""Device and precision, stop signals, and distributed ranks."""
import contextlib
import ctypes
import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from lib.errors import UserError, explain, out_of_memory

# Set by torchrun. If only one of the two is set, this is a single process.
RANK, WORLD_SIZE = 0, 1
if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
    RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DType = Literal["auto", "bfloat16", "float32"]


def code_version():
    """Return the commit of this code, with "-dirty" after edits; "unknown" outside a git clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def install_stop_flag():
    """Return a list to which SIGTERM or Ctrl-C appends its number; the caller saves and stops when
    it can. A second signal exits at once."""
    received = []

    def handle(number, frame):
        if received:
            sys.exit(128 + number)
        received.append(number)
        if RANK == 0:  # os.write, because print may not be called in a signal handler
            os.write(2, b"stopping and saving after an update; a second signal stops at once and "
                        b"saves nothing\n")

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return received


# -----------------------------------------------------------------------------
# device and precision


def setup(device):
    """Return the torch.device to compute on (auto: the fastest here), and join the other ranks."""
    if device == "auto":
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    with explain(f"device {device} does not work on this machine; take --device=cpu, or no more "
                 "ranks than it has GPUs"):
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:  # each rank of a machine has its own GPU
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.ones(1, device=device).item()  # an installed device may still fail
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif device.type == "cpu":
        keep_freed_memory()
    if RANK >= WORLD_SIZE:
        raise UserError(f"RANK={RANK} must be below WORLD_SIZE={WORLD_SIZE}: start several "
                        "processes with torchrun, or unset both for one process")
    if WORLD_SIZE > 1 and not dist.is_initialized():
        join_ranks("nccl" if device.type == "cuda" else "gloo")
        # NCCL allocates its memory at the first reduction, so we do one before the model needs it
        all_reduce([torch.zeros(1, device=device)])
    return device


def keep_freed_memory():
    """
    Keep the memory of large tensors in this process. glibc returns it to the system, which clears
    it before the next use: an update on a CPU took 2.46 s instead of 1.70.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other libraries lack mallopt
        mallopt = ctypes.CDLL(None).mallopt
        # M_MMAP_THRESHOLD (before glibc 2.35 at most 32 MiB), M_TRIM_THRESHOLD
        if mallopt(-3, 2**30) or mallopt(-3, 2**25):
            mallopt(-1, 2**31 - 1)


def get_dtype(device, dtype):
    """Return the torch.dtype of matrix products, for `dtype` auto, bfloat16 or float32."""
    # auto: bf16 if the hardware multiplies it; without such hardware it is slower than fp32
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        fast = able.get("avx512_bf16", False) or able.get("amx_bf16", False)
    bf16 = dtype == "bfloat16" or dtype == "auto" and fast
    return torch.bfloat16 if bf16 else torch.float32


def dtype_name(device, dtype):
    """Return the name of what `get_dtype` returns: bfloat16 or float32."""
    return str(get_dtype(device, dtype)).removeprefix("torch.")


def autocast(device, dtype, cache=True):
    """Return the context in which the model runs. Parameters stay fp32; `cache` keeps their bf16
    copies for the next use."""
    enabled = get_dtype(device, dtype) == torch.bfloat16
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=cache)


# Dense bf16 peak in FLOP/s, from data sheets. The first key that occurs in the device's name
# counts. Unknown devices report no MFU.
PEAK_FLOPS = {
    "B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12,
    "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}


def peak_flops(device):
    """Return the peak FLOP/s of a CUDA device, or None if it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


def rows_of_logits(device, vocab_size, training=False):
    """Return the number of rows of logits that are computed at once."""
    # rows x vocab is about 2^27 (2^24 for evaluations on a CPU). A power of two: 4,096 rows of 384
    # took 65 ms in chunks of 512, and 178 ms in chunks of 333.
    numbers = 2**27 if training or device.type != "cpu" else 2**24
    return 2 ** (max(128, numbers // vocab_size).bit_length() - 1)


# -----------------------------------------------------------------------------
# ranks


def join_ranks(backend):
    """Join the other ranks. A rank that waits for a lost one fails after five minutes."""
    # torch.distributed.nn keeps the default group that exists when it is imported. Imported later,
    # it would keep gloo's threads alive, which may abort a process that ends (pytorch#179291).
    import torch.distributed.nn  # noqa: F401
    # torchrun's store survives a restart, and with it the addresses of the lost ranks. Half of the
    # restarts waited for these addresses. So each restart has its own prefix for all keys in the
    # store. With several machines the count of restarts may differ (pytorch#135712), so there all
    # restarts share one prefix.
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
    with explain_lost_rank():
        store, rank, world_size = next(dist.rendezvous("env://"))
        dist.init_process_group(
            backend, store=dist.PrefixStore(f"attempt {restart}", store), rank=rank,
            world_size=world_size, timeout=datetime.timedelta(minutes=5))


def explain_lost_rank():
    """Return a context in which a lost rank becomes a UserError on the others."""
    return explain(f"rank {RANK} cannot reach the other ranks; if one of them failed, its message "
                   "says why; run the same command again to continue", RuntimeError, status=1)


def all_reduce(tensors):
    """Sum each tensor over all ranks, in place."""
    if WORLD_SIZE > 1:
        with explain_lost_rank():
            # all started at once, to wait for the network once
            for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
                work.wait()


def all_gather(item):
    """Return the list of the `item` of each rank. Items are pickled, so they should be small."""
    gathered = [item] * WORLD_SIZE
    if WORLD_SIZE > 1:
        with explain_lost_rank():
            dist.all_gather_object(gathered, item)
    return gathered


def attempt(work, *args):
    """Return work(*args). If memory runs out on any rank, raise an OutOfMemoryError on all."""
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
