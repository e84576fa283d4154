"""What surrounds the mathematics: device and dtype, ranks, ends of a program, signals, atomic files. No model, no data."""
import contextlib
import ctypes
import hashlib
import json
import math
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist


class UserError(Exception):
    """What went wrong and what to do, in one line. `launch` prints it and ends the program with `status`: 2 for a mistake of the user."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status


def launch(main):
    """Run `main()` as a program: every foreseeable failure ends in one line on stderr and an exit status, with no traceback."""
    try:
        main()
    except UserError as e:
        end(str(e), e.status)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as e:  # no space, no permission, no such file
        if e.strerror is None:
            raise
        end(f"{e.filename or 'operating system'}: {e.strerror}", 2)
    except (torch.OutOfMemoryError, MemoryError) as e:
        end(f"out of memory ({describe(e)}); ask for less at once, or for a smaller model", 2)
    except RuntimeError as e:
        if "can't allocate memory" not in str(e):  # what torch calls it on a CPU
            raise
        end(f"out of memory ({describe(e)}); ask for less at once, or for a smaller model", 2)
    except KeyboardInterrupt:
        end("interrupted", 130)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def describe(error):
    """An exception of somebody else's in a few words."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0][:200]}"


def end(message, status):
    if print0.line_is_open:
        print()
    sys.stdout.flush()
    print("error: " * (status < 128) + " ".join(message.split()), file=sys.stderr, flush=True)
    sys.exit(status)


# -----------------------------------------------------------------------------
# device and precision


def get_device(device):
    """`auto` is the fastest that is here; under torchrun each rank of a machine takes its own GPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ValueError) as e:
        raise UserError(f"device {device} cannot be used here ({describe(e)}); try --device=cpu") from e
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif device.type == "cpu":
        keep_freed_memory()
    return device


def keep_freed_memory():
    """
    Let glibc keep the memory of large freed tensors. It would give them back to the system, which clears every page again at the next
    allocation: a third of an eager training step on a CPU.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library: as it was
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(-3, 2**30) or mallopt(-3, 2**25):  # M_MMAP_THRESHOLD; glibc before 2.35 takes no more than the second
            mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def logits_at_once(device, vocab_size, training=False):
    """
    Rows of logits to hold where they are bounded, a power of two (other numbers cost some CPUs half of their speed): about 0.3 GB in bf16. On a
    CPU, whose evaluations are as fast with fewer, 30 MB there.
    """
    numbers = 2**27 if training or device.type != "cpu" else 2**24
    return 2 ** (max(128, numbers // vocab_size).bit_length() - 1)


def has_fast_bf16(device):
    """True where bf16 products run on hardware. Elsewhere bf16 is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cpu" and os.path.exists("/proc/cpuinfo"):
        flags = Path("/proc/cpuinfo").read_text()
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False


def get_dtype(device, dtype):
    """What the products are computed in, for `dtype` auto, bfloat16 or float32."""
    if dtype not in ("auto", "bfloat16", "float32"):
        raise UserError(f"dtype must be auto, bfloat16 or float32, not {dtype!r}")
    return torch.bfloat16 if dtype == "bfloat16" or dtype == "auto" and has_fast_bf16(device) else torch.float32


def autocast(device, dtype, cache=True):
    """The context to run the model in. Parameters and optimizer stay in fp32. cache: keep bf16 copies of the weights until its end."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=get_dtype(device, dtype) == torch.bfloat16, cache_enabled=cache)


# Dense bf16 peak in FLOP/s, from the vendors' data sheets. An unknown device shows no MFU rather than a wrong one.
PEAK_FLOPS = {"H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
              "RTX 4090": 165e12, "RTX 3090": 71e12, "B200": 2250e12}


def peak_flops(device):
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


# -----------------------------------------------------------------------------
# ranks: one process without torchrun, else one of WORLD_SIZE


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def world_size():
    return dist.get_world_size() if dist.is_initialized() else 1


def init_ranks(device):
    """Join the other ranks when started by torchrun. A rank that waits for a lost one fails after five minutes."""
    if "RANK" in os.environ and not dist.is_initialized():
        from datetime import timedelta
        # After a restart torchrun's store still holds the addresses of the lost ranks, and half of the time the new ones wait for them. The count
        # of restarts tells them apart, but only where all ranks have one torchrun; with several machines see the README.
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
        with together():
            store, number, count = next(dist.rendezvous("env://"))
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.PrefixStore(f"attempt {attempt}", store), rank=number,
                                    world_size=count, timeout=timedelta(minutes=5))


@contextlib.contextmanager
def together():
    """What the ranks do together fails on all of them when one is lost."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as e:
        raise UserError(f"rank {os.environ.get('RANK')} cannot reach the others ({describe(e)}); where one failed, its message says why, "
                        "and the same command continues", status=1) from e


def all_reduce(tensors):
    """Sum each tensor over all ranks, in place."""
    if dist.is_initialized():
        with together():
            for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
                work.wait()


def all_gather(items):
    """The lists `items` of all ranks, one after the other."""
    if not dist.is_initialized():
        return items
    gathered = [None] * world_size()
    with together():
        dist.all_gather_object(gathered, items)
    return sum(gathered, [])


def print0(*args, **kwargs):
    """print, on rank 0. `end` makes an error begin a line of its own behind one that is still open, a progress line."""
    if rank() == 0:
        print(*args, **{"flush": True, **kwargs})
        print0.line_is_open = kwargs.get("end") == ""


print0.line_is_open = False


# -----------------------------------------------------------------------------
# stopping and writing


class StopFlag:
    """
    SIGTERM (preemption) and Ctrl-C set `.signal`; the loop looks at it at each step boundary, saves and leaves. A second signal
    ends the program at once.
    """

    def __init__(self):
        self.signal = 0
        for s in (signal.SIGTERM, signal.SIGINT):
            signal.signal(s, self._handle)

    def _handle(self, number, frame):
        if self.signal:
            sys.exit(128 + number)
        self.signal = number


@contextlib.contextmanager
def writing(path):
    """A file that cannot be written, for want of space or permission, is one line that names it."""
    try:
        yield
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror or e}; what was there before is untouched") from e


@contextlib.contextmanager
def atomic_write(path, mode="wb"):
    """Open a temporary file beside `path` that takes its name when the block ends well; a reader never sees half a file."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")  # one name: what a kill leaves behind is overwritten, not piled up
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
            folder = os.open(path.parent, os.O_RDONLY)  # the rename itself survives a power cut only when the folder is synced too
            os.fsync(folder)
            os.close(folder)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def sealed(content):
    """The dict `content` with a checksum of the rest, to stand in a JSON file: a byte that changes later will show."""
    content = {k: v for k, v in content.items() if k != "seal"}
    return {**content, "seal": hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}


