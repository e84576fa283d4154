"""
Check on a GPU what this repository claims about GPUs (README.md in this folder).

    python -m experiments.gpu.check                     all checks that are not finished
    python -m experiments.gpu.check numbers training    these checks, also if they are finished

A check is a function of the device that yields lines of the report: (what, measured, claim), where
a claim is a relation and a limit, as in ("<=", 1), and a line without one only reports. An error
ends its check alone. (`measured` may be a function, whose error costs its line alone.)
OUT/report.md has all lines, and OUT/checks.jsonl the finished checks, which are skipped on the same
card, driver, torch and commit.
"""
import contextlib
import dataclasses
import functools
import itertools
import operator
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import train
from experiments import bench
from experiments.check import CASES, PROMISES, WINDOWS, broken, make_model, small
from lib import attention, checkpoint, runtime, storage
from lib.attention import ModelConfig
from lib.config import configure
from lib.errors import UserError, describe, launch
from lib.loss import summed_loss
from train import TrainConfig

OUT = Path(os.environ.get("OUT", "out/gpu"))
RELATIONS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


# -----------------------------------------------------------------------------
# 1. In this process: the numbers of the card are those of the CPU, up to rounding

CPU = torch.device("cpu")
SMALL = dict(vocab_size=1000, block_size=256, n_layer=4, n_head=4, n_embd=256, n_inner=512,
             init_std=0.05, s_init=0.2)
DTYPES = ("float32", "bfloat16")


def random_batch(device, config):
    """Return (x, y, counted, documents): 16 rows of random tokens, as train.py has its batches."""
    shape = 16, config.block_size + 1
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=shape)
    x, y = tokens[:, :-1], tokens[:, 1:]
    documents = np.cumsum(x % 50 == 0, axis=1) if config.doc_mask else None
    return train.to_device(device, x, y, documents)


def results_of(config, device, dtype, loss_fn=summed_loss):
    """Return the logits, the loss and the gradient that a small model computes."""
    model = make_model(config).to(device)
    x, y, counted, documents = random_batch(device, config)
    with runtime.autocast(device, dtype):
        loss = loss_fn(model, x, y, 0, counted, documents) / y.numel()
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    with torch.no_grad(), runtime.autocast(device, dtype):
        logits = model.lm_head(model.hidden(x, documents=documents))
    return logits, loss, gradient


def distance(result, expected):
    """Return |result - expected| / |expected|, the root mean squares of two tensors."""
    result, expected = (z.detach().cpu().double() for z in (result, expected))
    return float((result - expected).norm() / expected.norm())


@functools.lru_cache(maxsize=4)
def reference(config):
    """
    Return the results on the CPU in fp32, and {dtype: distance of other correct results}.

    The CPU in bf16 shows how much rounding changes these results. A card rounds in bf16 about as
    often, so its results are at most twice as far away. fp32 rounds 2^-16 times as much. But sums
    of 1,000 terms, whose fp32 errors are below those of bf16, then add up 32 = sqrt(1000) errors.
    """
    expected = results_of(config, CPU, "float32")
    bf16 = max(map(distance, results_of(config, CPU, "bfloat16"), expected))
    return expected, {"bfloat16": 2 * bf16, "float32": 2 * 32 * 2**-16 * bf16}


def rounding(config, device, dtype, *options):
    """Return the largest distance from the CPU's results, divided by what rounding explains."""
    expected, limits = reference(config)
    results = results_of(config, device, dtype, *options)
    return max(map(distance, results, expected)) / limits[dtype]


def numbers(device):
    """Logits, loss and gradient against the CPU's: all attention, all kernels, compiled code."""
    explained = "<=", 1
    for (kind, settings), dtype in itertools.product(CASES, DTYPES):
        config = ModelConfig(kind, **SMALL | settings)
        measured = partial(rounding, config, device, dtype)
        yield f"{kind} {settings or ''} in {dtype}", measured, explained
    config = ModelConfig("ssmax", **SMALL)
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        with sdpa_kernel(getattr(SDPBackend, name)):
            yield f"kernel {name}", partial(rounding, config, device, "bfloat16"), explained
    loss_fn = train.training_loss(TrainConfig(), device)
    yield "torch.compile works here", loss_fn is not summed_loss, ("==", True)
    # compiled code takes flex_attention for packed documents
    cases = [{}, {"attention": "sink"}, WINDOWS, {"doc_mask": True}]
    for settings, dtype in itertools.product(cases, DTYPES):
        torch.compiler.reset()  # or it soon refuses to compile the same function again
        config = ModelConfig("ssmax", **SMALL | settings)
        measured = partial(rounding, config, device, dtype, loss_fn)
        yield f"compiled, ssmax {settings or ''} in {dtype}", measured, explained


