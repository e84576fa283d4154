"""
Long contexts on one CPU core: time and memory against what the arithmetic needs (README.md here).

    OMP_NUM_THREADS=1 python -m experiments.speed.long                10 minutes

A prompt is answered as eval_niah.py does it, and losses are computed as eval_posloss.py does it, by
models with random weights: the windows of config/window.py on the quick model, and the paper's.
The arithmetic is the floating-point operations that are needed at the rate of large products,
and in memory the parameters, the keys and values of the prompt, and the widest layer's activations.
"""
import dataclasses
import math
import multiprocessing
import time
from pathlib import Path

import torch

from experiments.speed.bench import NEW_TOKENS, losses, peak_mib
from lib import attention, runtime
from lib.attention import ModelConfig
from lib.config import configure
from lib.runtime import UserError, launch
from train import TrainConfig

MODELS = {
    "windows": (["config/quick.py", "config/window.py"], 372, (16_384, 32_768, 65_536)),
    "paper": ([], 50257, (5000, 20_000))}


@dataclasses.dataclass(frozen=True)
class LongConfig:
    files: tuple = ()  # windows, paper, or both: what to measure; empty: both
    what: str = ""  # answer or losses; empty: both


def build(name):
    files, vocab_size, _ = MODELS[name]
    cfg = configure(TrainConfig, [*files, "--attention_type=ssmax"])
    settings = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(ModelConfig)}
    return attention.build(ModelConfig(**settings | {"vocab_size": vocab_size})).eval()


def needed(model, T, what):
    """Return (floating-point operations, bytes) that a prompt or the losses of T tokens need."""
    c = model.config
    head = c.vocab_size * c.n_embd
    weights = sum(p.numel() for p in model.parameters() if p.dim() >= 2) - 2 * head
    # the last layer of a prompt computes one query, and keys and values of all tokens
    layers = model.blocks[:-1] if what == "answer" else model.blocks
    flops = 2 * T * weights * len(layers) / c.n_layer
    for block in layers:
        W = min(T, block.attn.reach)
        pairs = W * T - W * (W - 1) / 2  # of a query and a key that it sees
        flops += 4 * c.n_embd * pairs
    if what == "answer":
        flops += 4 * T * c.n_embd**2
    else:
        flops += 2 * T * head
    numbers = model.num_params() + T * (2 * c.n_embd + 2 * c.n_inner)  # SwiGLU's are the widest
    if what == "answer":
        numbers += sum(2 * c.n_embd * min(T, block.attn.reach) for block in model.blocks)
    return flops, 4 * numbers


def product_rate():
    """Return the FLOP/s of large products, the median of five."""
    a = torch.randn(2048, 2048)
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        torch.mm(a, a)
        seconds.append(time.perf_counter() - began)
    return 2 * 2048**3 / sorted(seconds[1:])[2]


@torch.no_grad()
def work(pipe, name, T, what):
    """Send seconds, MiB above the libraries, and both as the arithmetic has them."""
    device = runtime.setup("cpu")
    rate = product_rate()
    base = peak_mib()
    model = build(name)
    window = torch.randint(model.config.vocab_size, (1, T + 1))
    flops, bytes_ = needed(model, T, what)
    took = math.inf
    for _ in range(4):  # the fastest counts: at first the kernel has to clear new memory
        began = time.perf_counter()
        with runtime.autocast(device, "auto", cache=what == "answer"):
            if what == "answer":
                model.generate(window[:, :-1], NEW_TOKENS, temperature=0)
            else:
                losses(model, window, plain=False)
        took = min(took, time.perf_counter() - began)
    pipe.send((took, flops / rate, peak_mib() - base, bytes_ / 2**20))


def main():
    cfg = configure(LongConfig)
    names = cfg.files or tuple(MODELS)
    if unknown := set(names) - set(MODELS):
        raise UserError(f"{', '.join(sorted(unknown))}: choose {' or '.join(MODELS)}")
    if cfg.what not in ("", "answer", "losses"):
        raise UserError(f"what={cfg.what}: choose answer or losses")
    if not Path("/proc/self/status").exists():
        raise UserError("peak memory is read from /proc, which this system does not have")
    spawn = multiprocessing.get_context("spawn")  # each in a process of its own: peak memory
    print("| model | what | tokens | seconds | arithmetic, seconds | ratio | MiB | arithmetic, MiB "
          "| ratio |\n|---|---|---|---|---|---|---|---|---|")
    for name in names:
        for what in ("answer", "losses") if not cfg.what else (cfg.what,):
            for T in MODELS[name][2]:
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=work, args=(theirs, name, T, what))
                process.start()
                theirs.close()
                try:
                    took, least, mib, least_mib = ours.recv()
                except EOFError as e:
                    raise UserError("the measurement failed; its message is above", 1) from e
                process.join()
                print(f"| {name} | {what} | {T:,} | {took:.2f} | {least:.2f} | {took / least:.2f} "
                      f"| {mib:,.0f} | {least_mib:,.0f} | {mib / least_mib:.2f} |", flush=True)


if __name__ == "__main__":
    launch(main)
