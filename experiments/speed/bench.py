"""
Speed of this machine, in tokens per second: ours against the plain recipe, side by side.

    python -m experiments.speed.bench train             train.py against nanoGPT's recipe (C1, C2,
                                                        G1)
    python -m experiments.speed.bench ssmax             what SSMax costs over softmax (G3)
    python -m experiments.speed.bench posloss           loss by position against fp32 and all logits
                                                        at once (C3)
    python -m experiments.speed.bench niah              answers with the KV cache and without (C3)
    python -m experiments.speed.bench prepare files...  prepare.py against tiktoken alone (P1)
    python -m experiments.speed.bench all [files...]    everything

The candidates take turns, so that only ratios of turns side by side count. The plain recipe is what
nanoGPT runs, around a block of our shapes: on a CPU fp32, eager, all logits at once, AdamW unfused;
on a GPU micro-batches of 12, under autocast. "Products" is what train.py would reach if an update
were matrix products alone.
"""
import contextlib
import dataclasses
import io
import itertools
import multiprocessing
import os
import re
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lib import runtime
from lib.config import configure
from lib.loss import token_losses
from lib.runtime import UserError
from lib.text import GPT2_EOT, gpt2_encoding
from model import GPT, GPTConfig
from prepare import PrepareConfig, documents, prepare
from train import Compute, TrainConfig, make_optimizer, update

# What is compared, and turns of each candidate
ROUNDS = {"train": 20, "ssmax": 40, "posloss": 5, "niah": 5, "prepare": 5}
WARM_UP = 3  # turns that do not count: compilation, caches, the clock
NEW_TOKENS = 8  # of an answer
PRODUCTS = 8  # a turn
# On a CPU the model of nanoGPT's recipe for one, on a GPU the paper's. Sequences an update, rows
# and length of the evaluations' inputs, width of the products that show the machine's own speed.
SIZES = {
    "cpu": dict(model=dict(n_layer=6, n_head=6, n_embd=384, n_inner=1024, block_size=256),
                batch=16, product=2048,
                posloss=dict(rows=1, length=4096), niah=dict(rows=1, length=4096)),
    "cuda": dict(model={}, batch=384, product=8192,
                 posloss=dict(rows=6, length=20_000), niah=dict(rows=16, length=8000)),
}


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    files: tuple = ()  # train, ssmax, posloss, niah, prepare or all; then files to prepare
    rounds: int = 0  # turns of each candidate; 0: 20 of train, 40 of ssmax, 5 of the others
    num_threads: int = 0  # of prepare and tiktoken; 0: one a core
    device: str = "auto"  # auto, cuda, cpu


# -----------------------------------------------------------------------------
# Candidates are generators. Each `next` computes one turn and yields how many tokens the turn had.
# Those of the plain recipe leave our runtime's settings alone.