def promises(device):
    """What experiments/check.py promises of every attention class, among it the KV cache."""
    for kind, settings in CASES:
        config = small(ModelConfig(kind, **settings))
        with device:
            problems = [broken(promise, config) for promise in PROMISES]
        problems = "; ".join(filter(None, problems))
        yield f"{kind} {settings or ''}", problems or "kept", ("==", "kept")


# -----------------------------------------------------------------------------
# 2. Programs, and what their output and their results say


def program(*command, **variables):
    """Return what a Python program prints, with these environment variables. Raise its last lines
    if it fails."""
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, env=os.environ | variables, text=True, timeout=900,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} ended with status {done.returncode}: "
                           f"{done.stdout.strip().splitlines()[-3:]}")
    return done.stdout


def corpus(name, *settings):
    """Prepare an embedded corpus. Return the setting that names it."""
    program("prepare.py", "--embedded=almanac", f"--name={name}", f"--data_dir={OUT}/data",
            *settings)
    return f"--data_dir={OUT}/data/{name}"


def train_log(device, name, *settings, launcher=("train.py",)):
    """Train in OUT/runs/name. Return the log as {key: values of all updates}."""
    program(*launcher, *settings, f"--device={device.type}", f"--out_dir={OUT}/runs/{name}")
    updates = [record for record in storage.read_lines(OUT / "runs" / name / "log.jsonl")
               if "loss" in record]
    return {key: torch.tensor([update[key] for update in updates]) for key in updates[0]}


def median_of_last(values):
    """Return the median of the last eight: before them, torch.compile works."""
    return float(values[-8:].double().median())


PAPER = ("config/b_ssmax.py", "--batch_size=128", "--max_iters=12", "--eval_interval=0")
RUNS = {
    "4 sequences at once": "--micro_batch_size=4",
    "16 sequences at once": "--micro_batch_size=16",
    # more than any card has memory for, so the micro-batch is halved
    "1,024 sequences at once":
        "--micro_batch_size=1024 --batch_size=1024 --compile=False --max_iters=2",
    "(a) softmax": "config/a_softmax.py",
    "(b) SSMax": "",
    "(b) with windows": "config/window_paper.py",
}
CLAIMS = {
    # gib: that of a simulated GPU x 1.1 + 0.5, for what a simulation does not see
    ("4 sequences at once", "gib"): ("<=", 6.0),
    ("4 sequences at once", "micro_batch_size"): ("==", 4),
    ("16 sequences at once", "gib"): ("<=", 13.6),
    ("1,024 sequences at once", "micro_batch_size"): ("<=", 512),
    ("(b) SSMax", "gib"): ("<=", 44.2),
    ("(b) SSMax", "mfu"): (">=", 0.2),
}


def plain_speed(device):
    """Return the tokens/s of (a) as nanoGPT trains: compiled, autocast, all logits at once."""
    cfg = configure(TrainConfig, [])
    with device:
        model = attention.build(cfg)
    x, y, *_ = random_batch(device, cfg)
    optimizer = train.make_optimizer(cfg, model)
    update = bench.plain_update(torch.compile(model), optimizer, x, y, "auto")
    return bench.repeat(update, x.numel())


def training(device):
    """Memory and speed of the paper's model."""
    data, speeds = corpus("gpt2"), {}
    for name, settings in RUNS.items():
        log = train_log(device, name, *PAPER, *settings.split(), data)
        for key in ("gib", "micro_batch_size", "tokens_per_s", "mfu"):
            if key in log:  # a card may be too new for an mfu
                yield f"{name}: {key}", median_of_last(log[key]), CLAIMS.get((name, key))
        speeds[name] = median_of_last(log["tokens_per_s"])
    softmax, ssmax = speeds["(a) softmax"], speeds["(b) SSMax"]
    # two runs one after the other differ by a percent
    yield "speed of (b) / (a)", ssmax / softmax, (">=", 0.97)
    yield "speed of nanoGPT's recipe / (a)", plain_speed(device) / softmax, ("<=", 1.0)


# prints the kernels that training spends most time in
PROFILED = """
import torch, train
gpu = torch.profiler.ProfilerActivity.CUDA
with torch.profiler.profile(activities=[gpu], acc_events=True) as profiler:
    train.main()
for event in sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)[:12]:
    milliseconds = event.self_device_time_total / 1000
    print(f"kernel `{event.key[:70]}`: {milliseconds:.0f} ms in {event.count} calls")
"""


