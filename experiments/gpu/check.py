"""
Check on a GPU what this repository claims about GPUs. run.sh runs all checks and can be continued.

    python -m experiments.gpu.check numbers training     these checks; without names all of them

A check is a function of the device that yields (what, measured, claim). The claim is the rest of a
comparison, such as "<= 1"; a row without one only reports. `measured` may be a function: an error
in it costs this row alone, and any other error ends its check alone.
"""
import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import train
from experiments import bench
from experiments.check import CASES, WINDOWS, make_model
from lib import attention, checkpoint, runtime, storage
from lib.config import configure
from lib.errors import UserError, describe, launch
from lib.loss import summed_loss

OUT = Path(os.environ.get("OUT", "out/gpu"))

# -----------------------------------------------------------------------------
# 1. In this process: the numbers of the card are those of the CPU, up to rounding

SMALL = dict(vocab_size=1000, block_size=256, n_layer=4, n_head=4, n_embd=256, n_inner=512,
             init_std=0.05, s_init=0.2)
# compiled code takes flex_attention for packed documents
COMPILED = ({}, {"attention": "sink"}, WINDOWS, {"doc_mask": True})


def results_of(config, device, dtype, loss_fn=summed_loss):
    """Return the loss and the gradient that a small model computes on 16 rows of random tokens."""
    model = make_model(config).to(device)
    torch.manual_seed(0)
    x, y = torch.randint(config.vocab_size, (2, 16, config.block_size)).to(device)
    documents = (x % 50 == 0).cumsum(dim=1) if config.doc_mask else None
    with runtime.autocast(device, dtype):
        loss = loss_fn(model, x, y, 0, None, documents) / y.numel()
    loss.backward()
    return loss, torch.cat([p.grad.flatten() for p in model.parameters()])


def distance(result, expected):
    """Return |result - expected| / |expected|, the root mean squares of two arrays."""
    result, expected = (torch.as_tensor(x).detach().cpu().double() for x in (result, expected))
    return float((result - expected).norm() / expected.norm())


@functools.lru_cache(maxsize=4)
def reference(config):
    """
    Return the results on the CPU in fp32, and {dtype: distance of other correct results}.

    The CPU in bf16 shows how much rounding changes these results. A card rounds in bf16 about as
    often, so its results are at most twice as far away. fp32 rounds 2^-16 times as much. But sums
    of 1,000 terms, whose fp32 errors are below those of bf16, then add up 32 = sqrt(1000) errors.
    """
    cpu = torch.device("cpu")
    expected = results_of(config, cpu, "float32")
    bf16 = max(map(distance, results_of(config, cpu, "bfloat16"), expected))
    return expected, {"float32": 2 * 32 * 2**-16 * bf16, "bfloat16": 2 * bf16}


def rounding(device, kind, settings, dtype, loss_fn=summed_loss):
    """Return the largest distance from the CPU's results, divided by what rounding explains."""
    config = attention.ModelConfig(kind, **SMALL | settings)
    expected, limits = reference(config)
    results = results_of(config, device, dtype, loss_fn)
    return max(map(distance, results, expected)) / limits[dtype]


def numbers(device):
    """Loss and gradient against the CPU's: all attention, compiled code, all kernels."""
    compiled = train.training_loss(train.TrainConfig(), device)
    yield "torch.compile works here", compiled is not summed_loss, "== True"
    cases = [("eager", kind, settings, summed_loss) for kind, settings in CASES]
    cases += [("compiled", "ssmax", settings, compiled) for settings in COMPILED]
    for case, dtype in itertools.product(cases, ("float32", "bfloat16")):
        torch.compiler.reset()  # or it soon refuses to compile the same function again
        code, kind, settings, loss_fn = case
        measured = functools.partial(rounding, device, kind, settings, dtype, loss_fn)
        yield f"{code} {kind} {settings or ''} in {dtype}", measured, "<= 1"
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        with sdpa_kernel(getattr(SDPBackend, name)):
            measured = functools.partial(rounding, device, "ssmax", {}, "bfloat16")
            yield f"kernel {name}", measured, "<= 1"


# -----------------------------------------------------------------------------
# 2. Programs, and what their logs and results say


def program(*command):
    """Run Python with these arguments. RuntimeError with the last lines if it fails."""
    done = subprocess.run([sys.executable, *map(str, command)], text=True, timeout=900,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} ended with status {done.returncode}: "
                           f"{done.stdout.strip().splitlines()[-3:]}")


