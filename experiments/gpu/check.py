"""
Check on a GPU what this repository claims about GPUs (README.md in this folder).

    python -m experiments.gpu.check                 all checks that are not finished, then a report
    python -m experiments.gpu.check rope speed      these checks, also if they are finished

A check is a function of the device that yields (what, measured). `measured` may be a function,
whose error then costs this line alone; an error elsewhere ends its check alone. OUT/checks.jsonl
has a line for each finished check, which is skipped on the same card, driver, torch and commit.
"""
import contextlib
import dataclasses
import functools
import gc
import itertools
import operator
import os
import shutil
import subprocess
import sys
import time
import warnings
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import train
from eval_niah import needle_scores
from eval_posloss import PosLossConfig, piece_losses
from experiments import bench
from experiments.check import CASES, PROMISES, WINDOWS, broken, make_model, small
from lib import attention, checkpoint, runtime, storage
from lib.attention import ModelConfig
from lib.config import configure
from lib.errors import UserError, describe, launch
from lib.loss import summed_loss
from model import Attention
from train import TrainConfig

OUT = Path(os.environ.get("OUT", "out/gpu"))

# GiB on a simulated GPU x 1.1 + 0.5, for what a simulation does not see
TRAINING_GIB = {4: 6.0, 16: 13.6, 64: 44.2}  # of the paper's model, by sequences at once
EVALUATION_GIB = {"position_losses": 4.5, "ask_needles": 9.4}

# (check, pattern of its lines, what is claimed of them): the first that fits counts. Other lines
# are only reported.
CLAIMS = [
    # 1: all of the difference from the CPU that rounding explains, see `rounding`
    ("numbers", "*", "<=", 1),
    ("promises", "*", "==", "kept"),
    ("compiled", "torch.compile works here", "==", True),
    ("compiled", "*", "<=", 1),
    # the angles are in fp64, so only the last rounding of a cosine may differ: a step below 1
    ("rope", "*", "<=", 2**-24),
    ("evaluations", "*tokens that differ", "==", 0),
    ("evaluations", "*largest difference", "<=", 1e-4),
    ("resume", "*", "<=", 2),
    *(("training_memory", f"* {rows}: GiB", "<=", gib) for rows, gib in TRAINING_GIB.items()),
    *(("training_memory", f"* {rows}: micro-batch", "==", rows) for rows in TRAINING_GIB),
    ("out_of_memory", "micro-batch with*", "<=", 8),
    ("out_of_memory", "its loss*", "<=", 2**-16),
    *(("evaluation_costs", f"{name}*: GiB", "<=", gib) for name, gib in EVALUATION_GIB.items()),
    ("speed", "*: MFU", ">=", 0.2),
    ("speed", "(b) SSMax: speed / *", ">=", 1 / 1.02),
    ("speed", "nanoGPT's recipe: speed / *", "<=", 1.0),
    ("anatomy", "times that*", "<=", 1),
    ("anatomy", "new graphs*", "==", 0),
    ("anatomy", "reasons*", "<=", 1),  # the break in GPT.hidden
    ("several_cards", "losses*", "<=", 1e-4),
    ("several_cards", "seconds*", "<=", 60),
    ("several_cards", "update of*", ">=", 20),
    ("several_cards", "*cards: speed*", ">=", 0.9),
    # ten seeds of softmax on a CPU found .20 to .84 of the needles at 65,536 tokens
    ("learns", "a_softmax*65,536 tokens", "<=", 0.9),
    ("learns", "*", ">=", 0.9),
    # log 50,257 = 10.82, and a little more for random logits
    ("learns_49m", "loss at update 0*", "<=", 0.075),
    # the entropy of a token of this training text when the one before it is known
    ("learns_49m", "loss after*", "<=", 2.64),
]
RELATIONS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


# -----------------------------------------------------------------------------
# 1. Right: the numbers of the card are those of the CPU, up to rounding

CPU = torch.device("cpu")
SMALL = dict(vocab_size=1000, block_size=256, n_layer=4, n_head=4, n_embd=256, n_inner=512,
             init_std=0.05, s_init=0.2)
SSMAX = ModelConfig("ssmax", **SMALL)
DTYPES = ("float32", "bfloat16")
ROWS = 16  # sequences of a batch


def random_text(starts, length):
    """Return random tokens (len(starts), length)."""
    return np.random.default_rng(0).integers(1000, size=(len(starts), length))


