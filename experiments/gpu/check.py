"""
Check on a GPU what this repository claims about GPUs (README.md in this folder).

    python -m experiments.gpu.check                 all checks that are not finished, then a report
    python -m experiments.gpu.check rope cache      only these checks

A check is a function that gets the device and yields lines: what was checked, what is claimed, what
was measured, and whether the claim holds. Each check runs in a process of its own, so that an error
in one does not end the others. OUT/NAME.json is the record of a finished check.
"""
import contextlib
import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import train
from eval_niah import needle_scores
from eval_posloss import PosLossConfig, window_losses
from lib import attention, checkpoint, runtime
from lib.attention import ModelConfig
from lib.config import configure
from lib.data import Tokens
from lib.loss import summed_loss
from lib.runtime import UserError
from model import ATTENTION, Attention, KVCache
from train import TrainConfig

CPU = torch.device("cpu")
OUT = Path(os.environ.get("OUT", "out/gpu"))
GIB = 2**30
TIMEOUT = 900  # seconds after which a check is ended


@dataclasses.dataclass(frozen=True)
class CheckConfig:
    # arguments
    files: tuple = ()  # names of checks; none: all
    # checks
    alone: bool = False  # measure one check in this process, as the program does by itself
    device: str = "cuda"  # cpu tries the checks themselves, where they need no GPU


class Line(NamedTuple):
    """One line of the report. holds: None if nothing is claimed, or this card cannot tell."""
    what: str
    claimed: str
    measured: str
    holds: bool | None


def at_most(what, measured, limit, unit=""):
    return Line(what, f"at most {limit:.3g}{unit}", f"{measured:.3g}{unit}", measured <= limit)


def at_least(what, measured, limit, unit=""):
    return Line(what, f"at least {limit:.3g}{unit}", f"{measured:.3g}{unit}", measured >= limit)


def equal(what, measured, claimed):
    return Line(what, str(claimed), str(measured), measured == claimed)


def note(what, measured):
    return Line(what, "", measured, None)


# -----------------------------------------------------------------------------
# 1. Right: the numbers of the card are those of the CPU, up to rounding

# s_init is about 1 / mean log n, so that the logits are as large as softmax's: see `rounding`
SMALL = dict(vocab_size=1000, block_size=256, n_layer=4, n_head=4, n_embd=256, n_inner=512,
             init_std=0.05, s_init=0.2)
ROWS = 4  # sequences of a batch
KINDS = {  # every attention class, and settings that change the numbers
    **{name: {"attention_type": name} for name in ATTENTION},
    "ssmax_s1": {"attention_type": "ssmax_s1", "init_std": 0.025},  # its s is fixed
    "GQA": {"attention_type": "ssmax", "n_kv_head": 2},
    "QK-norm": {"attention_type": "ssmax", "qk_norm": True},
    "NoPE": {"attention_type": "ssmax", "rope_fraction": 0.0},
    "YaRN": {"attention_type": "ssmax", "rope_scaling": "yarn", "rope_factor": 4.0},
    "gate": {"attention_type": "ssmax", "gate": True},
    "sink": {"attention_type": "ssmax", "sink": "learned"},
    "windows": {"attention_type": "ssmax", "window_pattern": "SL", "window": 32},
    "packed": {"attention_type": "ssmax", "doc_mask": True},
    "ALiBi": {"attention_type": "ssmax", "alibi": True},
    "scale-invariant": {"scale_invariant": True},
}
UNIT_ROUNDOFF = {"float32": 2**-24, "bfloat16": 2**-8}


def rounding(config, dtype):
    """
    Return how far two correct results of a model may be apart, relative to their size.

    Rounding has a relative error of at most u, which is 2^-24 in fp32 and 2^-8 in bf16. Between its
    input and its output a layer rounds 14 times in a row: x, W and the product in each of its four
    matrix products, the attention weights and the SwiGLU. The head rounds 3 times. A sum of K terms
    in fp32 is off by 2^-24 sqrt(K), as a random walk. All of these errors are independent, so their
    squares add up. Softmax turns a relative error of a logit z into an error of |z| in its weights,
    beside the error that was there; |z| is about 1 here. Two results are compared: sqrt(2).
    """
    # sums of a layer: C terms in qkv, proj and gate_up, then down, q k (64 channels), weights v
    products = 3 * config.n_embd + config.n_inner + 64 + config.block_size
    terms = config.n_layer * products + config.n_embd
    roundings = 14 * config.n_layer + 3
    squares = roundings * UNIT_ROUNDOFF[dtype]**2 + terms * UNIT_ROUNDOFF["float32"]**2
    return (1 + 1) * math.sqrt(2 * squares)


