"""
Where the time of an update goes, beside what each part needs at least (README.md here).

    python -m experiments.speed.profile                  the shapes of bench.py, eager
    python -m experiments.speed.profile --compile        the same under torch.compile

Prints a markdown table. The least time of a part is its floating-point operations at the rate of
large products on this machine, or its bytes at the rate at which this machine copies memory, where
every tensor is read once and written once.
"""
import dataclasses
import itertools
import os
import statistics
import time
from collections import Counter

import torch
import torch._inductor.config
from torch.profiler import ProfilerActivity, profile, record_function

import lib.loss
from experiments.speed.bench import SIZES
from lib import runtime
from lib.config import configure
from lib.runtime import UserError, launch
from model import GPT, MLP, Attention
from train import Compute, TrainConfig, make_optimizer, update

MARK, WHOLE = "part of an update: ", "the whole update"
# What belongs to a part by the name of its operator, wherever it runs
PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "mkl::_mkl_linear",
            "mkldnn::_linear_pointwise"}
ATTENTION = "scaled_dot_product"
COPIES = {"aten::copy_", "aten::clone", "aten::_to_copy", "aten::contiguous", "aten::cat",
          "aten::fill_", "aten::zero_"}


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    attention_type: str = "ssmax"  # a name in ATTENTION (model.py)
    updates: int = 5  # updates that are measured, after two that are not
    compile: bool = False  # torch.compile, whose kernels are one part: they fuse several
    dtype: runtime.DType = "auto"  # auto: bfloat16 where the hardware has it


# -----------------------------------------------------------------------------
# which operator belongs to which part


def mark(owner, name, part):
    """Let the profiler see when the function `owner.name` runs."""
    function = getattr(owner, name)

    def marked(*args, **kwargs):
        with record_function(MARK + part):
            return function(*args, **kwargs)

    setattr(owner, name, marked)


def mark_parts(compiled):
    mark(lib.loss, "loss_and_gradient_", "cross-entropy")
    mark(lib.loss.ChunkedCrossEntropy, "forward", "head")
    mark(torch.nn.utils, "get_total_norm", "optimizer")
    mark(torch.nn.utils, "clip_grads_with_norm_", "optimizer")
    if not compiled:  # these would break torch.compile's graph
        mark(Attention, "rotate", "rotations and factor")
        mark(Attention, "factor", "rotations and factor")
        mark(Attention, "make_position", "rotations and factor")
        mark(torch.nn.RMSNorm, "forward", "norms")
        mark(MLP, "forward", "SiLU and gate")


def ancestors(event):
    while event is not None:
        yield event.name
        event = event.cpu_parent


def part_of_event(event, forward_parts):
    """Return the part that an operator's own time belongs to."""
    if event.name == WHOLE:
        return "between operators"  # Python, and the profiler itself
    names = list(ancestors(event))
    marks = [name.removeprefix(MARK) for name in names if name.startswith(MARK)]
    if event.name in PRODUCTS:
        return "products of the head" if "head" in marks else "products of the layers"
    if ATTENTION in "".join(names):
        return "attention"
    if any(name.startswith("Optimizer.") for name in names):
        return "optimizer"
    if any("embedding" in name.lower() for name in names):
        return "embedding"
    if "cpp_fused" in event.name:
        return "compiled kernels"
    # an operator of the backward pass has the sequence number of the one it belongs to
    marks += [forward_parts[e] for e in sequence_numbers(event) if e in forward_parts]
    if marks and marks[0] != "head":
        return marks[0]
    if event.name in COPIES:
        return "copies and fills of the head" if marks else "copies and fills of the layers"
    return "rest"


def sequence_numbers(event):
    while event is not None:
        if event.sequence_nr >= 0:
            yield event.sequence_nr
        event = event.cpu_parent


def seconds_by_part(events):
    """Return Counter {part: seconds} of the operators' own time."""
    forward_parts = {}
    for event in events:
        marks = [n.removeprefix(MARK) for n in ancestors(event) if n.startswith(MARK)]
        if marks and event.sequence_nr >= 0:
            forward_parts.setdefault(event.sequence_nr, marks[0])
    found = Counter()
    for event in events:
        found[part_of_event(event, forward_parts)] += event.self_cpu_time_total / 1e6
    return found


# -----------------------------------------------------------------------------
# what each part needs at least


class Machine:
    """The rates of large products and of copies, measured between the updates: they change."""

    def __init__(self, dtype):
        self.a = torch.randn(2048, 2048, dtype=dtype)
        self.product = torch.empty_like(self.a)
        self.source = torch.ones(2**26)  # 256 MiB, more than any cache
        self.target = torch.empty_like(self.source)
        self.flops, self.bandwidth = [], []

    def measure(self):
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(self.a, self.a, out=self.product)
        middle = time.perf_counter()
        self.target.copy_(self.source)
        ended = time.perf_counter()
        self.flops.append(4 * 2 * 2048**3 / (middle - began))
        self.bandwidth.append(2 * self.source.nbytes / (ended - middle))  # read and written

    def rates(self):
        """Return FLOP/s and bytes/s, medians."""
        return statistics.median(self.flops), statistics.median(self.bandwidth)


