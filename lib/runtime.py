"""Program exit, device and precision, distributed ranks, and files."""
import contextlib
import ctypes
import datetime
import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

# torchrun says which of how many processes this one is; without it there is one
RANK, WORLD_SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
# what parsing JSON and looking into it raise where it holds something else than was expected
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
DType = Literal["auto", "bfloat16", "float32"]
CPU_INFO = Path("/proc/cpuinfo")
FAST_MKL = ("echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' | gcc -shared -fPIC -x c - "
            "-o intel.so && export LD_PRELOAD=$PWD/intel.so")


class UserError(Exception):
    """What went wrong and what to do, in one line; `launch` prints it and exits with `status`."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status


def launch(main):
    """Run `main()` as a program: a foreseeable failure is one line on stderr, no traceback."""
    try:
        return main()
    except UserError as e:
        message, status = str(e), e.status
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    except BrokenPipeError:  # `| head` has read enough; nothing is left to flush
        os._exit(141)
    except Exception as e:
        if out_of_memory(e):
            # training and evaluations have halved what they compute at once before they end here
            message = f"out of memory ({describe(e)}); take a smaller model or a shorter context"
        elif isinstance(e, OSError) and e.strerror:  # no space, no permission, no such file
            message = f"{e.filename or 'operating system'}: {e.strerror}"
        else:
            raise  # a bug of ours keeps its traceback
        status = 2
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.stdout.flush()  # or a piped error would stand before what was printed earlier
    line = "error: " * (status < 128) + " ".join(message.split())
    print(line, file=sys.stderr)
    tell_torchrun(line)
    sys.exit(status)


def tell_torchrun(line):
    """Give torchrun the line of a rank that fails: it is the last that torchrun itself prints."""
    # Without it forty lines of torchrun's own traceback end in an exit code, and the line that
    # explains it stands above them. torchrun looks for this form (torch.distributed.elastic).
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        about = {"py_callstack": line, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):  # a full disk: the line is on the screen already
            Path(path).write_text(json.dumps({"message": {"message": line, "extraInfo": about}}))


def out_of_memory(error):
    """Whether an exception says that memory ran out: of a GPU, of Python, of torch on a CPU."""
    return (isinstance(error, (torch.OutOfMemoryError, MemoryError))
            or isinstance(error, OSError) and error.errno == errno.ENOMEM
            # CUDA, Triton, MPS; cuBLAS; torch on a CPU; oneDNN, which has no other words for it
            or isinstance(error, RuntimeError) and any(words in str(error) for words in (
                "out of memory", "ALLOC_FAILED", "can't allocate memory",
                "could not create a primitive")))


def describe(error):
    """An exception of somebody else's in a few words."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextlib.contextmanager
def explain(message, errors=Exception, status=2):
    """Turn `errors` raised in the block into a UserError with `message`."""
    try:
        yield
    except errors as e:
        if isinstance(e, UserError) or out_of_memory(e):  # which say it themselves
            raise
        raise UserError(f"{message} ({describe(e)})", status) from e


def install_stop_flag():
    """A list into which SIGTERM or Ctrl-C puts its number; a second one exits at once."""
    received = []  # only noted here: a save in the middle of an update would tear it

    def handle(number, frame):
        if received:
            sys.exit(128 + number)
        received.append(number)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return received


# -----------------------------------------------------------------------------
# device and precision


def setup(device):
    """The torch.device to compute on (auto: the fastest here), proved to work; joins the ranks."""
    if device == "auto":
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    with explain(f"device {device} does not work here; take --device=cpu"):
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:  # a GPU for each rank of a machine
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.ones(1, device=device).item()  # a device that is listed need not work
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif device.type == "cpu":
        # glibc returns large tensors to the system and gets them back as pages that are cleared
        # anew: an update takes 2.46 s and not 1.70; another C library stays as it was
        with contextlib.suppress(AttributeError, OSError, TypeError):
            mallopt = ctypes.CDLL(None).mallopt
            # M_MMAP_THRESHOLD (glibc before 2.35 takes at most 32 MiB), M_TRIM_THRESHOLD
            if mallopt(-3, 2**30) or mallopt(-3, 2**25):
                mallopt(-1, 2**31 - 1)
        if mkl_is_slow():
            print0(f"MKL takes slow kernels on this AMD processor; this makes attention 2 to 3 "
                   f"times as fast: {FAST_MKL}")
    if WORLD_SIZE > 1 and not dist.is_initialized():
        join_ranks("nccl" if device.type == "cuda" else "gloo")
        # NCCL takes its memory at the first of these: while there is some
        all_reduce([torch.zeros(1, device=device)])
    return device


def cpu_info():
    """Return what Linux says about the processor; empty on other systems."""
    return CPU_INFO.read_text() if CPU_INFO.exists() else ""