def make_model(device, settings):
    """Return the same small model on every device."""
    torch.manual_seed(0)
    model = attention.build(ModelConfig(**SMALL | settings))
    for numbers in model.scales().values():  # heads that are equal would hide a mix-up
        numbers.data += 0.2 * torch.rand_like(numbers)
    return model.to(device)


def random_batch(rows, config):
    """Return a batch of random tokens as train.update wants it, see train.Batches."""
    tokens = np.random.default_rng(0).integers(
        config.vocab_size, size=(rows, config.block_size + 1), dtype=np.int64)
    x, y = tokens[:, :-1], tokens[:, 1:]
    documents = np.cumsum(x % 50 == 0, axis=1) if config.doc_mask else None

    def batch(m):
        micro_batches = []
        for i in range(0, rows, m):
            part = slice(i, i + m)
            micro_batches.append((x[part], y[part], documents[part] if config.doc_mask else None))
        return micro_batches, x.size

    return batch


def results_of(model, dtype, loss_fn=summed_loss, micro=ROWS):
    """Return {name: tensor} of the logits, the loss and the gradient that a model computes."""
    device, batch = model.wte.weight.device, random_batch(ROWS, model.config)
    loss, *_ = train.batch_loss(TrainConfig(dtype=dtype), model, loss_fn, batch, micro)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    (x, _, documents), = batch(ROWS)[0]
    with torch.no_grad(), runtime.autocast(device, dtype):
        x, documents = train.to_device(x, device), train.to_device(documents, device)
        logits = model.lm_head(model.hidden(x, documents=documents))
    return {"logits": logits, "loss": loss, "gradient": gradient}


def distance(results, expected):
    """Return |results - expected| / |expected|, the root mean squares of two tensors."""
    results, expected = (z.detach().cpu().double() for z in (results, expected))
    return float((results - expected).norm() / expected.norm())


def agree(what, results, expected, limit):
    """Return the Line of results that must agree within `limit`, a gradient within its double."""
    # The backward pass has two products for each of the forward pass, so three times as many errors
    # add up, which is less than twice the root mean square.
    shares = []
    for name in expected:
        allowed = 2 * limit if name == "gradient" else limit
        shares.append(distance(results[name], expected[name]) / allowed)
    names = ", ".join(expected)
    return at_most(f"{what}: {names}", max(shares) * limit, limit)


def attempt(what, work, *args):
    """Return the Line work(what, *args), or one that says which error it ended with."""
    try:
        return work(what, *args)
    except Exception as e:
        return Line(what, "no error", runtime.describe(e), False)


def attention_classes(device):
    """Every kind of attention against the CPU in fp32."""
    for dtype, (name, settings) in itertools.product(UNIT_ROUNDOFF, KINDS.items()):

        def compare(what, dtype=dtype, settings=settings):
            model = make_model(device, settings)
            expected = results_of(make_model(CPU, settings), "float32")
            return agree(what, results_of(model, dtype), expected, rounding(model.config, dtype))

        yield attempt(f"{name} in {dtype}, against the CPU in fp32", compare)


def compiled(device):
    """Compiled code against eager code. On a GPU packed documents then use flex_attention."""
    loss_fn = train.training_loss(TrainConfig(), device)
    yield equal("torch.compile works here", loss_fn is not summed_loss, True)
    for name in ("softmax", "ssmax", "sink", "windows", "packed"):
        for dtype in UNIT_ROUNDOFF:

            def compare(what, dtype=dtype, settings=KINDS[name]):
                model = make_model(device, settings)
                expected = results_of(make_model(device, settings), "float32")
                results = results_of(model, dtype, loss_fn)
                return agree(what, results, expected, rounding(model.config, dtype))

            yield attempt(f"{name} in {dtype}, compiled against eager in fp32", compare)