def least_seconds(model, tokens, dtype, flops, bandwidth):
    """Return {part: the least seconds}; a part that is not named here needs none."""
    c, width = model.config, dtype.itemsize
    head = c.vocab_size * c.n_embd
    layers = sum(p.numel() for p in model.parameters() if p.dim() >= 2) - 2 * head
    # two products of half of T x T forward, five backward
    attention = 7 * c.n_layer * c.block_size * c.n_embd
    numbers = {  # read and written, once each, forward and backward
        "cross-entropy": 2 * tokens * c.vocab_size * width,  # logits in, gradient out
        "norms": 5 * (2 * c.n_layer + 1) * tokens * c.n_embd * 4,
        "rotations and factor": 4 * c.n_layer * 2 * tokens * c.n_embd * width,
        "SiLU and gate": 8 * c.n_layer * tokens * c.n_inner * width,
        # weight, gradient and two moments in, three out; the gradient's norm in; clipping in, out
        "optimizer": 10 * model.num_params() * 4,
        "rest": 6 * c.n_layer * tokens * c.n_embd * 4,  # residual sums
        "embedding": 3 * tokens * c.n_embd * 4}
    return {"products of the head": 6 * tokens * head / flops,
            "products of the layers": 6 * tokens * layers / flops,
            "attention": tokens * attention / flops,
            **{part: bytes_ / bandwidth for part, bytes_ in numbers.items()}}


# -----------------------------------------------------------------------------
# the update


def main():
    cfg = configure(ProfileConfig)
    # The profiler's own records split the memory that an update reuses. So the kernel clears 40,000
    # new pages in each update that is profiled, and the time of that counted as products. With huge
    # pages, which torch takes if this variable is set, it is next to nothing.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    device = runtime.setup("cpu")
    if cfg.updates < 1:
        raise UserError("updates=0 measures nothing; set --updates=5")
    mark_parts(cfg.compile)
    # inductor names its kernels in the profile
    torch._inductor.config.cpp.enable_kernel_profile = cfg.compile
    batch, settings = SIZES["cpu"]["batch"], SIZES["cpu"]["model"]
    run = TrainConfig(**settings, attention_type=cfg.attention_type, batch_size=batch,
                      compile=cfg.compile, dtype=cfg.dtype)
    model = GPT(run)
    optimizer, compute = make_optimizer(run, model), Compute.for_run(run, model)
    x, y = torch.randint(run.vocab_size, (2, batch, run.block_size)).numpy()

    def micro_batches(m):
        return [(x[i:i + m], y[i:i + m], None) for i in range(0, batch, m)], x.size

    steps = itertools.count()

    def one():
        update(run, model, optimizer, compute, next(steps), micro_batches)

    dtype = runtime.get_dtype(device, cfg.dtype)
    machine = Machine(dtype)
    for _ in range(2):
        one()
        machine.measure()
    machine.flops.clear()
    machine.bandwidth.clear()
    seconds = []
    for _ in range(cfg.updates):
        began = time.perf_counter()
        one()
        seconds.append(time.perf_counter() - began)
        machine.measure()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(cfg.updates):
            with record_function(WHOLE):
                one()
    flops, bandwidth = machine.rates()
    plain = statistics.median(seconds)
    least = least_seconds(model, x.size, dtype, flops, bandwidth)
    parts = {part: s / cfg.updates for part, s in seconds_by_part(found.events()).items()}
    print_table(parts, least)
    needed = 6 * x.size * sum(p.numel() for p in model.parameters() if p.dim() >= 2)
    needed -= 6 * x.size * model.wte.weight.numel()
    print(f"\n{torch.get_num_threads()} threads, {runtime.dtype_name(device, cfg.dtype)}, "
          f"{'compiled' if cfg.compile else 'eager'}: an update takes {plain:.3f} s, with the "
          f"profiler {sum(parts.values()):.3f} s.\nLarge products: {flops / 1e9:,.0f} GFLOP/s, at "
          f"which the products of an update take {needed / flops / plain:.0%} of it. Copies: "
          f"{bandwidth / 1e9:.1f} GB/s.")


def print_table(parts, least):
    whole = sum(parts.values())
    print("| part | seconds | share, % | least, seconds | above the least, seconds |")
    print("|---|---|---|---|---|")
    for part, took in sorted(parts.items(), key=lambda item: -item[1]):
        need = least.get(part, 0.0)
        print(f"| {part} | {took:.3f} | {100 * took / whole:.1f} | {need:.3f} | "
              f"{took - need:.3f} |")


if __name__ == "__main__":
    launch(main)