def random_batches(device, config, n):
    """Return a function that yields micro-batches of n random sequences, as in main of train.py."""
    tokens = random_text(range(n), config.block_size + 1)
    x, y = tokens[:, :-1], tokens[:, 1:]
    documents = np.cumsum(x % 50 == 0, axis=1)

    def micro_batches(split, step, n_rows):
        for i in range(0, n, n_rows):
            rows = slice(i, i + n_rows)
            of_rows = documents[rows] if config.doc_mask else None
            yield train.to_device(device, x[rows], y[rows], of_rows)

    return micro_batches


def results_of(config, device, dtype, loss_fn=summed_loss, micro=ROWS):
    """Return the logits, the loss and the gradient that a small model computes."""
    model, batches = make_model(config).to(device), random_batches(device, config, ROWS)
    total = 0.0
    for x, y, _, documents in batches("train", 0, micro):
        with runtime.autocast(device, dtype):
            loss = loss_fn(model, x, y, 0, None, documents) / (ROWS * config.block_size)
        loss.backward()
        total += loss.detach()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    (x, _, _, documents), = batches("train", 0, ROWS)
    with torch.no_grad(), runtime.autocast(device, dtype):
        logits = model.lm_head(model.hidden(x, documents=documents))
    return logits, total, gradient


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
    """Logits, loss and gradient of all attention, by kernel and micro-batch, against the CPU's."""
    for (kind, settings), dtype in itertools.product(CASES, DTYPES):
        config = ModelConfig(kind, **SMALL | settings)
        yield f"{kind} {settings or ''} in {dtype}", partial(rounding, config, device, dtype)
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        with sdpa_kernel(getattr(SDPBackend, name)):
            yield f"kernel {name}", partial(rounding, SSMAX, device, "bfloat16")
    for rows in (1, ROWS):
        measured = partial(rounding, SSMAX, device, "float32", summed_loss, rows)
        yield f"micro-batches of {rows} of {ROWS} sequences", measured


def promises(device):
    """What experiments/check.py promises of every attention class, among it the KV cache."""
    for kind, settings in CASES:
        config = small(ModelConfig(kind, **settings))
        with device:
            problems = [broken(promise, config) for promise in PROMISES]
        yield f"{kind} {settings or ''}", "; ".join(filter(None, problems)) or "kept"


def compiled(device):
    """Compiled code. On a GPU packed documents then use flex_attention."""
    loss_fn = train.training_loss(TrainConfig(), device)
    yield "torch.compile works here", loss_fn is not summed_loss
    cases = [{}, {"attention": "sink"}, WINDOWS, {"doc_mask": True}]
    for settings, dtype in itertools.product(cases, DTYPES):
        torch.compiler.reset()  # or it soon refuses to compile the same function again
        config = ModelConfig("ssmax", **SMALL | settings)
        measured = partial(rounding, config, device, dtype, loss_fn)
        yield f"ssmax {settings or ''} in {dtype}", measured


def rope(device):
    """RoPE's angles far out: in fp32 they would be off by .03."""
    position, layer = torch.tensor([10**6 - 1]), Attention(ModelConfig(), 0)
    there, here = torch.cat(layer.rope(position.to(device))), torch.cat(layer.rope(position))
    yield "RoPE at position 10^6", float((there.cpu() - here).abs().max())


def position_losses(model, texts, length, dtype="auto"):
    cfg = PosLossConfig(files=("",), seq_len=length, dtype=dtype)
    tokens, device = SimpleNamespace(read=random_text), model.wte.weight.device
    return piece_losses(cfg, model, tokens, np.arange(texts), device).cpu()


def ask_needles(model, texts, length, dtype="auto"):
    """Return the answers to random prompts, of 8 tokens, and the needle scores, as eval_niah.py."""
    device = model.wte.weight.device
    idx = torch.from_numpy(random_text(range(texts), length)).to(device)
    with runtime.autocast(device, dtype):
        answers = model.generate(idx, 8, temperature=0)
        weights = model.last_query_attention(idx)
    scores = []
    for row in weights:
        score, *_ = needle_scores(row, 100, 105)
        scores.append(score)
    return answers.cpu(), torch.stack(scores).cpu()