def kernels(device):
    """Each kernel of scaled_dot_product_attention."""
    expected = results_of(make_model(CPU, KINDS["ssmax"]), "float32")
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):

        def compare(what, backend=backend):
            model = make_model(device, KINDS["ssmax"])
            with sdpa_kernel(getattr(SDPBackend, backend)):
                results = results_of(model, "bfloat16")
            return agree(what, results, expected, rounding(model.config, "bfloat16"))

        yield attempt(f"kernel {backend} in bf16, against the CPU in fp32", compare)


@torch.no_grad()
def cache(device):
    """The KV cache: a text in pieces gives the same as at once."""
    for name in ("softmax", "ssmax", "sink", "windows", "ALiBi"):
        model = make_model(device, KINDS[name])
        (x, _, _), = random_batch(ROWS, model.config)(ROWS)[0]
        idx = train.to_device(x, device)
        for dtype in UNIT_ROUNDOFF:
            stored = KVCache(x.shape[1])
            with runtime.autocast(device, dtype):
                pieces = [model.hidden(piece, stored) for piece in idx.split((100, 1, 7, 148), 1)]
                whole = model.hidden(idx)
            yield agree(f"{name} in {dtype}, with a cache", {"states": torch.cat(pieces, dim=1)},
                        {"states": whole}, rounding(model.config, dtype))


def micro_batches(device):
    """The micro-batch does not change the result."""
    expected = results_of(make_model(device, KINDS["ssmax"]), "float32")
    model = make_model(device, KINDS["ssmax"])
    yield agree(f"micro-batches of 1 against {ROWS}", results_of(model, "float32", micro=1),
                expected, rounding(model.config, "float32"))


def rope(device):
    """RoPE's angles far out: in fp32 they would be off by .03."""
    position = torch.tensor([10**6 - 1])
    layer = Attention(ModelConfig(), 0)
    # the angles are in fp64, so only the last rounding of a cosine may differ: a step below 1
    error = max(float((a.cpu() - b).abs().max()) for a, b in
                zip(layer.rope(position.to(device)), layer.rope(position), strict=True))
    yield at_most("RoPE at position 10^6, against the CPU", error, 2**-24)


@torch.no_grad()
def greedy(device):
    """Generation without randomness is equal to the CPU's."""
    prompt = torch.from_numpy(random_batch(ROWS, ModelConfig(**SMALL))(ROWS)[0][0][0])
    for name in ("softmax", "ssmax", "windows"):
        texts = [make_model(d, KINDS[name]).generate(prompt.to(d), 32, temperature=0).cpu()
                 for d in (device, CPU)]
        equal_tokens = int((texts[0] == texts[1])[:, -32:].sum())
        yield equal(f"{name}: greedy tokens equal to the CPU's", equal_tokens, 32 * ROWS)


