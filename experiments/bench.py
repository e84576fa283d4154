"""
Compare the speed of this checkout, on a CPU, with that of another checkout and of a plain recipe.

    python -m experiments.bench                       training against the plain recipe
    python -m experiments.bench --against=../other    also all programs of another clone
    python -m experiments.bench --against=../other texts/*.jsonl   and prepare.py on these files
    python -m experiments.bench --against=../other --only=answers  one of update, losses, answers,
                                                                   prepare

It takes about half an hour on two cores. The plain recipe trains our model as nanoGPT would on a
CPU: fp32, all logits at once, AdamW not fused, eager (C1) or compiled (C2). Products are matrix
products alone, with the FLOPs of an update (C0). Loss by position, needles (C3) and prepare.py (P1)
are compared with the other checkout only.
"""
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lib import runtime
from lib.config import configure
from lib.errors import UserError, launch
from model import GPT, GPTConfig

SHAPE = dict(n_layer=6, n_head=6, n_embd=384, n_inner=1024, block_size=256)
BATCH = 16  # rows of an update
LENGTH, WINDOWS, PROMPTS = 4096, 16, 40  # tokens of a window or prompt, and their numbers
WARM_UP, REPEATS = 2, 4  # updates in a turn that do not count, and that do
OURS = "this checkout"


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    # arguments
    files: tuple = ()  # texts for prepare.py, which is not measured without them
    # bench
    against: str = ""  # folder of another clone to compare with
    only: Literal["", "update", "losses", "answers", "prepare"] = ""  # measure this alone
    rounds: int = 5  # turns of each side
    side: str = ""  # for this program's own processes: the side whose turn it is


# -----------------------------------------------------------------------------
# Each side is a function that returns tokens per second. These two call our modules:


def repeat(work, tokens):
    """Call work(), which handles this many tokens, again and again. Return tokens per second."""
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return tokens / np.median(seconds[WARM_UP:])


def plain_update(forward, optimizer, x, y, dtype):
    """Return a function that does an update as nanoGPT does, with all logits at once."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def update():
        with runtime.autocast(x.device, dtype):
            loss = forward(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for a GPU

    return update


def plain_recipe(compile):
    model = GPT(GPTConfig(**SHAPE))
    forward = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    x, y = torch.randint(model.config.vocab_size, (2, BATCH, model.config.block_size))
    return repeat(plain_update(forward, optimizer, x, y, "float32"), x.numel())


def products():
    size, n = 2048, 8  # one product is too short for the clock
    device = runtime.setup("cpu")
    a = torch.randn(size, size, dtype=getattr(torch, runtime.dtype_name(device, "auto")))
    with torch.device("meta"):
        flops_per_token = runtime.flops_per_token(GPT(GPTConfig(**SHAPE)), SHAPE["block_size"])

    def multiply():
        for _ in range(n):
            torch.mm(a, a)

    return repeat(multiply, n * 2 * size**3 / flops_per_token)


# -----------------------------------------------------------------------------
# These run the programs of the checkout, with settings that commit c444ed3 has, too.


def run(*command):
    """Run a program. Return its seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def train(attention_type, updates):
    """Train a new model in out/bench."""
    run("prepare.py", "--embedded=almanac", "--name=bench")
    shutil.rmtree("out/bench", ignore_errors=True)
    settings = dict(SHAPE, attention_type=attention_type, max_iters=updates, batch_size=BATCH,
                    data_dir="data/bench", out_dir="out/bench", warmup_iters=1,
                    eval_interval=0, device="cpu")
    run("train.py", *(f"--{key}={value}" for key, value in settings.items()))


def update(attention_type):
    train(attention_type, WARM_UP + REPEATS)
    lines = Path("out/bench/log.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("tokens_per_s") for line in lines]
    return np.median([rate for rate in rates if rate][WARM_UP:])


def evaluate(tokens, program, *settings):
    train("ssmax", 0)
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(program, *settings, "out/bench", "--data_dir=data/bench", f"--out={folder}",
                      "--rope_factor=1", "--device=cpu")
    return tokens / (seconds - run(program, "--help"))


def prepare(*files):
    with tempfile.TemporaryDirectory() as folder:
        seconds = run("prepare.py", *files, "--name=texts", f"--data_dir={folder}")
        tokens = sum(path.stat().st_size // 2 for path in Path(folder).glob("texts/*.bin"))
    return tokens / (seconds - run("prepare.py", "--help"))


SIDES = {
    "update": {OURS: partial(update, "softmax"), "with SSMax": partial(update, "ssmax"),
               "plain recipe": partial(plain_recipe, False),
               "plain recipe, compiled": partial(plain_recipe, True), "products": products},
    "losses": {OURS: partial(evaluate, WINDOWS * LENGTH, "eval_posloss.py", "--split=long",
                             f"--seq_len={LENGTH}", f"--n_seqs={WINDOWS}")},
    "answers": {OURS: partial(evaluate, PROMPTS * LENGTH, "eval_niah.py", "config/quick_niah.py",
                              f"--context_sizes=({LENGTH},)", "--depths=(50,)",
                              f"--n_samples={PROMPTS}")},
    "prepare": {OURS: prepare},
}

# -----------------------------------------------------------------------------
# turns


def take_turn(checkout, *arguments):
    """Return the tokens per second of a side, measured in a new process and in a checkout."""
    done = subprocess.run([sys.executable, __file__, *arguments], cwd=checkout, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(checkout)})
    if done.returncode:
        raise UserError(f"{' '.join(arguments)} failed in {checkout}; see above")
    return float(done.stdout.split()[-1])


def compare(cfg, measurement, files):
    """Let all sides take turns, and print how many times as fast this checkout is."""
    here = Path(__file__).parents[1]
    sides = {side: (here, side) for side in SIDES[measurement]}
    if cfg.against:
        sides[cfg.against] = Path(cfg.against).resolve(), OURS
    rates = {name: [] for name in sides}
    for i in range(cfg.rounds):
        for name in list(sides)[::-1 if i % 2 else 1]:  # the first one of a turn is slower
            print(f"\r{measurement}, turn {i + 1} of {cfg.rounds}: {name:<24}", end="", flush=True)
            checkout, side = sides[name]
            rate = take_turn(checkout, *files, f"--only={measurement}", f"--side={side}")
            rates[name].append(rate)
    print()
    for name, values in rates.items():
        # A machine is slower in some minutes than in others: only ratios of the same turn count.
        low, middle, high = np.quantile(np.divide(rates[OURS], values), (0.25, 0.5, 0.75))
        print(f"{name:<24} {np.median(values):>11,.0f} tokens/s | {OURS} is {middle:.3g}x as fast "
              f"({low:.3g} to {high:.3g})", flush=True)


def main():
    cfg = configure(BenchConfig)
    if cfg.side:
        print(SIDES[cfg.only][cfg.side](*cfg.files))
        return
    compared = ["update"]  # the others have only one side here
    if cfg.against:
        compared += ["losses", "answers"] + ["prepare"] * bool(cfg.files)
    for measurement in [cfg.only] if cfg.only else compared:
        files = [str(Path(file).resolve()) for file in cfg.files]
        compare(cfg, measurement, files if measurement == "prepare" else [])


if __name__ == "__main__":
    launch(main)
