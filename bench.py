"""
Speed of this machine, in tokens per second: ours against the plain recipe, side by side; and what
memory a GPU needs, simulated.

    python bench.py train               train.py against nanoGPT's recipe (C1, G1)
    python bench.py ssmax               what SSMax costs over softmax (C2, G3)
    python bench.py posloss             loss by position against all logits in fp32 (C3)
    python bench.py niah                answers with the KV cache against none (C3)
    python bench.py prepare files...    prepare.py against tiktoken alone (P1)
    python bench.py memory              GiB of an update and an evaluation on a GPU, without one
    python bench.py all [files...]      everything but memory

The candidates take turns, so that only ratios of turns side by side count. The plain recipe is what
nanoGPT runs, around a block of our shapes: on a CPU fp32, eager, all logits at once, AdamW unfused;
on a GPU micro-batches of 12, compiled, under autocast.
"""
import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from eval_posloss import loss_sums
from lib import fakecuda, runtime
from lib.config import configure, read_config_file
from lib.runtime import UserError
from lib.text import GPT2_EOT, gpt2_encoding
from model import GPT, GPTConfig
from prepare import PrepareConfig, documents, prepare
from train import Compute, TrainConfig, first_micro_batch, make_optimizer, update


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    files: tuple = ()  # train, ssmax, posloss, niah, prepare, memory or all; then files to prepare
    rounds: int = 0  # turns of each candidate; 0: 20 of train, 40 of ssmax, 5 of the others
    num_threads: int = 0  # of prepare and tiktoken; 0: one a core
    device: str = "auto"  # auto, cuda, cpu

    def __post_init__(self):
        if min(self.rounds, self.num_threads) < 0:
            raise ValueError("rounds and num_threads must not be negative")


# On a CPU the model of nanoGPT's recipe for one, on a GPU the paper's. Sequences an update, rows
# and length of the evaluations' inputs, width of the products that show the machine's own speed.
SIZES = {
    "cpu": dict(model=dict(n_layer=6, n_head=6, n_embd=384, n_inner=1024, block_size=256),
                batch=16, posloss=(1, 4096), niah=(1, 4096), product=2048),
    "cuda": dict(model={}, batch=384, posloss=(6, 20_000), niah=(16, 8000), product=8192),
}
WHATS = ("train", "ssmax", "posloss", "niah", "prepare")
NEW_TOKENS = 8  # of an answer
PRODUCTS = 8  # a turn
WARM_UP = 3  # turns that do not count: compilation, caches, the clock

# -----------------------------------------------------------------------------
# Candidates: generators, which compute one turn between two yields. Those of the plain recipe leave
# our runtime's settings alone.


def new_model(device, settings):
    torch.manual_seed(1337)
    return GPT(GPTConfig(**settings)).to(device)