def program(*arguments):
    """Run a program of this repository. Raise its last line if it fails."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:3])} ended with status {done.returncode}: "
                           f"{done.stdout.strip().splitlines()[-1:]}")
    return done.stdout


def almanac():
    """Make the small embedded corpus. Return the setting that names it."""
    program("prepare.py", "--embedded=almanac", "--compact_vocab", "--name=almanac",
            f"--data_dir={OUT}/data")
    return f"--data_dir={OUT}/data/almanac"


def small_run(device, name, *settings):
    """Train a small model with SSMax and windows in OUT/name."""
    program("train.py", "config/quick.py", "config/window.py", "config/b_ssmax.py", almanac(),
            "--decay=none", "--eval_interval=0", f"--device={device.type}", *settings,
            f"--out_dir={OUT}/{name}")


def resume(device):
    """A run in two parts ends as a run in one: bitwise, if the card repeats itself bitwise."""
    small_run(device, "one", "--dtype=bfloat16", "--max_iters=40")
    small_run(device, "again", "--dtype=bfloat16", "--max_iters=40")
    small_run(device, "parts", "--dtype=bfloat16", "--max_iters=20")
    small_run(device, "parts", "--dtype=bfloat16", "--max_iters=40")
    weights = {}
    for name in ("one", "again", "parts"):
        tensors = checkpoint.load(OUT / name)["model"].values()
        weights[name] = torch.cat([tensor.flatten() for tensor in tensors])
    repeated = distance(weights["again"], weights["one"])
    yield note("difference of the weights of two identical runs", f"{repeated:.3g}")
    yield at_most("difference of a resumed run", distance(weights["parts"], weights["one"]),
                  2 * repeated)


def evaluations(device):
    """The programs that evaluate give the same on the card and on the CPU, in fp32."""
    small_run(device, "evaluated", "--max_iters=300")
    data = almanac()
    where = {"card": device.type, "CPU": "cpu"}
    for place, name in where.items():
        common = [data, "--dtype=float32", f"--device={name}", f"--out={OUT}/{place}",
                  "--overwrite", OUT / "evaluated"]
        program("eval_posloss.py", "config/quick_posloss.py", "--n_seqs=8", *common)
        program("eval_niah.py", "config/quick_niah.py", "--trials=8", *common)
    # records have six decimals, and scores five
    for kind, key, limit in (("posloss", "losses", 2e-5), ("needle", "scores", 1e-4)):
        records = [runtime.read_lines(OUT / place / "evaluated" / f"{kind}.jsonl")[1:]
                   for place in where]
        values = [np.array([record[key] for record in sorted(part, key=lambda r: r["i"])])
                  for part in records]
        yield at_most(f"{kind}.jsonl: largest difference of {key}",
                      float(np.abs(values[0] - values[1]).max()), limit)


# -----------------------------------------------------------------------------
# 2. Fits: memory of the paper's model

PAPER_GIB = {4: 5.0, 16: 11.9, 64: 39.7}  # README: {sequences at once: GiB}, simulated
ASK = 8  # tokens of an answer


def paper_model(device, *settings):
    """Return (settings, model) of the paper's model, with random weights."""
    cfg = configure(TrainConfig, list(settings))
    with device:
        return cfg, attention.build(cfg)


def peak_gib(device, work):
    """Return the GiB on the card that are allocated at most while work() runs."""
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) / GIB


def with_margin(gib):
    return 1.1 * gib + 0.5  # as README says: what a simulation does not see


def training_memory(device):
    """An update of the paper's model, compiled."""
    total = torch.cuda.get_device_properties(device).total_memory / GIB
    for rows, claimed in PAPER_GIB.items():
        cfg, model = paper_model(device, "config/b_ssmax.py")
        optimizer = train.make_optimizer(cfg, model)
        loss_fn = train.training_loss(cfg, device)
        batch, used = random_batch(2 * rows, cfg), []

        def work(arguments=(cfg, model, optimizer, loss_fn), batch=batch, rows=rows, used=used):
            for step in range(2):
                record, _ = train.update(*arguments, step, batch, rows)
                used.append(record["micro_batch_size"])

        peak, what = peak_gib(device, work), f"training in micro-batches of {rows}"
        if used[-1] == rows:
            yield at_most(what, peak, with_margin(claimed), " GiB")
        else:
            fits = with_margin(claimed) < total
            yield Line(what, f"at most {with_margin(claimed):.3g} GiB",
                       f"out of memory on {total:.0f} GiB: went on with {used[-1]}",
                       False if fits else None)
        del model, optimizer, loss_fn, work


def out_of_memory(device):
    """Training halves its micro-batch when memory runs out, with the same loss."""
    cfg, model = paper_model(device, "config/b_ssmax.py")
    batch, losses, used = random_batch(16, cfg), [], []
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(9 * GIB / total, device)  # 16 take 11 GiB in eager
    for micro in (16, 4):
        loss, _, micro = train.batch_loss(cfg, model, summed_loss, batch, micro)
        model.zero_grad(set_to_none=True)
        losses.append(loss)
        used.append(micro)
    yield Line("out of memory at 9 GiB with micro-batches of 16", "8 or 4", str(used[0]),
               used[0] in (8, 4))
    yield agree("after the halving, against micro-batches of 4", {"loss": losses[0]},
                {"loss": losses[1]}, rounding(cfg, "bfloat16"))


