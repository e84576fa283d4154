"""
A CUDA device that is none: fake tensors lie on it, and every operator says what shape, type and
device its result would have. So the code's path on a GPU can be followed, and its memory counted,
on a machine without one. It proves nothing about numbers, NCCL or the allocator.
"""
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.errors import UserError, explain

SOURCE = Path(__file__).with_suffix(".cpp")
ENABLED = "NANOSSMAX_FAKE_CUDA"


def environment(folder):
    """
    Return the environment of a process in which torch has such a device. UserError if this machine
    cannot build it. The library is built in `folder`, which should be of this process alone: it is
    preloaded, and so runs whatever code is in it.
    """
    if torch.version.cuda or not (compiler := shutil.which("g++")):
        raise UserError("a simulated GPU needs a CPU build of torch, and g++")
    root = Path(torch.__file__).parent
    library = f"{folder}/fakecuda.so"  # takes 3 to 7 s to build
    include = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    link = [f"-L{root}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root}/lib"]
    with explain(f"g++ cannot build {SOURCE.name}", subprocess.CalledProcessError):
        subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", *include, SOURCE, "-o", library,
                        *link], check=True)
    # before torch: it asks only once what devices there are
    return {**os.environ, "LD_PRELOAD": library, ENABLED: "1"}


def run_tests(folder, *options):
    """Run pytest with these options in a process with such a device. Skip if it cannot be built."""
    try:
        variables = environment(folder)
    except UserError as e:
        pytest.skip(str(e))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, env=variables, text=True, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:]


def enabled():
    """Whether this process was started in `environment()`; if so torch is told the rest."""
    if ENABLED in os.environ:
        import torch.cuda.amp.common
        # what a real driver would say, and autocast and the choice of bf16 ask for
        torch.cuda.amp.common.amp_definitely_not_available = lambda: False
        torch.cuda.is_bf16_supported = lambda *args: True
        torch.cuda.get_device_capability = lambda device=None: (8, 0)
        torch.cuda.mem_get_info = lambda device=None: (78 * 2**30, 80 * 2**30)
    return ENABLED in os.environ


class Memory(TorchDispatchMode):
    """Counts the bytes on the device of all tensors that it has met: `now`, and `peak`."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.alive = weakref.WeakSet()  # storages

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                self.meet(tensor.untyped_storage())
        return out

    def meet(self, storage):
        if storage not in self.alive:
            self.alive.add(storage)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, storage.nbytes())

    def free(self, n_bytes):
        self.now -= n_bytes
