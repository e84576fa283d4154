"""
How long this checkout takes, beside a peer or another checkout.

    python -m experiments.bench                              all rows for a CPU
    python -m experiments.bench update prefill               only these rows
    python -m experiments.bench update --against=../other    this row, beside another clone
    python -m experiments.bench --device=cuda                the rows for a GPU (`make gpu`)

The sides of a row take turns, each turn in a new process, because a machine is slower in some
minutes than in others: only ratios of the same turn count. OMP_NUM_THREADS sets the threads.
"""
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import timeit
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lib import runtime
from lib.config import configure
from lib.errors import UserError, launch
from lib.loss import summed_loss
from model import GPT, Attention, KVCache
from train import TrainConfig


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    # arguments
    files: tuple = ()  # names of rows; none: all rows for the device
    # bench
    against: str = ""  # folder of another clone, which then has a side in each row
    device: Literal["cpu", "cuda"] = "cpu"  # whose rows are measured
    rounds: int = 5  # turns of each side
    side: str = ""  # for this program's own processes: the side whose turn it is


# -----------------------------------------------------------------------------
# Sides. Each of these functions returns a cost: seconds, or a difference.


def run(command):
    """Run Python with these arguments."""
    command = [sys.executable, *shlex.split(command)]
    return timeit.timeit(
        lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True), number=1)


def train(settings, compact=""):
    """Train a new model on the almanac: the seconds of the program."""
    name = f"bench{compact.replace('--', '_')}"  # one corpus for each vocabulary
    run(f"prepare.py --embedded=almanac --name={name} --n_train=2001 {compact}")
    shutil.rmtree("out/bench", ignore_errors=True)
    return run(f"train.py {settings} --data_dir=data/{name} --out_dir=out/bench")


def update(settings, compact=""):
    """The last updates of a training: the seconds per token. Prints what else the log has."""
    train(settings, compact)
    lines = map(json.loads, Path("out/bench/log.jsonl").read_text().splitlines())
    last = [line for line in lines if "tokens_per_s" in line][-4:]
    keys = [key for key in ("tokens_per_s", "mfu", "gib", "micro_batch_size") if key in last[-1]]
    medians = {key: round(np.median([line[key] for line in last]).item(), 3) for key in keys}
    print(settings, medians, file=sys.stderr)
    return 1 / medians["tokens_per_s"]


def seconds(work, number=4):
    """The median seconds of a call, after two calls that do not count."""
    return np.median(timeit.repeat(work, number=1, repeat=2 + number)[2:])


def model_of(settings, vocab_size=1000):
    return GPT(configure(TrainConfig, [*settings.split(), f"--vocab_size={vocab_size}"]))


def recipe(settings, compiled):
    """An update of nanoGPT's recipe (fp32, all logits at once): the seconds per token."""
    model = model_of(settings, vocab_size=50257)
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    x, y = torch.randint(50257, (2, 16, model.config.block_size))

    def one():
        forward(x, y)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return seconds(one) / x.numel()


@torch.no_grad()
def prefill(settings, n):
    """A prompt, whose last token alone gets logits: the seconds per token."""
    model, idx = model_of(settings), torch.randint(1000, (1, n))
    return seconds(lambda: model(idx), 2) / n


@torch.no_grad()
def next_token(settings, n):
    """One more token, after n tokens in a KVCache: the seconds."""
    model, cache = model_of(settings), KVCache()
    for layer in model.modules():
        if isinstance(layer, Attention):
            shape = 1, model.config.n_head, n, layer.head_size
            cache.append(layer.layer, *torch.randn(2, *shape), layer.max_keys)
    cache.length = n
    return seconds(lambda: model(torch.zeros(1, 1, dtype=torch.int64), cache=cache), 20)