class RandomText:
    """Stands in for lib.data.Tokens."""

    def read(self, starts, length):
        return np.random.default_rng(0).integers(50257, size=(len(starts), length))


def loss_by_position(device, model, windows):
    window_losses(PosLossConfig(files=("",)), model, RandomText(), np.arange(windows), device)


def ask_needles(device, model, prompts, size):
    """Answer random prompts, and score heads, as eval_niah.answer does."""
    idx = torch.from_numpy(RandomText().read(range(prompts), size)).to(device)
    with runtime.autocast(device, "auto"):
        model.generate(idx, ASK, temperature=0, banned=(50256,))
        weights = model.last_query_attention(idx)
    return [needle_scores(row, [(100, 105)]) for row in weights]


@torch.no_grad()
def evaluation_memory(device):
    """The two evaluations at the paper's lengths, with as many texts at once as they take."""
    _, model = paper_model(device, "config/b_ssmax.py")
    # claimed: what torch's memory tracker counts on a simulated GPU
    peak = peak_gib(device, lambda: loss_by_position(device, model, 6))
    yield at_most("loss by position, 6 windows of 20,000 tokens", peak, with_margin(3.6), " GiB")
    peak = peak_gib(device, lambda: ask_needles(device, model, 13, 10_000))
    yield at_most("needles, 13 prompts of 10,000 tokens", peak, with_margin(8.1), " GiB")


# -----------------------------------------------------------------------------
# 3. Fast: training, needles, and what the time goes into

SPEED_ROWS = 128  # sequences of an update; the paper's 2,048 would only take longer
VARIANTS = {
    "(a) softmax": ["config/a_softmax.py"],
    "(b) SSMax": ["config/b_ssmax.py"],
    "(b) with windows": ["config/b_ssmax.py", "config/window_paper.py"],
}


def trainer(device, *files):
    """Return (cfg, model, run): run(n) makes n updates and returns their records."""
    cfg, model = paper_model(device, *files, f"--batch_size={SPEED_ROWS}")
    optimizer, loss_fn = train.make_optimizer(cfg, model), train.training_loss(cfg, device)
    batch, steps = random_batch(SPEED_ROWS, cfg), itertools.count()
    micro = train.first_micro_batch(cfg, model)

    def run(n):
        return [train.update(cfg, model, optimizer, loss_fn, next(steps), batch, micro)[0]
                for _ in range(n)]

    return cfg, model, run


def median_rate(records):
    return float(np.median([record["tokens_per_s"] for record in records]))


def mfu(device, model, length, tokens_per_s, share=1):
    """Return the share of the card's peak, or NaN; `share` of an update's FLOPs is computed."""
    peak = runtime.peak_flops(device, train.PEAK_FLOPS) or math.nan
    return share * model.flops_per_token(length) * tokens_per_s / peak


def speed(device):
    """Training of the paper's model: 30 updates of each variant, which take turns."""
    trainers = {name: trainer(device, *files) for name, files in VARIANTS.items()}
    records = {name: [] for name in VARIANTS}
    for _, _, run in trainers.values():
        run(3)  # compiles
    for _ in range(3):
        for name, (_, _, run) in trainers.items():
            records[name] += run(10)
    rates = {name: median_rate(records[name]) for name in VARIANTS}
    for name, (cfg, model, _) in trainers.items():
        yield note(f"{name}: training, tokens/s", f"{rates[name]:,.0f}")
        yield at_least(f"{name}: MFU (estimated .45; below .2 something is wrong)",
                       mfu(device, model, cfg.block_size, rates[name]), 0.2)
    yield at_most("time of SSMax / time of softmax", rates["(a) softmax"] / rates["(b) SSMax"],
                  1.02)