def plain_training(device, settings, batch, compile):
    device, gpu = torch.device(device), device.startswith("cuda")
    model = GPT(GPTConfig(**settings)).to(device)
    # nanoGPT fuses it on a GPU only
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=gpu)
    forward = torch.compile(model) if compile else model
    shape = 12 if gpu else batch, model.config.block_size
    x, y = torch.randint(model.config.vocab_size, (2, *shape), device=device)
    while True:
        for _ in range(batch // len(x)):
            # nanoGPT has no autocast on a CPU
            with runtime.autocast(device, "auto" if gpu else "float32"):
                loss = forward(x, y)[1]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for the device once an update, as ours does
        yield batch * model.config.block_size


def our_training(device, settings, batch, compile=True):
    device = runtime.setup(device)
    cfg = TrainConfig(**settings, batch_size=batch, compile=compile)
    model = GPT(cfg).to(device)
    x, y = torch.randint(cfg.vocab_size, (2, batch, cfg.block_size)).numpy()
    optimizer, compute = make_optimizer(cfg, model), Compute.for_run(cfg, model)

    def micro_batches(m):
        return [(x[i:i + m], y[i:i + m], None) for i in range(0, batch, m)], x.size

    for step in itertools.count():
        update(cfg, model, optimizer, compute, step, micro_batches)
        yield x.size


def products(device, settings, size):
    """Matrix products in the precision of training; tokens that train with as many FLOP."""
    device = runtime.setup(device)
    with torch.device("meta"):
        model = GPT(GPTConfig(**settings))
    a = torch.randn(size, size, device=device, dtype=runtime.get_dtype(device, "auto"))
    while True:
        for _ in range(PRODUCTS):  # one alone is too short for the clock
            torch.mm(a, a)
        yield PRODUCTS * 2 * size**3 / model.flops_per_token(model.config.block_size)


@torch.no_grad()
def evaluation(device, settings, measure, rows, length, plain):
    device = torch.device(device) if plain else runtime.setup(device)
    model = GPT(GPTConfig(**settings)).to(device).eval()
    window = torch.randint(model.config.vocab_size, (rows, length + 1), device=device)
    while True:
        # for losses each weight is needed once: a cache would be for nothing
        with runtime.autocast(device, "float32" if plain else "auto", cache=measure == answers):
            measure(model, window, plain)
        yield rows * length


def losses(model, window, plain):
    chunk = 0 if plain else runtime.logits_at_once(window.device, model.config.vocab_size)
    token_losses(model, window[:, :-1], window[:, 1:], chunk).cpu()


def answers(model, window, plain):
    idx = window[:, :-1]  # the last target of losses
    if plain:  # the whole prompt and all its logits anew for each token
        for _ in range(NEW_TOKENS):
            logits = model.lm_head(model.hidden(idx))
            idx = torch.cat((idx, logits[:, -1:].argmax(dim=-1)), dim=1)
    else:
        idx = model.generate(idx, NEW_TOKENS, temperature=0, banned=(GPT2_EOT,))
    idx.tolist()


def tiktoken_alone(device, files, num_threads):
    cfg = PrepareConfig(files=tuple(files), name="bench")
    texts = [text for _, text in documents(cfg)]  # before the clock runs
    while True:
        ids = gpt2_encoding().encode_ordinary_batch(texts, num_threads=num_threads)
        yield sum(map(len, ids)) + len(texts)  # as if with an end of text, which ours has


def our_preparation(device, files, num_threads):
    cfg = PrepareConfig(files=tuple(files), name="bench", num_threads=num_threads)
    while True:
        with tempfile.TemporaryDirectory() as folder:  # what is there is not prepared again
            with contextlib.redirect_stderr(io.StringIO()):  # its progress
                manifest = prepare(dataclasses.replace(cfg, data_dir=folder))
        yield sum(split["tokens"] for split in manifest["splits"].values())


def comparisons(sizes, files, threads):
    """{what: {name: candidate}}; the last one is ours."""
    training = dict(settings=sizes["model"], batch=sizes["batch"])
    ssmax = dict(sizes["model"], attention_type="ssmax")
    posloss = partial(evaluation, settings=ssmax, measure=losses, **sizes["posloss"])
    niah = partial(evaluation, settings=ssmax, measure=answers, **sizes["niah"])
    corpus = dict(files=files, num_threads=threads)
    return {
        "train": {
            "plain recipe": partial(plain_training, **training, compile=False),
            "plain recipe, compiled": partial(plain_training, **training, compile=True),
            "products": partial(products, settings=sizes["model"], size=sizes["product"]),
            "train.py": partial(our_training, **training)},
        "ssmax": {
            "softmax": partial(our_training, **training),
            "ssmax": partial(our_training, settings=ssmax, batch=sizes["batch"])},
        "posloss": {
            "fp32, all logits at once": partial(posloss, plain=True),
            "eval_posloss.py": partial(posloss, plain=False)},
        "niah": {
            "no cache, all logits, fp32": partial(niah, plain=True),
            "eval_niah.py": partial(niah, plain=False)},
        "prepare": {
            "tiktoken alone": partial(tiktoken_alone, **corpus),
            "prepare.py": partial(our_preparation, **corpus)},
    }


# -----------------------------------------------------------------------------
# turns


def peak_mib():
    """The most memory so far: of the GPU, or else of this process; 0 where nothing tells."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")  # getrusage would count what the parent process had
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) / 2**10 if found else 0


def work(pipe, candidate, device):
    """In a candidate's process: each turn waits for the word -> seconds, tokens, peak MiB."""
    base = 0 if device.startswith("cuda") else peak_mib()  # the libraries' and the interpreter's
    turns = candidate(device)
    while pipe.recv():
        began = time.perf_counter()
        tokens = next(turns)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        pipe.send((time.perf_counter() - began, tokens, peak_mib() - base))


def take_turns(device, candidates, rounds):
    """Let {name: candidate} take turns -> {name: array (3, rounds): seconds, tokens, peak MiB}."""
    spawn = multiprocessing.get_context("spawn")  # a forked one would share threads and caches
    pipes, found = {}, {name: [] for name in candidates}
    for name, candidate in candidates.items():
        pipes[name], theirs = spawn.Pipe()
        spawn.Process(target=work, args=(theirs, candidate, str(device))).start()
        theirs.close()  # or a dead process would look like a slow one
    for turn in range(WARM_UP + rounds):
        # who comes first is a percent slower: that takes turns too, A B B A
        for name in list(pipes)[::-1 if turn % 2 else 1]:
            try:
                pipes[name].send(True)
                found[name].append(pipes[name].recv())
            except (EOFError, ConnectionError) as e:
                raise UserError(f"{name} does not run here; its message is above", status=1) from e
        times = " | ".join(f"{name} {turns[-1][0]:.2f} s" for name, turns in found.items())
        print(f"\rturn {turn + 1} of {WARM_UP + rounds} | {times}", end="   ", flush=True)
    print()
    for pipe in pipes.values():
        pipe.send(False)  # its process ends
    return {name: np.array(turns[WARM_UP:]).T for name, turns in found.items()}


def bench(what, candidates, device, rounds):
    """Measure and print one comparison."""
    found = take_turns(device, candidates, rounds)
    *_, ours = candidates
    rates = {name: tokens / seconds for name, (seconds, tokens, _) in found.items()}
    for name, rate in rates.items():
        # quartiles of the ratios turn by turn
        low, middle, high = np.quantile(rates[ours] / rate, (0.25, 0.5, 0.75))
        faster = f" | {ours} is {middle:.3g}x as fast ({low:.3g} to {high:.3g})"
        print(f"{what:>8} | {name:<26} | {np.median(rate):>11,.0f} tokens/s | "
              f"{found[name][2, -1]:>6,.0f} MiB{'' if name == ours else faster}", flush=True)


def main():
    cfg = configure(BenchConfig)
    what, *files = cfg.files or [""]
    whats = [w for w in ROUNDS if what in (w, "all") and (files or w != "prepare")]
    if not whats:
        raise UserError(f"say what to measure: {', '.join(ROUNDS)} with files, or all")
    device = runtime.setup(cfg.device)
    if device.type not in SIZES:
        raise UserError(f"no sizes are chosen for {device.type}; --device=cpu")
    gpu = device.type == "cuda"
    print(torch.cuda.get_device_name(device) if gpu else f"{torch.get_num_threads()} CPU threads",
          f"torch {torch.__version__}", sep=", ")
    candidates = comparisons(SIZES[device.type], files, cfg.num_threads or os.cpu_count())
    for what in whats:
        bench(what, candidates[what], device, cfg.rounds or ROUNDS[what])


if __name__ == "__main__":
    runtime.launch(main)