def new_batch(rows, length):
    """Random tokens x and y (rows, length), y one ahead of x."""
    generator = torch.Generator().manual_seed(1337)
    tokens = torch.randint(GPTConfig.vocab_size, (rows, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def plain_training(device, model, batch, compile):
    device = torch.device(device)
    gpu, model = device.type == "cuda", new_model(device, model)
    # nanoGPT fuses it on a GPU only
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=gpu)
    forward = torch.compile(model) if compile else model
    micro = 12 if gpu else batch
    x, y = (z.to(device) for z in new_batch(micro, model.config.block_size))
    while True:
        for _ in range(batch // micro):
            # nanoGPT has no autocast on a CPU
            with runtime.autocast(device, "auto" if gpu else "float32"):
                loss = forward(x, y)[1]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        yield


def our_training(device, model, batch, compile=True):
    device = runtime.setup(device)
    model = new_model(device, model)
    x, y = (z.numpy() for z in new_batch(batch, model.config.block_size))
    cfg = TrainConfig(**vars(model.config), batch_size=batch, compile=compile)
    optimizer, how = make_optimizer(cfg, model), Compute(first_micro_batch(cfg, model, device))

    def micro_batches(m):
        return [(x[i:i + m], y[i:i + m]) for i in range(0, batch, m)], x.size

    for step in itertools.count():
        update(cfg, model, optimizer, how, step, micro_batches)
        yield


def products(device, size):
    """The machine's own speed: matrix products in the precision that training would take."""
    device = runtime.setup(device)
    a = torch.randn(size, size, device=device, dtype=runtime.get_dtype(device, "auto"))
    while True:
        for _ in range(PRODUCTS):
            torch.mm(a, a)
        yield


@torch.no_grad()
def losses(device, model, rows, length, plain):
    device = torch.device(device) if plain else runtime.setup(device)
    model = new_model(device, model).eval()
    x, y = new_batch(rows, length)
    window = torch.cat((x[:, :1], y), dim=1).to(device)
    chunk = 0 if plain else runtime.logits_at_once(device, model.config.vocab_size)
    while True:
        with runtime.autocast(device, "float32" if plain else "auto", cache=False):
            loss_sums(model, window, chunk).cpu()
        yield


@torch.no_grad()
def answers(device, model, rows, length, plain):
    device = torch.device(device) if plain else runtime.setup(device)
    model = new_model(device, model).eval()
    prompt = new_batch(rows, length)[0].to(device)
    while True:
        idx = prompt
        with runtime.autocast(device, "float32" if plain else "auto"):
            if plain:  # the whole prompt and all its logits anew for each token
                for _ in range(NEW_TOKENS):
                    logits = model.lm_head(model.hidden(idx))
                    idx = torch.cat((idx, logits[:, -1:].argmax(dim=-1)), dim=1)
            else:
                idx = model.generate(idx, NEW_TOKENS, temperature=0, banned=(GPT2_EOT,))
        idx.tolist()
        yield


def texts_of(files):
    return [text for _, text in documents(PrepareConfig(files=tuple(files), name="bench"))]


def tiktoken_alone(device, files, num_threads):
    texts = texts_of(files)
    while True:
        gpt2_encoding().encode_ordinary_batch(texts, num_threads=num_threads)
        yield


def our_preparation(device, files, num_threads):
    cfg = PrepareConfig(files=tuple(files), name="bench", num_threads=num_threads)
    while True:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as quiet:
            with contextlib.redirect_stderr(quiet):
                prepare(dataclasses.replace(cfg, data_dir=folder))
        yield


# -----------------------------------------------------------------------------
# turns


def peak_mib():
    """The most memory so far: of the GPU, or else of this process; 0 where nothing tells."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")  # getrusage would count what the parent process had
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) / 2**10 if found else 0


def work(pipe, candidate, device, settings):
    """In a candidate's process: each of its turns waits for the word and reports its seconds."""
    base = 0 if device.startswith("cuda") else peak_mib()  # the libraries' and the interpreter's
    turns = candidate(device, **settings)
    while pipe.recv():
        began = time.perf_counter()
        next(turns)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        pipe.send(time.perf_counter() - began)
    pipe.send(peak_mib() - base)


def compare(device, candidates, rounds):
    """Let {name: (function, settings)} take turns -> {name: ([seconds of a turn], peak MiB)}."""
    spawn = multiprocessing.get_context("spawn")  # a forked one would share threads and caches
    pipes, seconds = {}, {name: [] for name in candidates}
    for name, (candidate, settings) in candidates.items():
        pipes[name], theirs = spawn.Pipe()
        spawn.Process(target=work, args=(theirs, candidate, str(device), settings)).start()
        theirs.close()  # or a dead process would look like a slow one
    for turn in range(WARM_UP + rounds):
        # who comes first is a percent slower: that takes turns too, A B B A
        for name in list(pipes)[::-1 if turn % 2 else 1]:
            try:
                pipes[name].send(True)
                seconds[name].append(pipes[name].recv())
            except (EOFError, ConnectionError) as e:
                raise UserError(f"{name} does not run here; its message is above", status=1) from e
        times = " | ".join(f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items())
        print(f"\rturn {turn + 1} of {WARM_UP + rounds} | {times}", end="   ", flush=True)
    print()
    for pipe in pipes.values():
        pipe.send(False)  # the end of its turns; then it says how much memory it took
    return {name: (seconds[name][WARM_UP:], pipes[name].recv()) for name in pipes}


def ratio(theirs, mine):
    """Quartiles of the ratios of two lists of seconds, turn by turn."""
    ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
    return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


# -----------------------------------------------------------------------------
# what is measured


def plan(what, sizes, files, threads):
    """(tokens a turn, rounds, {name: (candidate, settings)}); the last candidate is ours."""
    model, batch = sizes["model"], sizes["batch"]
    ssmax = dict(model, attention_type="ssmax")
    update = batch * GPTConfig(**model).block_size
    if what == "train":
        settings = dict(model=model, batch=batch)
        return update, 20, {
            "plain recipe": (plain_training, dict(settings, compile=False)),
            "plain recipe, compiled": (plain_training, dict(settings, compile=True)),
            "products": (products, dict(size=sizes["product"])),
            "train.py": (our_training, settings)}
    if what == "ssmax":
        return update, 40, {
            "softmax": (our_training, dict(model=model, batch=batch)),
            "ssmax": (our_training, dict(model=ssmax, batch=batch))}
    if what == "prepare":
        settings = dict(files=files, num_threads=threads)
        tokens = gpt2_encoding().encode_ordinary_batch(texts_of(files), num_threads=threads)
        return sum(map(len, tokens)), 5, {
            "tiktoken alone": (tiktoken_alone, settings),
            "prepare.py": (our_preparation, settings)}
    candidate = losses if what == "posloss" else answers
    rows, length = sizes[what]
    settings = dict(model=ssmax, rows=rows, length=length)
    plain = "fp32, all logits at once" if what == "posloss" else "no cache, all logits, fp32"
    return rows * length, 5, {
        plain: (candidate, dict(settings, plain=True)),
        f"eval_{what}.py": (candidate, dict(settings, plain=False))}


def bench(cfg, what, files, device):
    """Measure and print one comparison."""
    sizes, threads = SIZES[device.type], cfg.num_threads or os.cpu_count()
    tokens, rounds, candidates = plan(what, sizes, files, threads)
    if device.type == "cuda":
        candidates.pop("plain recipe", None)  # nobody trains so there
    found = compare(device, candidates, cfg.rounds or rounds)
    ours, mine = list(candidates)[-1], list(found.values())[-1][0]
    if what == "train":
        model = new_model("cpu", sizes["model"])
        flops = model.flops_per_token(model.config.block_size) * tokens
        # a product of n x n matrices is 2 n^3 FLOP
        done = PRODUCTS * 2 * sizes["product"]**3
        seconds, _ = found.pop("products")
        low, middle, high = (r * flops / done for r in ratio(seconds, mine))
        print(f"{ours} computes at {middle:.0%} ({low:.0%} to {high:.0%}) of the rate of plain "
              f"products here, {done / statistics.median(seconds) / 1e12:.3g} TFLOP/s")
    for name, (seconds, mib) in found.items():
        rate = tokens / statistics.median(seconds)
        low, middle, high = ratio(seconds, mine)
        faster = f" | {ours} is {middle:.3g}x as fast ({low:.3g} to {high:.3g})"
        print(f"{what:>8} | {name:<26} | {rate:>11,.0f} tokens/s | {mib:>6,.0f} MiB"
              f"{'' if name == ours else faster}", flush=True)


# -----------------------------------------------------------------------------
# memory of a GPU, simulated (lib/fakecuda.py)


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
    """An update with micro-batches of `rows` -> (GiB as it is, GiB compiled)."""
    optimizer = make_optimizer(TrainConfig(), model)
    x = torch.zeros(rows, model.config.block_size, dtype=torch.int64, device="cuda")

    def update():
        chunk = runtime.logits_at_once(x.device, model.config.vocab_size, training=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(x, x, chunk=chunk)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    # compiled: what is kept for backward, 16 bytes a parameter for weight, gradient and moments,
    # and the gradient of all logits in bf16
    rest = 16 * model.num_params() + 2 * x.numel() * model.config.vocab_size
    return peak_gib(update, model, optimizer), (saved_for_backward(model, x) + rest) / 2**30


def saved_for_backward(model, x):
    """Bytes that a compiled forward pass keeps: torch.compile's own min-cut of the graph."""
    state, kept = dict(model.named_parameters()) | dict(model.named_buffers()), {}

    def loss(x, *tensors):
        with torch.autocast("cuda", torch.bfloat16):
            tensors = dict(zip(state, tensors, strict=True))
            return torch.func.functional_call(model, tensors, (x, x))[1]

    def look(graph, _):
        *_, output = graph.graph.nodes
        for node in output.args[0][1:]:
            if getattr(node, "op", "placeholder") != "placeholder":  # the weights are there anyway
                storage = node.meta["val"].untyped_storage()
                kept[storage._cdata] = storage.nbytes()
        return graph

    aot_function(loss, fw_compiler=look, bw_compiler=lambda graph, _: graph,
                 partition_fn=min_cut_rematerialization_partition,
                 decompositions=select_decomp_table())(x, *state.values())
    return sum(kept.values())


@torch.no_grad()
def evaluation_gib(model, rows, length=20_000):
    window = torch.zeros(rows, length + 1, dtype=torch.int64, device="cuda")
    chunk = runtime.logits_at_once(window.device, model.config.vocab_size)
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        return peak_gib(lambda: loss_sums(model, window, chunk), model)


def memory():
    """Print the table; allow 10 % for CUDA itself, its libraries and fragmentation."""
    if not fakecuda.enabled():  # torch looks for devices once: a process of its own
        sys.exit(subprocess.call([sys.executable, *sys.argv], env=fakecuda.environment()))
    mini = read_config_file("config/mini_gpu.py")
    mini = {f: mini[f] for f in ("block_size", "n_layer", "n_head", "n_embd", "n_inner")}
    for name, settings in (("the paper's model", {}), ("config/mini_gpu.py", mini)):
        print(f"{name}, GiB, simulated\n{'micro-batch':>12} | as it is | compiled")
        with FakeTensorMode(), torch.device("cuda"):
            for rows in (4, 8, 16, 32, 64):
                as_it_is, compiled = update_gib(GPT(GPTConfig("ssmax", **settings)), rows)
                print(f"{rows:>12} | {as_it_is:>8.1f} | {compiled:>8.1f}", flush=True)
            for rows in (1, 6):
                gib = evaluation_gib(GPT(GPTConfig("ssmax", **settings)), rows)
                print(f"loss of {rows} x 20,000 tokens: {gib:.1f}", flush=True)


def main():
    cfg = configure(BenchConfig)
    what, *files = cfg.files or [""]
    if what not in (*WHATS, "memory", "all"):
        raise UserError(f"say what to measure: {', '.join(WHATS)}, memory or all; see --help")
    if what == "memory":
        return memory()
    if what == "prepare" and not files:
        raise UserError("prepare needs input: python bench.py prepare corpus/*.jsonl.zst")
    device = runtime.setup(cfg.device)
    if device.type not in SIZES:
        raise UserError(f"no sizes are chosen for {device.type}; --device=cpu")
    gpu = device.type == "cuda"
    print(torch.cuda.get_device_name(device) if gpu else f"{torch.get_num_threads()} CPU threads",
          f"torch {torch.__version__}", sep=", ")
    everything = WHATS if files else WHATS[:-1]
    for part in everything if what == "all" else [what]:
        bench(cfg, part, files, device)


if __name__ == "__main__":
    runtime.launch(main)