def compiler(device):
    """Graph breaks, recompilations, and how often an update waits for the GPU."""
    from torch._dynamo.utils import counters
    counters.clear()
    _, _, run = trainer(device, "config/b_ssmax.py")
    run(2)
    graphs = counters["stats"]["unique_graphs"]
    breaks = Counter({reason.split("\n")[0]: n for reason, n in counters["graph_break"].items()})
    run(2)
    yield equal("new graphs after the first updates",
                counters["stats"]["unique_graphs"] - graphs, 0)
    yield at_most("different graph breaks (one is ours, in GPT.hidden)", len(breaks), 1)
    yield note("graphs, and reasons of the breaks", f"{graphs}: {dict(breaks)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        run(1)
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    yield at_most("times that an update waits for the GPU", waits, 1)


def plain(device):
    """nanoGPT's recipe on the same card: autocast, compiled, all logits at once, fused AdamW."""
    cfg, model, run = trainer(device, "config/a_softmax.py")
    run(3)
    ours, micro = median_rate(run(10)), train.first_micro_batch(cfg, model)
    optimizer, forward = train.make_optimizer(cfg, model), torch.compile(model)
    micro_batches, _ = random_batch(SPEED_ROWS, cfg)(micro)

    def update():
        for x, y, _ in micro_batches:
            with runtime.autocast(device, "auto"):
                loss = forward(train.to_device(x, device), train.to_device(y, device))[1]
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    seconds = []
    for _ in range(3 + 10):
        began = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - began)
    rate = SPEED_ROWS * cfg.block_size / float(np.median(seconds[3:]))
    yield note("the plain recipe, tokens/s", f"{rate:,.0f}")
    yield at_least("ours / the plain recipe", ours / rate, 1.0)


@torch.no_grad()
def evaluation_speed(device):
    """Loss by position and needles of the paper's model."""
    _, model = paper_model(device, "config/b_ssmax.py")
    works = {  # {what: (texts, their tokens, work)}
        "loss by position, 20,000 tokens": (6, 20_000, loss_by_position),
        "needles, 8,000 tokens": (16, 8000, lambda *args: ask_needles(*args, 8000)),
    }
    for what, (texts, length, work) in works.items():
        work(device, model, texts)
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(3):
            work(device, model, texts)
        torch.cuda.synchronize(device)
        rate = 3 * texts / (time.perf_counter() - began)
        # a forward pass has a third of an update's FLOPs
        share = mfu(device, model, length, rate * length, share=1 / 3)
        yield note(f"{what}: texts/s", f"{rate:.3g} (MFU {share:.2f}; estimated .35)")


def profile(device):
    """What the time of an update goes into: the longest kernels."""
    from torch.profiler import ProfilerActivity
    _, _, run = trainer(device, "config/b_ssmax.py")
    run(3)
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(1)
    events = [event for event in profiler.key_averages() if event.self_device_time_total]
    events.sort(key=lambda event: event.self_device_time_total, reverse=True)
    total = sum(event.self_device_time_total for event in events)
    for event in events[:12]:
        yield note(f"share of the time: `{event.key[:70]}`",
                   f"{event.self_device_time_total / total:.1%} in {event.count} calls")


# -----------------------------------------------------------------------------
# 4. Several cards

def on_cards(n, module, name, *settings):
    """Train on n cards. Return the records of the updates."""
    program("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}", "-m",
            module, *settings, "--eval_interval=0", f"--out_dir={OUT}/{name}")
    return runtime.read_lines(OUT / name / "log.jsonl")[1:]