def mkl_is_slow():
    """Return whether MKL, which computes attention on a CPU, takes slower kernels than it could."""
    # MKL asks who made the processor. FAST_MKL answers in its place. It was measured on an AMD
    # processor with AVX-512 (experiments/speed/README.md), so others get no advice.
    info = cpu_info()
    return ("AuthenticAMD" in info and "avx512f" in info and torch.backends.mkl.is_available()
            and not hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true"))  # already preloaded


def get_dtype(device, dtype):
    """What products are computed in, for `dtype` auto, bfloat16 or float32."""
    # auto: bf16 where the hardware multiplies it; elsewhere it is slower than fp32
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cpu":
        flags = cpu_info()
        fast = "avx512_bf16" in flags or "amx_bf16" in flags
    bf16 = dtype == "bfloat16" or dtype == "auto" and fast
    return torch.bfloat16 if bf16 else torch.float32


def dtype_name(device, dtype):
    """The same as text: bfloat16 or float32."""
    return str(get_dtype(device, dtype)).removeprefix("torch.")


def autocast(device, dtype, cache=True):
    """The context to run the model in; parameters stay fp32. cache: keep bf16 copies of them."""
    enabled = get_dtype(device, dtype) == torch.bfloat16  # no loss scaling: bf16 has fp32's range
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=cache)


def peak_flops(device, table):
    """FLOP/s of a CUDA device by the first name in `table` that its own contains, or None."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in table.items() if part in name), None)


def logits_at_once(device, vocab_size, training=False):
    """Rows of logits per chunk: 0.3 GB of them, or 30 MB in an evaluation on a CPU."""
    # a power of two: 4,096 rows of 384 took 65 ms in chunks of 512 and 178 ms in chunks of 333
    numbers = 2**27 if training or device.type != "cpu" else 2**24
    return 2 ** (max(128, numbers // vocab_size).bit_length() - 1)


# -----------------------------------------------------------------------------
# ranks


def join_ranks(backend):
    """Join the other ranks. One that waits for a lost one fails after five minutes."""
    # After a restart torchrun's store still holds the addresses of lost ranks, and every second
    # time the new ones wait for them. The count of restarts tells them apart, where all ranks
    # belong to one torchrun (several machines: pytorch#135712).
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
    with together():
        store, rank, world_size = next(dist.rendezvous("env://"))
        dist.init_process_group(
            backend, store=dist.PrefixStore(f"attempt {attempt}", store), rank=rank,
            world_size=world_size, timeout=datetime.timedelta(minutes=5))


def together():
    """Report a lost rank as one line on every other rank."""
    return explain(f"rank {RANK} cannot reach the others; where one failed its message says why; "
                   "the same command continues", RuntimeError, status=1)


def all_reduce(tensors):
    """Sum each tensor over all ranks, in place."""
    if WORLD_SIZE > 1:
        with together():
            # all at once: one after the other would wait for the network a hundred times
            for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
                work.wait()


def all_gather(item):
    """[the `item` of each rank]"""
    gathered = [item] * WORLD_SIZE
    if WORLD_SIZE > 1:  # pickled: records of an evaluation are small
        with together():
            dist.all_gather_object(gathered, item)
    return gathered


def attempt(work, *args):
    """work(*args), or an OutOfMemoryError on all ranks where memory ran out on any of them."""
    try:
        result, failed = work(*args), False
    except Exception as e:
        if not out_of_memory(e):
            raise
        # `e` keeps the tensors of the failed attempt alive, so go on outside of this block
        result, failed = None, True
    if any(all_gather(failed)):
        torch.cuda.empty_cache()  # free cached blocks of the sizes before
        raise torch.OutOfMemoryError
    return result


def print0(*args):
    """print, on rank 0."""
    if RANK == 0:
        print(*args, flush=True)


# -----------------------------------------------------------------------------
# files: a reader never sees half of one


def writing(path):
    """A file that cannot be written, for want of space or permission, is one line naming it."""
    # open() and write() do not name the file in what they raise when a disk is full
    return explain(f"cannot write {path}; what was there stays", OSError)


@contextlib.contextmanager
def atomic_write(path, mode="wb", previous=None):
    """
    Open a temporary file beside `path` that takes its name when the block ends well. What was there
    is lost, or stays as `previous`.
    """
    path = Path(path)
    # one name, so that what a kill leaves behind is overwritten and does not pile up
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())  # or after a power cut the new name may hold nothing
            if previous and path.exists():  # not renamed: at any moment there is one at `path`
                link = path.with_name(f".{path.name}.link")
                link.unlink(missing_ok=True)  # os.link replaces nothing
                os.link(path, link)
                os.replace(link, previous)
                link.unlink(missing_ok=True)  # still there if both were one file, after a kill here
            os.replace(temporary, path)
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)  # or the new name itself may be lost
            os.close(folder)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path, content):
    """Write a result file, all or nothing; rank 0 does it for all."""
    write_lines(path, [content])


def write_lines(path, records):
    """The same of a .jsonl, a record a line."""
    if RANK == 0:
        with atomic_write(path, "w") as f:
            f.writelines(json.dumps(record) + "\n" for record in records)


def read_lines(path):
    """The records of a result file. A last line that a kill has cut short is ignored."""
    with explain(f"{path} is damaged; move it away", ValueError):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n") or path.suffix == ".json"]