def anatomy(device):
    """Graph breaks, recompilations and the longest kernels of 12 updates."""
    printed = program("-c", PROFILED, *PAPER, corpus("gpt2"),
                      f"--device={device.type}", f"--out_dir={OUT}/runs/profiled",
                      TORCH_LOGS="graph_breaks,recompiles")
    # one in GPT.hidden
    yield "graph breaks", printed.count("Graph break in user code"), ("<=", 1)
    yield "recompilations", printed.count("Recompiling function"), ("==", 0)
    for line in printed.splitlines():
        if line.startswith("kernel "):
            yield line.rsplit(": ", 1)


QUICK = ("config/quick.py", "config/window.py")
SHORT = ("config/b_ssmax.py", "--decay=none", "--eval_interval=0", "--max_iters=20")


def resume(device):
    """A run in two parts has the losses of a run in one, bitwise if the card repeats itself so."""
    run = [*QUICK, *SHORT, corpus("almanac", "--compact_vocab"), "--dtype=bfloat16"]
    whole, again = (train_log(device, name, *run)["loss"] for name in ("whole", "again"))
    train_log(device, "parts", *run, "--max_iters=10")
    parts = train_log(device, "parts", *run)["loss"]
    repeated = distance(again, whole)
    yield "losses of the same run again: distance", repeated
    yield "losses of a resumed run: distance", distance(parts, whole), ("<=", 2 * repeated)


def records_of(device, name, file, *command):
    """Evaluate OUT/runs/name on a device. Return the records of the result."""
    out = OUT / "runs" / device
    program(*command, OUT / "runs" / name, f"--device={device}", f"--out={out}")
    return storage.read_lines(out / name / f"{file}.jsonl")[1:]


def evaluations(device):
    """The evaluations give the results of the CPU in fp32."""
    data = corpus("almanac", "--compact_vocab")
    train_log(device, "short", *QUICK, *SHORT, data)
    needles = ("niah", "eval_niah.py", "config/quick_niah.py", "--context_sizes=1000",
               "--n_samples=4", "--dtype=float32", data)
    pieces = ("posloss", "eval_posloss.py", "--split=long", "--seq_len=1000", "--n_seqs=4",
              "--dtype=float32", data)
    answers, losses = [], []
    for place in (device.type, "cpu"):
        answers.append([record["text"] for record in records_of(place, "short", *needles)])
        losses.append([record["losses"] for record in records_of(place, "short", *pieces)])
    yield "the same answers", answers[0] == answers[1], ("==", True)
    yield "losses by position: distance", distance(*map(torch.tensor, losses)), ("<=", 1e-5)


def learns(device):
    """The quick run on the card: needles at 512 times the training length (README)."""
    data = corpus("almanac", "--compact_vocab")
    needles = ("niah", "eval_niah.py", "config/quick_niah.py", "--context_sizes=(128,65536)",
               "--n_samples=8", data)
    # ten seeds of softmax on a CPU found .20 to .84 of the needles at 65,536 tokens
    for name, relation in (("a_softmax", "<="), ("b_ssmax", ">=")):
        train_log(device, name, *QUICK, f"config/{name}.py", data)
        records = records_of(device.type, name, *needles)
        for size, claim in ((128, (">=", 0.9)), (65536, (relation, 0.9))):
            exact = [record["exact"] for record in records if record["size"] == size]
            yield f"{name}: needles found at {size:,} tokens", float(np.mean(exact)), claim


def on_ranks(n, *command):
    """Return the arguments of Python that run a command on n ranks."""
    return "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}", *command


KILL_AFTER = 60  # seconds
# what each rank runs in bash
KILLED = f"""
[ $RANK = 1 ] && exec timeout --signal=KILL {KILL_AFTER} {sys.executable} train.py "$@"
exec {sys.executable} train.py "$@"
"""