def several_cards(device):
    """Two ranks equal one; a killed rank ends the others; speed by the number of cards."""
    n_cards = torch.cuda.device_count()
    if n_cards < 2:
        yield note("several cards", f"this machine has {n_cards}")
        return
    small = ["config/quick.py", "config/window.py", "config/b_ssmax.py", almanac(),
             "--decay=none", "--max_iters=60", "--save_interval=20"]
    losses = {}
    for n in (1, 2):
        records = on_cards(n, "train", f"on_{n}", *small)
        losses[n] = torch.tensor([record["loss"] for record in records])
    yield agree("two ranks against one, 60 updates", {"loss": losses[2]}, {"loss": losses[1]},
                rounding(ModelConfig(**SMALL), "float32"))

    began = time.time()
    with contextlib.suppress(RuntimeError):
        on_cards(2, "experiments.gpu.killed", "killed", *small)
    yield at_most("a killed rank ends the others after s", time.time() - began, 360)
    yield equal("it leaves the checkpoint of update", checkpoint.load(OUT / "killed")["iter"], 20)

    program("prepare.py", "--embedded=almanac", "--name=gpt2", f"--data_dir={OUT}/data")
    paper, rates = ["config/b_ssmax.py", f"--data_dir={OUT}/data/gpt2", "--max_iters=12"], {}
    for n in [n for n in (1, 2, 4, 8) if n <= n_cards]:
        records = on_cards(n, "train", f"cards_{n}", *paper, f"--batch_size={n * SPEED_ROWS}")
        rates[n] = median_rate(records[3:])
        yield at_least(f"{n} cards: speed / ({n} x that of one)", rates[n] / (n * rates[1]), 0.9)


# -----------------------------------------------------------------------------
# 5. It learns


def learns(device):
    """The quick run on the card: needles at 512 times the training length (README)."""
    shares = {}
    for name in ("a_softmax", "b_ssmax"):
        run = OUT / "learns" / name
        program("train.py", "config/quick.py", "config/window.py", f"config/{name}.py", almanac(),
                f"--device={device.type}", f"--out_dir={run}")
        program("eval_niah.py", "config/quick_niah.py", run, almanac(), "--n_samples=8",
                "--context_sizes=(128,65536)", f"--device={device.type}")
        records = runtime.read_lines(run / "niah.jsonl")[1:]
        for size in (128, 65536):
            shares[name, size] = np.mean([r["exact"] for r in records if r["size"] == size])
    yield at_least("softmax: needles found at 128 tokens", shares["a_softmax", 128], 0.9)
    yield at_least("SSMax: needles found at 128 tokens", shares["b_ssmax", 128], 0.9)
    yield at_least("SSMax: needles found at 65,536 tokens", shares["b_ssmax", 65536], 0.9)
    yield at_most("softmax: needles found at 65,536 tokens (ten seeds on a CPU: .20 to .84)",
                  shares["a_softmax", 65536], 0.9)


def learns_49m(device):
    """49 M parameters, 300 updates: better than any model that sees one token only."""
    data = f"--data_dir={OUT}/data/recall"
    program("prepare.py", "--embedded=almanac", "--name=recall", "--block_size=512",
            "--n_copy=9600", "--n_train=38401", f"--data_dir={OUT}/data")
    program("train.py", "config/mini.py", "config/b_ssmax.py", data, "--data_order=sequence",
            "--max_iters=300", "--decay_iters=60", "--eval_interval=300",
            f"--device={device.type}", f"--out_dir={OUT}/learns/49m")
    losses = [record["val_loss"] for record in
              runtime.read_lines(OUT / "learns/49m/log.jsonl")[1:] if "val_loss" in record]
    yield Line("loss at update 0: log 50,257 = 10.82, and a little more for random logits",
               "10.8 to 10.95", f"{losses[0]:.3f}", 10.8 <= losses[0] <= 10.95)
    # the entropy of a token when the one before it is known, in the training text
    tokens = Tokens(OUT / "data/recall", "train")
    text = tokens.read([0], len(tokens))[0]
    _, pairs = np.unique(text[:-1] * tokens.vocab_size + text[1:], return_counts=True)
    _, singles = np.unique(text[:-1], return_counts=True)
    entropies = [-(n / n.sum() * np.log(n / n.sum())).sum() for n in (pairs, singles)]
    yield at_most("loss after 300 updates, against the entropy given the token before",
                  losses[-1], entropies[0] - entropies[1])


# -----------------------------------------------------------------------------
# records and the report

PARTS = {
    "Right": [attention_classes, compiled, kernels, cache, micro_batches, rope, greedy, resume,
              evaluations],
    "Fits": [training_memory, out_of_memory, evaluation_memory],
    "Fast": [speed, compiler, plain, evaluation_speed, profile],
    "Several cards": [several_cards],
    "It learns": [learns, learns_49m],
}
CHECKS = {check.__name__: check for checks in PARTS.values() for check in checks}