def unsealed(content):
    """What was sealed, or ValueError if it was changed since."""
    if sealed(content)["seal"] != content["seal"]:
        raise ValueError("it was changed after it was written, its checksum differs")
    return {k: v for k, v in content.items() if k != "seal"}


def write_json(path, content):
    """Write a result file, all or nothing, sealed; rank 0 does it for all."""
    if rank() == 0:
        with atomic_write(path, "w") as f:
            json.dump(sealed(content), f)


def continue_result(path, settings):
    """
    What an earlier run left in a result file, finished or not: the list of the JSON lines of a .jsonl (a torn last line is left out), the
    object in a .json, None if there is no file. UserError if it was made with other settings, or by something else.
    """
    path = Path(path)
    if not path.exists():
        return None
    try:
        text = path.read_text()
        if path.suffix == ".jsonl":
            content = [unsealed(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        else:
            content = unsealed(json.loads(text))
        theirs = (content[0] if path.suffix == ".jsonl" else content)["settings"]
        differs = [k for k in settings if theirs.get(k) != json.loads(json.dumps(settings[k]))]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        raise UserError(f"{path} is not a result of this program ({describe(e)}); move it away or choose another --tag") from e
    if differs:
        raise UserError(f"{path} holds another evaluation (its {', '.join(differs)} differ); choose another --tag, or delete it")
    return content


def duration(seconds):
    """Seconds as a person reads them: 42s, 3m05s, 2h10m, 9d04h."""
    if not math.isfinite(seconds):
        return "?"
    s = int(seconds)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02d}m"
    return f"{s // 86400}d{s % 86400 // 3600:02d}h"
