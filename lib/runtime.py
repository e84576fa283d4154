"""The device and what fits it, stop signals, and the version of the code."""
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Literal

import torch

from lib import ranks
from lib.errors import describe, explain
from lib.ranks import print0

DType = Literal["auto", "bfloat16", "float32"]


def code_version():
    """Return the commit of this code, after edits with "-dirty-" and 8 hex digits that identify
    them; "unknown" outside a git clone."""
    def git(*arguments):
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, timeout=10, check=True).stdout.strip()

    try:
        version = git("describe", "--always", "--dirty").decode()
        if version.endswith("-dirty"):
            version += f"-{zlib.crc32(git('diff', 'HEAD')):08x}"
        return version
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def catch_signals():
    """Return a list to which SIGTERM or Ctrl-C appends its number; the caller saves and stops when
    it can. A second signal exits at once."""
    received = []

    def handle(number, frame):
        if received:
            sys.exit(128 + number)
        received.append(number)
        if ranks.RANK == 0:  # os.write, because print may not be called in a signal handler
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
    ranks.join(device)
    return device


def keep_freed_memory():
    """
    Keep the memory of large tensors in this process. glibc returns it to the system, which clears
    it before the next use: an update on a CPU took 2.46 s instead of 1.70.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other libraries lack mallopt
        mallopt, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = ctypes.CDLL(None).mallopt, -3, -1
        # before glibc 2.35 the first is at most 32 MiB
        if mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_THRESHOLD, 2**25):
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def dtype_name(device, dtype):
    """Return the type of matrix products, bfloat16 or float32, for `dtype`, which may be auto."""
    if dtype != "auto":
        return dtype
    # bf16 if the hardware multiplies it; without such hardware it is slower than fp32
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        fast = able.get("avx512_bf16", False) or able.get("amx_bf16", False)
    return "bfloat16" if fast else "float32"


def autocast(device, dtype, cache=True):
    """Return the context in which the model runs. Parameters stay fp32; `cache` keeps their bf16
    copies for the next use."""
    enabled = dtype_name(device, dtype) == "bfloat16"
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


def flops_per_token(model, T):
    """Return the training FLOPs per token of a GPT at length T (PaLM, Appendix B)."""
    # forward takes 2 per weight and backward 4; masked keys are counted as if computed
    keys = sum(min(T, block.attn.max_keys) for block in model.blocks)
    matrices = [p.numel() for p in model.parameters() if p.dim() >= 2]
    weights = sum(matrices) - model.wte.weight.numel()  # the embedding is a lookup
    return 6 * weights + 12 * model.config.n_embd * keys


def tokens_that_fit(model, free, compiled):
    """Return how many tokens of a micro-batch fit in `free` bytes beside a GPT, in training."""
    # With the paper's model we measured 4.8, 10.6 and 33.9 GiB on an H100 for 4, 16 and 64
    # sequences of 1,024 tokens: 2.9 GiB and .485 GiB a sequence. Uncompiled code does not keep the
    # logits, but more of each layer.
    config, logits, layer_bytes = model.config, 6 * model.config.vocab_size, 23
    if not compiled:
        logits, layer_bytes = 0, 66
    bytes_per_token = logits + layer_bytes * config.n_layer * config.n_embd
    # gradients, AdamW's two moments and a copy in bf16 (4, 8 and 2 bytes), and what the loss needs
    fixed = 14 * model.num_params() + 2**28
    return max(0, int((0.92 * free - fixed) / bytes_per_token))  # 8 % for fragmentation


def rows_at_once(model, max_rows, compiled):
    """Return how many sequences a rank computes at once in training, up to `max_rows`. It is a
    power of two, which can be halved repeatedly if memory runs out."""
    device = model.wte.weight.device
    tokens = 2**12  # a CPU is not faster with more
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # 64 sequences of the paper's model trained 1.2 times as fast on an H200 as 16 on an H100
        tokens = min(2**16, tokens_that_fit(model, free, compiled))
    rows = min(max_rows, max(1, tokens // model.config.block_size))
    rows = min(ranks.all_gather(rows))  # the ranks halve it together
    return 2 ** (rows.bit_length() - 1)


def compiled(function, device):
    """Return a function compiled by torch.compile, or as it is where that does not work."""
    problem = ""
    try:  # It needs a C compiler, Python's headers, a GPU that Triton supports, and more.
        torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(1, device=device))
    except Exception as e:
        problem = describe(e)
    problems = list(filter(None, ranks.all_gather(problem)))  # of all ranks, which decide alike
    if problems:
        print0(f"note: torch.compile does not work here ({problems[0]}); training without it")
        return function
    return torch.compile(function, dynamic=False)


def rows_of_logits(device, vocab_size, training=False):
    """Return the number of rows of logits that are computed at once."""
    # rows x vocab is about 2^27 (2^24 for evaluations on a CPU). A power of two: 4,096 rows of 384
    # took 65 ms in chunks of 512, and 178 ms in chunks of 333.
    numbers = 2**27 if training or device.type != "cpu" else 2**24
    return 2 ** (max(128, numbers // vocab_size).bit_length() - 1)