def environment(device):
    """Return what a measurement depends on: card, driver, torch and commit."""
    card, driver = "CPU", ""
    if device.type == "cuda":
        card = torch.cuda.get_device_name(device)
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            driver = done.stdout.split()[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            driver = "unknown"
    return {"card": card, "driver": driver, "torch": torch.__version__,
            "cuda": torch.version.cuda, "commit": runtime.code_version()}


def record_of(name):
    """Return the record of a check, or {} if there is none."""
    path = OUT / "checks" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_record(name, where, lines, seconds, error=""):
    """Write what a check measured. error: what ended it, if it did not finish."""
    (OUT / "checks").mkdir(parents=True, exist_ok=True)
    runtime.write_json(OUT / "checks" / f"{name}.json", {
        "environment": where, "seconds": round(seconds, 1), "error": error,
        "lines": [line._asdict() for line in lines]})


def measure(name, device):
    """Run one check in this process and write its record."""
    began, lines, error = time.time(), [], ""
    try:
        for line in CHECKS[name](device):
            lines.append(line)
            print(f"{VERDICTS[line.holds]:>14} | {line.what} | {line.claimed} | {line.measured}",
                  flush=True)
    except Exception as e:
        error = runtime.describe(e)
        print(f"{'error':>14} | {name} | {error}", flush=True)
    write_record(name, environment(device), lines, time.time() - began, error)


VERDICTS = {True: "holds", False: "does not hold", None: ""}


def write_report(where):
    """Write report.json and report.md of the records that there are. Return their lines."""
    records = {name: record for name in CHECKS if (record := record_of(name))}
    runtime.write_json(OUT / "report.json", {"environment": where, "checks": records})
    text = ["# On this GPU", "", ", ".join(f"{key} {value}" for key, value in where.items())]
    lines = []
    for part, checks in PARTS.items():
        text += ["", f"## {part}", "", "| | claimed | measured | |", "|---|---|---|---|"]
        for name in (check.__name__ for check in checks if check.__name__ in records):
            record = records[name]
            mine = [Line(**line) for line in record["lines"]]
            if record["error"]:
                mine.append(Line(name, "no error", record["error"], False))
            for what, claimed, measured, holds in mine:
                cells = [what, claimed, measured, VERDICTS[holds]]
                text.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
            lines += mine
    with runtime.atomic_write(OUT / "report.md", "w") as file:
        file.write("\n".join(text) + "\n")
    return lines


def finished(name, where):
    """Return whether a check ran to its end here: on this card and with this code."""
    record = record_of(name)
    return bool(record) and not record["error"] and record["environment"] == where


def main():
    cfg = configure(CheckConfig)
    for name in cfg.files:
        if name not in CHECKS:
            raise UserError(f"there is no check {name}; the checks are {', '.join(CHECKS)}")
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU here: run this on a machine with one, whose driver "
                        "fits (experiments/gpu/README.md)")
    device = runtime.setup(cfg.device)
    if cfg.alone:
        measure(*cfg.files, device)
        return
    where = environment(device)
    for name in cfg.files or CHECKS:
        if finished(name, where):
            print(f"== {name}: finished before")
            continue
        print(f"== {name}: {CHECKS[name].__doc__}", flush=True)
        began = time.time()
        command = [sys.executable, "-m", "experiments.gpu.check", name, "--alone",
                   f"--device={cfg.device}"]
        before = record_of(name)
        try:
            status = subprocess.run(command, timeout=TIMEOUT).returncode
            problem = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            problem = f"not finished after {TIMEOUT} seconds"
        if record_of(name) == before:  # it died before it could write
            write_record(name, where, [], time.time() - began, problem)
        write_report(where)
    lines = write_report(where)
    failed = sum(line.holds is False for line in lines)
    print(f"{OUT}/report.md: {sum(line.holds is True for line in lines)} claims hold, {failed} "
          "do not")
    if failed:
        raise UserError(f"{failed} claims do not hold, see {OUT}/report.md", status=1)


if __name__ == "__main__":
    runtime.launch(main)