@torch.no_grad()
def evaluations(device):
    """Losses by position, greedy answers and needle scores equal the CPU's in fp32."""
    models = [make_model(SSMAX).to(place) for place in (device, CPU)]
    there, here = (position_losses(model, 4, 1000, "float32") for model in models)
    yield "losses by position: largest difference", float((there - here).abs().max())
    there, here = (ask_needles(model, 4, 1000, "float32") for model in models)
    yield "greedy answers: tokens that differ", int((there[0] != here[0]).sum())
    yield "needle scores: largest difference", float((there[1] - here[1]).abs().max())


def program(*command):
    """Run a Python program. Raise its last lines if it fails."""
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, text=True, timeout=900, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} ended with status {done.returncode}: "
                           f"{done.stdout.strip().splitlines()[-3:]}")


def corpus(name, *settings):
    """Prepare an embedded corpus. Return the setting that names it."""
    program("prepare.py", "--embedded=almanac", f"--name={name}", f"--data_dir={OUT}/data",
            *settings)
    return f"--data_dir={OUT}/data/{name}"


def training_log(device, name, *settings, launcher=("train.py",)):
    """Train in OUT/runs/name. Return the records of the log."""
    program(*launcher, *settings, f"--device={device.type}", f"--out_dir={OUT}/runs/{name}")
    return storage.read_lines(OUT / "runs" / name / "log.jsonl")[1:]


QUICK = ("config/quick.py", "config/window.py")
STEADY = ("config/b_ssmax.py", "--decay=none", "--eval_interval=0")


def resume(device):
    """A run in two parts ends as a run in one: bitwise, if the card repeats itself bitwise."""
    data = corpus("almanac", "--compact_vocab")

    def weights(name, *lengths):
        for length in lengths:
            training_log(device, name, *QUICK, *STEADY, data, "--dtype=bfloat16",
                         f"--max_iters={length}")
        tensors = checkpoint.load(OUT / "runs" / name)["model"].values()
        return torch.cat([tensor.flatten() for tensor in tensors])

    whole = weights("whole", 40)
    resumed = distance(weights("parts", 20, 40), whole)
    if resumed:
        resumed /= distance(weights("again", 40), whole) or 1e-300
    yield "distance of a resumed run from a whole one, in those of a repeated one", resumed


# -----------------------------------------------------------------------------
# 2. Fits: memory of the paper's model


def paper_model(device, *settings):
    """Return (settings, model) of the paper's model, with the same random weights each time."""
    cfg = configure(TrainConfig, list(settings))
    torch.manual_seed(0)
    with device:
        return cfg, attention.build(cfg)


def trainer(device, *settings):
    """Return (model, update): update() trains on a batch and returns its record."""
    # one micro-batch; the paper's updates have 2,048 sequences
    cfg, model = paper_model(device, "--batch_size=16", *settings)
    optimizer, loss_fn = train.make_optimizer(cfg, model), train.training_loss(cfg, device)
    batches = random_batches(device, cfg, cfg.batch_size)
    n_rows, steps = train.initial_micro_batch_size(cfg, model, cfg.compile), itertools.count()

    def update():
        record, _ = train.update(cfg, model, optimizer, loss_fn, batches, next(steps), n_rows)
        return record

    return model, update


def peak_gib(device, work):
    """Return the GiB on the card that are allocated at most while work() runs."""
    gc.collect()  # models of before
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) / 2**30


def training_memory(device):
    """An update of the paper's model, compiled."""
    total = torch.cuda.get_device_properties(device).total_memory / 2**30
    for rows, limit in TRAINING_GIB.items():
        what = f"training in micro-batches of {rows}"
        if limit > total:
            yield what, f"this card has {total:.3g} GiB"
            continue
        update = None  # the model of before
        torch.compiler.reset()
        _, update = trainer(device, "config/b_ssmax.py", f"--batch_size={2 * rows}",
                            f"--micro_batch_size={rows}")
        update()  # makes the optimizer's moments
        yield f"{what}: GiB", peak_gib(device, update)
        yield f"{what}: micro-batch", update()["micro_batch_size"]


def out_of_memory(device):
    """Training halves its micro-batch when memory runs out, with the same loss."""
    records = []

    def first_update():
        _, update = trainer(device, "--compile=False", "--micro_batch_size=16")
        records.append(update())

    gib = peak_gib(device, first_update)
    yield "16 sequences at once in eager: GiB", gib
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(0.75 * gib * 2**30 / total, device)
    try:
        first_update()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    whole, halved = records
    yield "micro-batch with 75 % of this memory", halved["micro_batch_size"]
    yield "its loss: relative error", abs(halved["loss"] / whole["loss"] - 1)


