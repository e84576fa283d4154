"""
A CUDA device that is none: fake tensors lie on it, and every operator says what shape, type and
device its result would have. So the code's path on a GPU can be followed, and its memory counted,
on a machine without one. It proves nothing about numbers, NCCL or the allocator.
"""
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from lib.runtime import UserError, explain

SOURCE = Path(__file__).with_suffix(".cpp")
ENABLED = "NANOSSMAX_FAKE_CUDA"


def environment():
    """The environment of a process in which torch has such a device; UserError where it cannot."""
    if torch.version.cuda or not (compiler := shutil.which("g++")):
        raise UserError("a simulated GPU needs a CPU build of torch, and g++")
    root = Path(torch.__file__).parent
    # another source is another library; so is another torch, whose folder is written into it
    name = SOURCE.read_bytes() + f"{torch.__version__} {root}".encode()
    name = hashlib.sha256(name).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"fakecuda-{os.getuid()}-{name}.so"
    if not library.exists():  # once for each version of torch: 3 to 7 s
        making = f"{library}.{os.getpid()}"
        include = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
        link = [f"-L{root}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root}/lib"]
        with explain(f"g++ cannot build {SOURCE.name}", subprocess.CalledProcessError):
            subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", *include, SOURCE,
                            "-o", making, *link], check=True)
        os.replace(making, library)  # processes side by side never load half of one
    # before torch: it asks only once what devices there are
    return {**os.environ, "LD_PRELOAD": str(library), ENABLED: "1"}


def enabled():
    """Whether this process was started in `environment()`; if so torch is told the rest."""
    if ENABLED in os.environ:
        import torch.cuda.amp.common
        # what a real driver would say, and autocast and the choice of bf16 ask for
        torch.cuda.amp.common.amp_definitely_not_available = lambda: False
        torch.cuda.is_bf16_supported = lambda *args: True
        torch.cuda.get_device_capability = lambda device=None: (8, 0)
    return ENABLED in os.environ