def several_cards(device):
    """Cards have the losses of one, and the speed of all; a killed rank ends the others."""
    n_cards = torch.cuda.device_count()
    if n_cards < 2:
        yield "several cards", f"this machine has {n_cards}"
        return
    data, logs = corpus("gpt2"), {}
    for n in [n for n in (1, 2, 4, 8) if n <= n_cards]:
        logs[n] = train_log(device, f"cards_{n}", *PAPER, "--batch_size=256", data,
                            launcher=on_ranks(n, "train.py"))
    one = logs.pop(1)
    for n, log in logs.items():
        difference = distance(log["loss"], one["loss"])
        yield f"losses of {n} cards: distance from those of one", difference, ("<=", 1e-4)
        speed = median_of_last(log["tokens_per_s"]) / median_of_last(one["tokens_per_s"])
        yield f"{n} cards: speed / ({n} x that of one)", speed / n, (">=", 0.9)

    began = time.time()
    with contextlib.suppress(RuntimeError):
        train_log(device, "killed", *QUICK, *SHORT, corpus("almanac", "--compact_vocab"),
                  "--max_iters=1000000", "--save_interval=20",
                  launcher=on_ranks(2, "--no-python", "bash", "-c", KILLED, "train.py"))
    seconds = time.time() - began - KILL_AFTER
    yield "seconds after which a killed rank has ended the others", seconds, ("<=", 60)
    updates = checkpoint.load(OUT / "runs/killed")["iter"]
    yield "updates in the checkpoint that is left", updates, (">=", 20)


# -----------------------------------------------------------------------------
# the checks in turn, and the report

CHECKS = {check.__name__: check for check in (
    numbers, promises, training, anatomy, resume, evaluations, learns, several_cards)}


@dataclasses.dataclass(frozen=True)
class GPUCheckConfig:
    # arguments
    files: tuple = ()  # names of checks; none: all that are not finished
    # checks
    device: str = "cuda"  # cpu tries the checks themselves


def environment(device):
    """Return what a measurement depends on: card, driver, torch and commit."""
    card = driver = "CPU"
    if device.type == "cuda":
        card = torch.cuda.get_device_name(device)
        driver = subprocess.getoutput("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    return {"card": card, "driver": driver, "torch": torch.__version__,
            "commit": runtime.code_version()}


def judge(what, measured, claim=None):
    """Return a line of the report: [what, claimed, measured, verdict]."""
    claimed = verdict = ""
    if claim:
        relation, limit = claim
        claimed = f"{relation} {text_of(limit)}"
    try:
        if callable(measured):
            measured = measured()
        if claim:
            verdict = "holds" if RELATIONS[relation](measured, limit) else "does not hold"
    except Exception as e:
        measured, verdict = describe(e), "does not hold"
    return [what, claimed, text_of(measured), verdict]


def text_of(value):
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return str(value)


def run(name, device):
    """Yield the lines of the report on a check."""
    shutil.rmtree(OUT / "runs", ignore_errors=True)  # they may be of other code
    try:
        for line in CHECKS[name](device):
            yield judge(*line)
    except Exception as e:
        yield [name, "no error", describe(e), "does not hold"]


def write_report(where, finished):
    """Write report.md. finished: {name of a check: its lines}."""
    text = ["# On this GPU", "", ", ".join(f"{key} {value}" for key, value in where.items()), "",
            "| check | | claimed | measured | |", "|---|---|---|---|---|"]
    for name, lines in finished.items():
        for line in lines:
            cells = [cell.replace("|", "/") for cell in (name, *line)]
            text.append(f"| {' | '.join(cells)} |")
    with storage.atomic_write(OUT / "report.md", "w") as file:
        file.write("\n".join(text) + "\n")


def main():
    cfg = configure(GPUCheckConfig)
    for name in cfg.files:
        if name not in CHECKS:
            raise UserError(f"there is no check {name}; the checks are {', '.join(CHECKS)}")
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU here: run this on a machine with one, whose driver "
                        "fits (experiments/gpu/README.md)")
    device = runtime.setup(cfg.device)
    where, path = environment(device), OUT / "checks.jsonl"
    before = storage.read_lines(path) if path.exists() else []
    finished = {r["check"]: r["lines"] for r in before if r["environment"] == where}
    for name in cfg.files or [name for name in CHECKS if name not in finished]:
        print(f"== {name}: {CHECKS[name].__doc__}", flush=True)
        finished[name] = []
        for line in run(name, device):
            print(" | ".join(line), flush=True)
            finished[name].append(line)
        before.append({"check": name, "environment": where, "lines": finished[name]})
        storage.write_lines(path, before)
        write_report(where, finished)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # for the programs of the next check
            # After some errors a card refuses all further work of a process, which then ends here.
            # The same command goes on with the next check.
            torch.cuda.synchronize()
    write_report(where, finished)
    verdicts = [verdict for lines in finished.values() for *_, verdict in lines]
    failed = verdicts.count("does not hold")
    print(f"{OUT}/report.md: {verdicts.count('holds')} claims hold, {failed} do not")
    if failed:
        raise UserError(f"{failed} claims do not hold, see {OUT}/report.md", status=1)


if __name__ == "__main__":
    launch(main)