EVALUATIONS = [(position_losses, 6, 20_000), (ask_needles, 13, 10_000)]  # texts at once, tokens


@torch.no_grad()
def evaluation_costs(device):
    """Memory and speed of the evaluations of the paper's model."""
    _, model = paper_model(device, "config/b_ssmax.py")
    for function, texts, length in EVALUATIONS:
        work = partial(function, model, texts, length)
        what = f"{function.__name__}, {texts} texts of {length:,} tokens"
        yield f"{what}: GiB", peak_gib(device, work)
        yield f"{what}: texts/s", bench.repeat(work, texts)


# -----------------------------------------------------------------------------
# 3. Fast: training, and what the time goes into


def plain_recipe(device):
    """nanoGPT's: compiled, autocast, all logits at once, fused AdamW. Return as `trainer` does."""
    cfg, model = paper_model(device)
    optimizer = train.make_optimizer(cfg, model)
    (x, y, *_), = random_batches(device, cfg, 16)("train", 0, 16)
    return model, bench.plain_update(torch.compile(model), optimizer, x, y, "auto")


TURNS = 8  # of four timed updates each


def speed(device):
    """Training of the paper's model: (a) takes turns with each of the others."""
    b = ["config/b_ssmax.py"]
    sides = {
        "(a) softmax": partial(trainer, device),
        "(b) SSMax": partial(trainer, device, *b),
        "(b) with windows": partial(trainer, device, *b, "config/window_paper.py"),
        "nanoGPT's recipe": partial(plain_recipe, device),
    }
    _, of_softmax = trainer(device)
    peak = runtime.peak_flops(device)
    for name, make in sides.items():
        model, update = make()
        length = model.config.block_size
        pairs = []
        for _ in range(TURNS):
            pairs.append([bench.repeat(work, 16 * length) for work in (of_softmax, update)])
        softmax, own = np.transpose(pairs)
        rate = float(np.median(own))
        yield f"{name}: tokens/s", f"{rate:,.0f}"
        yield f"{name}: MFU", peak and rate * runtime.flops_per_token(model, length) / peak
        yield f"{name}: speed / speed of (a)", float(np.median(own / softmax))


