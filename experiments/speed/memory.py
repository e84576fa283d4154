"""
Memory that an update and an evaluation take on a GPU, without one (README.md).

    python -m experiments.speed.memory            some minutes of one core

Everything runs on fake tensors (tests/fakecuda.py), which torch's own tracker counts. From these
points train.py computes the micro-batch that it starts with.
"""
import subprocess
import sys

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from lib import attention, runtime
from lib.config import configure
from lib.loss import summed_loss, token_losses
from lib.runtime import launch
from tests import fakecuda
from train import TrainConfig, make_optimizer


def peak_gib(work, *tracked):
    """What `work`, run eagerly on fake tensors, takes at its peak."""
    tracker = MemTracker()
    tracker.track_external(*tracked)
    with tracker:
        work()
        tracker.reset_mod_stats()  # as it demands
        work()  # with an optimizer's moments
    peaks = tracker.get_tracker_snapshot("peak").items()
    return next(peak["Total"] for device, peak in peaks if device.type == "cuda") / 2**30


def update_gib(model, rows):
    """Return what an update with micro-batches of `rows` takes, in GiB: as it is, as it is with
    masks of packed documents, and compiled."""
    optimizer = make_optimizer(TrainConfig(), model)
    x = torch.zeros(rows, model.config.block_size, dtype=torch.int64, device="cuda")

    def update(documents=None):
        chunk = runtime.logits_at_once(x.device, model.config.vocab_size, training=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = summed_loss(model, x, x, chunk, documents=documents)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    # compiled: what is kept for backward, 16 bytes a parameter for weight, gradient and moments,
    # and the gradient of all logits in bf16
    rest = 16 * model.num_params() + 2 * x.numel() * model.config.vocab_size
    masked = peak_gib(lambda: update(documents=x), model, optimizer)
    compiled = (saved_for_backward(model, x) + rest) / 2**30
    return peak_gib(update, model, optimizer), masked, compiled


def saved_for_backward(model, x):
    """Bytes that a compiled forward pass keeps: torch.compile's own min-cut of the graph."""
    state, kept = dict(model.named_parameters()) | dict(model.named_buffers()), {}

    def loss(state, x):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.func.functional_call(model, state, (x, x))[1]

    def look(graph, _):
        *_, output = graph.graph.nodes
        for node in output.args[0][1:]:
            if getattr(node, "op", "placeholder") != "placeholder":  # the weights are there anyway
                storage = node.meta["val"].untyped_storage()
                kept[storage._cdata] = storage.nbytes()
        return graph

    aot_function(loss, fw_compiler=look, bw_compiler=lambda graph, _: graph,
                 partition_fn=min_cut_rematerialization_partition,
                 decompositions=select_decomp_table())(state, x)
    return sum(kept.values())


@torch.no_grad()
def evaluation_gib(model, rows, length=20_000):
    idx = torch.zeros(rows, length, dtype=torch.int64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        chunk = runtime.logits_at_once(idx.device, model.config.vocab_size)
        return peak_gib(lambda: token_losses(model, idx, idx, chunk).cpu(), model)


def main():
    """Print the table; allow 10 % for CUDA itself, its libraries and fragmentation."""
    if not fakecuda.enabled():  # torch looks for devices once: a process of its own
        again = [sys.executable, "-m", "experiments.speed.memory", *sys.argv[1:]]
        sys.exit(subprocess.call(again, env=fakecuda.environment()))
    for files in ([], ["config/window_paper.py"], ["config/mini_gpu.py"]):
        cfg = configure(TrainConfig, [*files, "--attention_type=ssmax"])
        name = "".join(files) or "the paper's model"
        print(f"{name}, GiB, simulated\n{'micro-batch':>12} | as it is | masks | compiled")
        with FakeTensorMode(), torch.device("cuda"):
            for rows in (4, 8, 16, 32, 64):
                as_it_is, masked, compiled = update_gib(attention.build(cfg), rows)
                print(f"{rows:>12} | {as_it_is:>8.1f} | {masked:>5.1f} | {compiled:>8.1f}",
                      flush=True)
            for rows in (1, 6):
                gib = evaluation_gib(attention.build(cfg), rows)
                print(f"loss of {rows} x 20,000 tokens: {gib:.1f}", flush=True)


if __name__ == "__main__":
    launch(main)