def from_cpu(settings):
    """The largest relative difference of a GPU's loss and gradients from the CPU's, in fp32."""
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = model_of(settings).to(device)
        x, y = torch.randint(1000, (2, 16, 128)).to(device)
        loss = summed_loss(model, x, y)
        loss.backward()
        results.append([loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
    return max(float((gpu - cpu).norm() / cpu.norm()) for cpu, gpu in zip(*results, strict=True))


# -----------------------------------------------------------------------------
# {row: {side: (function, *arguments)}}

OURS = "this checkout"
QUICK = "config/quick.py config/window.py"
MIDDLE = "--block_size=256 --n_layer=6 --n_head=6 --n_embd=384 --n_inner=1024"
LARGE = ""  # the defaults: 12 layers, 768 wide
SHORT = f"{MIDDLE} --batch_size=16 --max_iters=6 --warmup_iters=1 --eval_interval=0 --device=cpu"
COMPACT = "--compact_vocab"
PAPER = "config/b_ssmax.py --batch_size=128 --max_iters=12 --eval_interval=0"
ROWS = {
    "update_quick": {OURS: (update, f"{QUICK} --eval_interval=0 --max_iters=100", COMPACT)},
    "update": {OURS: (update, SHORT), "nanoGPT's recipe": (recipe, MIDDLE, False),
               "the same, compiled": (recipe, MIDDLE, True)},
    "ssmax": {OURS: (update, f"{SHORT} --attention_type=ssmax"), "softmax": (update, SHORT)},
    "next_token_quick": {OURS: (next_token, QUICK, 131_072)},
    "next_token_large": {OURS: (next_token, LARGE, 20_000)},
    "prefill": {OURS: (prefill, QUICK, 65_536)},
    "first_update": {OURS: (train, f"{QUICK} --eval_interval=0 --max_iters=1", COMPACT),
                     "torch": (run, "-c 'import torch'")},
}
GPU_ROWS = {
    "paper": {OURS: (update, PAPER), "softmax": (update, f"{PAPER} --attention_type=softmax"),
              "16 at once": (update, f"{PAPER} --micro_batch_size=16"),
              "loss_chunk": (update, f"{PAPER} --loss_chunk=16384"),
              "windows": (update, f"{PAPER} --window_pattern=SL --window=256")},
    "fp32": {OURS: (from_cpu, f"{QUICK} --attention_type=ssmax")},
}


def take_turn(checkout, row, side):
    """Return what a side costs, measured in a new process and in a checkout."""
    command = [sys.executable, __file__, row, f"--side={side}"]
    done = subprocess.run(command, cwd=checkout, text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": str(checkout)})
    if done.returncode:
        raise UserError(f"{row}, {side} failed in {checkout}; see above")
    return float(done.stdout.split()[-1])


def compare(cfg, row, sides):
    """Let all sides take turns. Print their costs, and the ratio of ours to each."""
    sides = {side: (Path(__file__).parents[1], side) for side in sides}
    if cfg.against:
        sides[cfg.against] = Path(cfg.against).resolve(), OURS
    costs = {name: [] for name in sides}
    for i in range(cfg.rounds):
        for name in list(sides)[::-1 if i % 2 else 1]:  # the first one of a turn is slower
            checkout, side = sides[name]
            costs[name].append(take_turn(checkout, row, side))
    for name, values in costs.items():
        low, middle, high = np.quantile(np.divide(costs[OURS], values), (0.25, 0.5, 0.75))
        print(f"{row:<24} {name:<20} {np.median(values):>11.4g} {middle:>9.3g} ({low:.3g} to "
              f"{high:.3g})", flush=True)


def main():
    cfg = configure(BenchConfig)
    if cfg.side:
        function, *arguments = (ROWS | GPU_ROWS)[cfg.files[0]][cfg.side]
        print(function(*arguments))
        return
    rows = GPU_ROWS if cfg.device == "cuda" else ROWS
    for row in cfg.files:
        if row not in rows:
            raise UserError(f"there is no row {row}; the rows are {', '.join(rows)}")
    runtime.setup(cfg.device)  # an error now, if there is no GPU
    name = torch.cuda.get_device_name() if cfg.device == "cuda" else ""
    print(f"torch {torch.__version__}, commit {runtime.code_version()}, {cfg.device} {name}\n"
          f"{'row':<24} {'side':<20} s, or diff    ours/side (half of the turns)")
    for row in cfg.files or rows:
        compare(cfg, row, rows[row])


if __name__ == "__main__":
    launch(main)