def anatomy(device):
    """Graph breaks, recompilations, waits for the GPU and the longest kernels of an update."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    _, update = trainer(device, "config/b_ssmax.py")
    update()
    graphs = counters["stats"]["unique_graphs"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        update()
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("called a synchronizing" in str(warning.message) for warning in caught)
    yield "times that an update waits for the GPU", waits
    gpu = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[gpu], acc_events=True) as profiler:
        update()
    yield "new graphs after the first update", counters["stats"]["unique_graphs"] - graphs
    yield "reasons for graph breaks", len(counters["graph_break"])
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    for event in events[:12]:
        milliseconds = event.self_device_time_total / 1000
        yield f"kernel `{event.key[:70]}`", f"{milliseconds:.2f} ms in {event.count} calls"


# -----------------------------------------------------------------------------
# 4. Several cards

KILL_AFTER = 60  # seconds
TRAIN = f'{sys.executable} train.py "$@"'  # what each rank runs in bash
KILLED = f"[ $RANK = 1 ] && exec timeout --signal=KILL {KILL_AFTER} {TRAIN}; exec {TRAIN}"


def several_cards(device):
    """Two ranks equal one; a killed rank ends the others; speed by the number of cards."""
    n_cards = torch.cuda.device_count()
    if n_cards < 2:
        yield "several cards", f"this machine has {n_cards}"
        return

    def train_on(n, name, *settings, script=f"exec {TRAIN}"):
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}",
                    "--no-python", "bash", "-c", script, "train")
        return training_log(device, name, *settings, *STEADY, launcher=launcher)

    small = [*QUICK, corpus("almanac", "--compact_vocab")]
    losses = []
    for n in (1, 2):
        log = train_on(n, f"on_{n}", *small, "--max_iters=60")
        losses.append(torch.tensor([record["loss"] for record in log]))
    one, two = losses
    yield "losses of two ranks: distance from those of one", distance(two, one)

    began = time.time()
    with contextlib.suppress(RuntimeError):
        train_on(2, "killed", *small, "--max_iters=1000000", "--save_interval=20", script=KILLED)
    seconds = time.time() - began - KILL_AFTER
    yield "seconds after which a killed rank has ended the others", seconds
    yield "update of the checkpoint that is left", checkpoint.load(OUT / "runs/killed")["iter"]

    data, rates = corpus("gpt2"), {}
    for n in (1, 2, 4, 8):
        if n > n_cards:
            break
        log = train_on(n, f"cards_{n}", data, "--max_iters=12", f"--batch_size={64 * n}")
        rates[n] = float(np.median([record["tokens_per_s"] for record in log[3:]]))
        if n > 1:
            yield f"{n} cards: speed / ({n} x that of one)", rates[n] / (n * rates[1])


# -----------------------------------------------------------------------------
# 5. It learns


def learns(device):
    """The quick run on the card: needles at 512 times the training length (README)."""
    data = corpus("almanac", "--compact_vocab")
    for name in ("a_softmax", "b_ssmax"):
        training_log(device, name, *QUICK, f"config/{name}.py", data)
        program("eval_niah.py", "config/quick_niah.py", OUT / "runs" / name, data, "--n_samples=8",
                "--context_sizes=(128,65536)", f"--device={device.type}")
        records = storage.read_lines(OUT / "runs" / name / "niah.jsonl")[1:]
        for size in (128, 65536):
            of_size = [record for record in records if record["size"] == size]
            exact = [record["exact"] for record in of_size]
            yield f"{name}: needles found at {size:,} tokens", np.mean(exact)


def learns_49m(device):
    """49 M parameters, 300 updates: better than any model that sees one token only."""
    data = corpus("recall", "--block_size=512", "--n_copy=9600", "--n_train=38401")
    log = training_log(device, "49m", "config/mini.py", "config/b_ssmax.py", data,
                       "--data_order=sequence", "--max_iters=300", "--decay_iters=60",
                       "--eval_interval=300")
    first, last = (record["val_loss"] for record in log if "val_loss" in record)
    yield "loss at update 0 (10.8 to 10.95): distance from 10.875", abs(first - 10.875)
    yield "loss after 300 updates", last


# -----------------------------------------------------------------------------
# the checks in turn, and the report

CHECKS = {check.__name__: check for check in (
    numbers, promises, compiled, rope, evaluations, resume, training_memory, out_of_memory,
    evaluation_costs, speed, anatomy, several_cards, learns, learns_49m)}


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


def judge(name, what, measured):
    """Return a line of the report on a check: [what, claimed, measured, verdict]."""
    claims = [claim for check, pattern, *claim in CLAIMS
              if check == name and fnmatchcase(what, pattern)]
    relation, limit = claims[0] if claims else ("", "")
    verdict = ""
    try:
        measured = measured() if callable(measured) else measured
        if relation and measured is not None:
            verdict = "holds" if RELATIONS[relation](measured, limit) else "does not hold"
    except Exception as e:
        measured, verdict = describe(e), "does not hold"
    limit, measured = map(text_of, (limit, measured))
    return [what, f"{relation} {limit}".strip(), measured, verdict]


def text_of(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def run(name, device):
    """Run a check, print its lines and return them."""
    print(f"== {name}: {CHECKS[name].__doc__}", flush=True)
    shutil.rmtree(OUT / "runs", ignore_errors=True)  # they may be of other code
    lines = []
    try:
        for line in CHECKS[name](device):
            lines.append(judge(name, *line))
            print(" | ".join(lines[-1]), flush=True)
    except Exception as e:
        lines.append([name, "no error", describe(e), "does not hold"])
        print(" | ".join(lines[-1]), flush=True)
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return lines


def write_report(where, finished):
    """Write report.md. finished: {name of a check: its lines}."""
    text = ["# On this GPU", "", ", ".join(f"{key} {value}" for key, value in where.items())]
    for name in filter(finished.get, CHECKS):
        text += ["", f"**{name}**: {CHECKS[name].__doc__}", "",
                 "| | claimed | measured | |", "|---|---|---|---|"]
        for line in finished[name]:
            cells = [cell.replace("|", "/") for cell in line]
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
        finished[name] = run(name, device)
        before.append({"check": name, "environment": where, "lines": finished[name]})
        storage.write_lines(path, before)
        write_report(where, finished)
        if device.type == "cuda":
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