def corpus(name, *settings):
    """Prepare an embedded corpus. Return the setting that names it."""
    program("prepare.py", "--embedded=almanac", f"--name={name}", f"--data_dir={OUT}/data",
            *settings)
    return f"--data_dir={OUT}/data/{name}"


def train_log(device, name, *settings, launcher=("train.py",)):
    """Train in OUT/runs/name. Return the log as a table with a row for each update."""
    program(*launcher, *settings, f"--device={device.type}", f"--out_dir={OUT}/runs/{name}")
    return pd.DataFrame(storage.read_lines(OUT / "runs" / name / "log.jsonl")[1:])


PAPER = ("config/b_ssmax.py", "--batch_size=128", "--max_iters=12", "--eval_interval=0")
# {name: (settings, {key of the log: claim})}. The GiB are those of a simulated GPU x 1.1 + 0.5, for
# what a simulation does not see.
RUNS = {
    "4 sequences at once": ("--micro_batch_size=4", {"gib": "<= 6", "micro_batch_size": "== 4"}),
    "16 sequences at once": ("--micro_batch_size=16", {"gib": "<= 13.6"}),
    # more than any card has memory for, so the micro-batch is halved
    "1,024 sequences at once": (
        "--micro_batch_size=1024 --batch_size=1024 --compile=False --max_iters=2",
        {"micro_batch_size": "<= 512"}),
    "(a) softmax": ("config/a_softmax.py", {}),
    "(b) SSMax": ("", {"gib": "<= 44.2", "mfu": ">= 0.2"}),
    "(b) with windows": ("config/window_paper.py", {}),
}


def plain_speed(device):
    """Return the tokens/s of (a) as nanoGPT trains: compiled, autocast, all logits at once."""
    cfg = configure(train.TrainConfig, [])
    with device:
        model = attention.build(cfg)
        x, y = torch.randint(cfg.vocab_size, (2, 16, cfg.block_size))
    optimizer = train.make_optimizer(cfg, model)
    update = bench.plain_update(torch.compile(model), optimizer, x, y, "auto")
    return bench.repeat(update, x.numel())


def training(device):
    """Memory and speed of the paper's model."""
    data, speeds = corpus("gpt2"), {}
    for name, (settings, claims) in RUNS.items():
        log = train_log(device, name, *PAPER, *settings.split(), data)
        medians = log.tail(8).median()  # before them, torch.compile works
        for key in ("gib", "micro_batch_size", "tokens_per_s", "mfu"):
            if key in medians:  # a card may be too new for an mfu
                yield f"{name}: {key}", medians[key], claims.get(key, "")
        speeds[name] = medians["tokens_per_s"]
    softmax, ssmax = speeds["(a) softmax"], speeds["(b) SSMax"]
    # Two runs one after the other differ by a percent. The recipe takes 16 sequences at once, which
    # fit on any card, and (a) as many as fit.
    yield "speed of (b) / (a)", ssmax / softmax, ">= 0.97"
    yield "speed of nanoGPT's recipe / (a)", plain_speed(device) / softmax, "<= 1"


QUICK = ("config/quick.py", "config/window.py")
SHORT = (*QUICK, "config/b_ssmax.py", "--decay=none", "--eval_interval=0", "--max_iters=20")


def resume(device):
    """A run in two parts has the losses of a run in one, bitwise if the card repeats itself so."""
    run = [*SHORT, corpus("almanac", "--compact_vocab"), "--dtype=bfloat16"]
    whole, again = (train_log(device, name, *run)["loss"] for name in ("whole", "again"))
    train_log(device, "parts", *run, "--max_iters=10")
    parts = train_log(device, "parts", *run)["loss"]
    repeated = distance(again, whole)
    yield "losses of the same run again: distance", repeated
    yield "losses of a resumed run: distance", distance(parts, whole), f"<= {2 * repeated}"


# {name of the result: the command that measures it}
EVALUATIONS = {
    "niah": "eval_niah.py config/quick_niah.py --context_sizes=(128,65536) --n_samples=8",
    "scores": "eval_niah.py config/quick_niah.py --trials=8 --dtype=float32",
    "posloss": "eval_posloss.py --split=long --seq_len=1000 --n_seqs=4 --dtype=float32",
}


def records_of(result, name, place, data):
    """Evaluate OUT/runs/name on "cuda" or "cpu". Return the records of the result as a table."""
    run, out = OUT / "runs" / name, OUT / "runs" / place
    program(*EVALUATIONS[result].split(), run, data, f"--device={place}", f"--out={out}")
    return pd.DataFrame(storage.read_lines(out / name / f"{result}.jsonl")[1:])


def learns(device):
    """The quick run: needles at 512 times the training length, evaluations against the CPU's."""
    data = corpus("almanac", "--compact_vocab")
    # ten seeds of softmax on a CPU found .20 to .84 of the needles at 65,536 tokens
    for name, claim in (("a_softmax", "<= 0.9"), ("b_ssmax", ">= 0.9")):
        train_log(device, name, *QUICK, f"config/{name}.py", data)
        needles = records_of("niah", name, device.type, data)
        near, far = needles.groupby("size")["exact"].mean()
        yield f"{name}: needles found at 128 tokens", near, ">= 0.9"
        yield f"{name}: needles found at 65,536 tokens", far, claim
    # scores are rounded to five digits
    for result, key, claim in (("posloss", "losses", "<= 1e-5"), ("scores", "scores", "<= 1e-4")):
        values = [list(records_of(result, "b_ssmax", place, data)[key])
                  for place in (device.type, "cpu")]
        yield f"{key}: distance from the CPU's", distance(*values), claim


# what bash does with each rank: rank 1 is killed after a minute
KILLED = f'exec $([ $RANK = 1 ] && echo timeout --signal=KILL 60) {sys.executable} train.py "$@"'


def several_cards(device):
    """All cards have the losses of one, and the speed of all; a killed rank ends the others."""
    n = torch.cuda.device_count()
    if n < 2:
        yield "cards", n
        return
    ranks = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}")
    run = [*PAPER, "--batch_size=256", corpus("gpt2")]
    one = train_log(device, "one_card", *run)
    together = train_log(device, "all_cards", *run, launcher=(*ranks, "train.py"))
    yield f"losses of {n} cards: distance", distance(together["loss"], one["loss"]), "<= 1e-4"
    speed, of_one = (log["tokens_per_s"].tail(8).median() for log in (together, one))
    yield f"speed of {n} cards / that of one", speed / of_one, f">= {0.9 * n}"

    data = corpus("almanac", "--compact_vocab")
    began = time.time()
    with contextlib.suppress(RuntimeError):
        train_log(device, "killed", *SHORT, data, "--max_iters=1000000", "--save_interval=20",
                  launcher=(*ranks, "--no-python", "bash", "-c", KILLED, "train.py"))
    yield "seconds until a killed rank has ended the others", time.time() - began, "<= 120"
    updates = checkpoint.load(OUT / "runs/killed")["iter"]
    yield "updates in the checkpoint that is left", updates, ">= 20"


# -----------------------------------------------------------------------------
# the checks in turn

CHECKS = {check.__name__: check for check in (numbers, training, resume, learns, several_cards)}


@dataclasses.dataclass(frozen=True)
class GPUCheckConfig:
    # checks
    files: tuple = ()  # names of checks; none: all of them
    device: str = "cuda"  # cpu tries the checks themselves


def judge(what, measured, claim=""):
    """Return a row of the table: what, measured, claim, and whether it holds."""
    verdict = ""
    try:
        if callable(measured):
            measured = measured()
        if claim:  # of ours, and never of a user
            verdict = "holds" if eval(f"measured {claim}") else "FAILS"
    except Exception as e:
        measured, verdict = describe(e), "FAILS"
    if isinstance(measured, float):
        measured = f"{measured:,.6g}"
    return f"| {what} | {measured} | {claim} | {verdict} |"


def rows(check, device):
    """Yield the rows of a check. An error that ends it is the last one."""
    try:
        for line in check(device):
            yield judge(*line)
    except Exception as e:
        yield judge("error", describe(e), "== None")


def main():
    cfg = configure(GPUCheckConfig)
    if unknown := sorted({*cfg.files} - {*CHECKS}):
        raise UserError(f"there is no check {unknown[0]}; the checks are {', '.join(CHECKS)}")
    device = runtime.setup(cfg.device)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends the program that it runs
    cards = subprocess.getoutput("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader")
    print(f"{cards}, torch {torch.__version__}, commit {runtime.code_version()}")
    failed = 0
    for name in cfg.files or CHECKS:
        shutil.rmtree(OUT / "runs", ignore_errors=True)  # they may be of other code
        print(f"\n## {name}\n\n{CHECKS[name].__doc__}\n\n| | measured | claim | |\n{'|---' * 4}|")
        for row in rows(CHECKS[name], device):
            print(row, flush=True)
            failed += row.endswith("FAILS |")
        torch.cuda.empty_cache()  # for the programs of the next check
    if failed:
        raise UserError(f"{failed} claims do not hold", status=1)


if __name__ == "__main__":
    launch(main)
