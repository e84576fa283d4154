"""
Speed, measured side by side in one run: every candidate works in a process of its own, they take turns (A B B A), medians count.

    python bench.py train                 updates of train.py against the plain recipe, and against that compiled
    python bench.py ssmax                 updates of (b) SSMax against (a) softmax
    python bench.py posloss               per-position loss against all logits at once in fp32
    python bench.py niah                  answers with the KV cache against the whole prompt and all its logits anew for each token
    python bench.py prepare files...      prepare.py against tiktoken alone, on .jsonl files (also .gz, .zst)
    python bench.py growth                tokens/s and memory against context and against width, for `plot.py cost`
    python bench.py all files...          everything

Results go to results/bench-<device>.json; what is not measured again stays there. The plain recipe is what nanoGPT runs, around a block
of our shapes: on a CPU fp32, eager, all logits at once, AdamW unfused; on a GPU micro-batches of 12, compiled, under autocast.
"""
import contextlib
import json
import multiprocessing
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import runtime
from configurator import configure
from data import GPT2_EOT, gpt2_encoding
from eval_posloss import loss_sums
from model import GPT, GPTConfig
from prepare import Meter, PrepareConfig, prepare, read_files
from runtime import UserError
from train import TrainConfig, fit

WHATS = ("train", "ssmax", "posloss", "niah", "prepare", "growth")


@dataclass(frozen=True)
class BenchConfig:
    files: tuple = ()  # what to measure (train, ssmax, posloss, niah, prepare, growth, all), then input files of prepare
    rounds: int = 0  # turns of each candidate; 0: 20 of train, 40 of ssmax, 3 of growth, 5 of the others
    profile: bool = False  # also show where the time of one more turn goes
    num_proc: int = 0  # prepare: processes, and threads of tiktoken; 0: one a core
    device: str = "auto"  # auto, cuda, cpu
    out_dir: str = "results"  # folder of bench-<device>.json

    def __post_init__(self):
        if min(self.rounds, self.num_proc) < 0:
            raise ValueError("rounds and num_proc must not be negative")


# The model: on a CPU that of nanoGPT's recipe for one, on a GPU the paper's. Sequences an update, and the long inputs.
SIZES = {"cpu": dict(model=dict(n_layer=6, n_head=6, n_embd=384, n_inner=1024, block_size=256), batch=16, posloss=(1, 4096), niah=(1, 4096)),
         "cuda": dict(model={}, batch=384, posloss=(6, 20_000), niah=(16, 8000))}
NEW_TOKENS = 8  # of an answer

# -----------------------------------------------------------------------------
# Candidates. Each loops over `turns`: one iteration is one turn. Those of the plain recipe leave our runtime's settings alone.


def a_model(device, **changes):
    torch.manual_seed(1337)
    return GPT(GPTConfig(**{**SIZES[device.type]["model"], **changes})).to(device)


def a_batch(rows, length):
    tokens = torch.randint(50257, (rows, length + 1), generator=torch.Generator().manual_seed(1337))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def plain_training(turns, device, compile):
    device = torch.device(device)
    gpu, model = device.type == "cuda", a_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=gpu)
    net = torch.compile(model) if compile else model
    micro = 12 if gpu else SIZES["cpu"]["batch"]
    x, y = (z.to(device) for z in a_batch(micro, model.config.block_size))
    for _ in turns:
        for _ in range(SIZES[device.type]["batch"] // micro):
            with runtime.autocast(device, "auto" if gpu else "float32"):
                loss = net(x, y)[1]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()


def our_training(turns, device, batch=0, compile=True, **changes):
    device = runtime.get_device(device)
    model, turns = a_model(device, **changes), iter(turns)
    batch = batch or SIZES[device.type]["batch"]
    x, y = (z.numpy() for z in a_batch(batch, model.config.block_size))
    with tempfile.TemporaryDirectory() as folder:
        cfg = TrainConfig(**vars(model.config), out_dir=folder, batch_size=batch, eval_interval=0, save_interval=10**9, log_interval=10**9,
                          max_iters=10**9, device=str(device), compile=compile)
        m = cfg.micro_batch_size

        def train_batch(step):  # fit asks for its data at the beginning of each update: there a turn begins
            next(turns)
            return [(x[i:i + m], y[i:i + m]) for i in range(0, batch, m)], x.size

        with contextlib.suppress(StopIteration):
            fit(cfg, model, train_batch, None)


@torch.no_grad()
def losses(turns, device, plain, windows, seq_len, **changes):
    device = torch.device(device) if plain else runtime.get_device(device)
    model = a_model(device, attention_type="ssmax", **changes).eval()
    window = a_batch(windows, seq_len)
    window = torch.cat((window[0][:, :1], window[1]), dim=1).to(device)
    chunk = 0 if plain else runtime.logits_at_once(device, model.config.vocab_size)
    for _ in turns:
        with runtime.autocast(device, "float32" if plain else "auto", cache=False):
            loss_sums(model, window, chunk).cpu()


@torch.no_grad()
def answers(turns, device, plain, prompts, seq_len):
    device = torch.device(device) if plain else runtime.get_device(device)
    model = a_model(device, attention_type="ssmax").eval()
    prompt = a_batch(prompts, seq_len)[0].to(device)
    for _ in turns:
        idx = prompt
        with runtime.autocast(device, "float32" if plain else "auto"):
            if plain:
                for _ in range(NEW_TOKENS):
                    idx = torch.cat((idx, model.lm_head(model.hidden(idx))[:, -1:].argmax(dim=-1)), dim=1)
            else:
                idx = model.generate(idx, NEW_TOKENS, temperature=0, banned=(GPT2_EOT,))
        idx.tolist()


def texts_of(files):
    pieces = read_files(files, PrepareConfig(), Meter())
    return [json.loads(piece.payload)["text"] if piece.kind == "json" else piece.payload.decode() for piece in pieces]


def tiktoken_alone(turns, device, files, num_proc):
    texts = texts_of(files)
    for _ in turns:
        gpt2_encoding().encode_ordinary_batch(texts, num_threads=num_proc)


def our_preparation(turns, device, files, num_proc):
    # its own processes begin as on the command line, not as this one did (which would import torch in each)
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    for _ in turns:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
            prepare(PrepareConfig(files=tuple(files), name="bench", data_dir=folder, num_proc=num_proc))


# -----------------------------------------------------------------------------
# turns


def peak_mib():
    """The most memory so far: of the GPU, or else of this process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    if os.path.exists("/proc/self/status"):  # a new process inherits the maximum that getrusage reports
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**10
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def take_turns(pipe):
    """In a candidate's process: each iteration waits for the word to begin and reports how many seconds it took."""
    while word := pipe.recv():
        profiler = torch.profiler.profile() if word == "profile" else contextlib.nullcontext()
        with profiler:
            began = time.perf_counter()
            yield
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        if word == "profile":
            gpu = torch.cuda.is_initialized()  # there only kernels count: an op's time is that of its kernels once more
            own = {op.key: (op.self_device_time_total if gpu else op.self_cpu_time_total, op.count) for op in profiler.key_averages()
                   if not gpu or op.device_type == torch.autograd.DeviceType.CUDA}
            for key, (microseconds, count) in sorted(own.items(), key=lambda item: item[1], reverse=True)[:12]:
                print(f"  {microseconds / sum(t for t, _ in own.values()):6.1%} {microseconds / 1e3:10.1f} ms {count:7,} x  {key[:70]}", flush=True)
        pipe.send(seconds)


def work(pipe, candidate, device, settings):
    base = 0 if device.startswith("cuda") else peak_mib()  # libraries and interpreter are not the candidate's
    candidate(take_turns(pipe), device, **settings)
    pipe.send(peak_mib() - base)


def compare(cfg, device, candidates, rounds, warm_up=3):
    """
    Let `candidates` {name: (function, settings)} take turns -> {name: {"seconds": [a turn], "peak_mib": more than the libraries}}. One that
    does not run here is left out.
    """
    processes, results = {}, {}
    spawn = multiprocessing.get_context("spawn")
    for name, (candidate, settings) in candidates.items():
        pipe, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(theirs, candidate, str(device), settings))
        process.start()
        theirs.close()
        processes[name], results[name] = (process, pipe), {"seconds": []}
    for turn in range(warm_up + rounds + cfg.profile):
        for name, (process, pipe) in list(processes.items())[::-1 if turn % 2 else 1]:  # who comes first is a percent slower: it takes turns too
            try:
                if turn == warm_up + rounds:
                    print(f"{name}: where the time goes")
                pipe.send("profile" if turn == warm_up + rounds else "go")
                results[name]["seconds"].append(pipe.recv())
            except (EOFError, BrokenPipeError, ConnectionResetError):
                process.join()
                print(f"{name}: does not run here")
                del processes[name], results[name]
        if turn == warm_up + rounds:
            break
        print(f"\rturn {turn + 1} of {warm_up + rounds}" + "".join(f" | {name} {r['seconds'][-1]:.2f} s" for name, r in results.items()),
              end="   ", flush=True)
    print()
    for name, (process, pipe) in processes.items():
        pipe.send(None)
        results[name].update(seconds=results[name]["seconds"][warm_up:warm_up + rounds], peak_mib=round(pipe.recv()))
        process.join()
    return results


# -----------------------------------------------------------------------------
# what is measured


def row(cfg, device, what, tokens, candidates, rounds, flops=None, **settings):
    """Measure and report one comparison. The last candidate is ours; the ratio is the median over the rounds of (another / ours)."""
    found = compare(cfg, device, candidates, cfg.rounds or rounds)
    ours = list(candidates)[-1]
    if ours not in found:
        raise UserError(f"{ours} does not run here; its message is above", status=1)
    mine = found[ours]
    peak = runtime.peak_flops(device)
    for name, r in found.items():
        ratios = [other / own for other, own in zip(r["seconds"], mine["seconds"])]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        r.update(tokens_per_s=round(tokens / statistics.median(r["seconds"])), ours_is_faster=[round(q, 4) for q in quartiles],
                 seconds=[round(s, 4) for s in r["seconds"]])
        if flops and peak:
            r["mfu"] = round(flops * r["tokens_per_s"] / peak, 4)
        mfu = f" | MFU {r['mfu']:.1%}" if "mfu" in r else ""
        memory = f" | {r['peak_mib']:>7,} MiB" if r["peak_mib"] else ""
        ratio = "" if name == ours else f" | {ours} is {quartiles[1]:.3g}x as fast ({quartiles[0]:.3g} to {quartiles[2]:.3g})"
        print(f"{what:>8} | {name:<34} | {r['tokens_per_s']:>12,} tokens/s{memory}{mfu}{ratio}", flush=True)
    return {what: {"tokens": tokens, "settings": settings, "candidates": found}}


def bench_train(cfg, device, sizes):
    candidates = {"plain recipe": (plain_training, dict(compile=False)), "plain recipe, compiled": (plain_training, dict(compile=True)),
                  "train.py": (our_training, {})}
    if device.type == "cuda":
        del candidates["plain recipe"]
    model = a_model(torch.device("cpu"), **sizes["model"])
    T = model.config.block_size
    return row(cfg, device, "train", sizes["batch"] * T, candidates, 20, model.flops_per_token(T), batch=sizes["batch"], **vars(model.config))


def bench_ssmax(cfg, device, sizes):
    model = a_model(torch.device("cpu"), **sizes["model"])
    T = model.config.block_size
    candidates = {f"train.py, {t}": (our_training, dict(attention_type=t)) for t in ("softmax", "ssmax")}
    return row(cfg, device, "ssmax", sizes["batch"] * T, candidates, 40, model.flops_per_token(T), batch=sizes["batch"], **vars(model.config))


def bench_posloss(cfg, device, sizes):
    windows, seq_len = sizes["posloss"]
    candidates = {name: (losses, dict(plain=plain, windows=windows, seq_len=seq_len))
                  for name, plain in (("fp32, all logits at once", True), ("eval_posloss.py", False))}
    return row(cfg, device, "posloss", windows * seq_len, candidates, 5, windows=windows, seq_len=seq_len, **sizes["model"])


def bench_niah(cfg, device, sizes):
    prompts, seq_len = sizes["niah"]
    candidates = {name: (answers, dict(plain=plain, prompts=prompts, seq_len=seq_len))
                  for name, plain in (("no cache, all logits, fp32", True), ("eval_niah.py", False))}
    return row(cfg, device, "niah", prompts * seq_len, candidates, 5, prompts=prompts, seq_len=seq_len, new_tokens=NEW_TOKENS, **sizes["model"])


def bench_prepare(cfg, device, sizes):
    files, num_proc = cfg.files[1:], cfg.num_proc or os.cpu_count()
    if not files:
        raise UserError("prepare needs input: python bench.py prepare corpus/*.jsonl.zst")
    tokens = sum(map(len, gpt2_encoding().encode_ordinary_batch(texts_of(files))))
    settings = dict(files=files, num_proc=num_proc)
    candidates = {"tiktoken alone": (tiktoken_alone, settings), "prepare.py": (our_preparation, settings)}
    return row(cfg, device, "prepare", tokens, candidates, 5, num_proc=num_proc, files=[os.path.basename(f) for f in files])


def bench_growth(cfg, device, sizes):
    points = []
    jobs = [("context", T, T, {}) for T in (256, 1024, 4096, 8192, 20_000)]
    jobs += [("width", width, 256, dict(n_embd=width, n_head=width // 64, n_inner=-(-width * 8 // 3 // 64) * 64)) for width in (128, 256, 384, 512, 768)]
    for axis, value, T, changes in jobs:
        rows = max(1, 4096 // T)
        candidates = {"training": (our_training, dict(batch=rows, block_size=T, compile=device.type == "cuda", **changes)),
                      "evaluation": (losses, dict(plain=False, windows=rows, seq_len=T, **changes))}
        for what, r in compare(cfg, device, candidates, cfg.rounds or 3, warm_up=2 + (device.type == "cuda")).items():
            points.append({"axis": axis, "value": value, "what": what, "tokens": rows * T, "peak_mib": r["peak_mib"],
                           "tokens_per_s": round(rows * T / statistics.median(r["seconds"]))})
            print(f"{axis} {value:>6,} | {what:<10} | {points[-1]['tokens_per_s']:>10,} tokens/s | {r['peak_mib']:>7,} MiB", flush=True)
    return {"growth": points}


def machine(device):
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    if device.type == "cpu" and os.path.exists("/proc/cpuinfo"):
        name = re.search(r"model name\s*: (.*)|$", Path("/proc/cpuinfo").read_text())[1] or name
    return {"device": name, "threads": torch.get_num_threads(), "bf16": runtime.has_fast_bf16(device), "torch": torch.__version__,
            "python": platform.python_version()}


def main():
    cfg = configure(BenchConfig)
    if not cfg.files or cfg.files[0] not in (*WHATS, "all"):
        raise UserError(f"say what to measure: {', '.join(WHATS)} or all; see --help")
    if cfg.files[0] not in ("prepare", "all") and cfg.files[1:]:
        raise UserError(f"{cfg.files[0]} takes no input files; one thing at a time, or all")
    device = runtime.get_device(cfg.device)
    if device.type not in SIZES:
        raise UserError(f"no sizes are chosen for {device.type}; --device=cpu")
    label = "cpu" if device.type == "cpu" else re.sub(r"\W+", "-", torch.cuda.get_device_name(device).lower())
    path = Path(cfg.out_dir) / f"bench-{label}.json"
    for what in WHATS if cfg.files[0] == "all" else cfg.files[:1]:
        if what == "prepare" and not cfg.files[1:] and cfg.files[0] == "all":
            print("prepare is left out: name its input files")
            continue
        new = globals()[f"bench_{what}"](cfg, device, SIZES[device.type])
        try:
            old = json.loads(path.read_text()) if path.exists() else {}
            runtime.write_json(path, {**old, **new, "machine": {**old.get("machine", {}), what: machine(device)}})
        except (ValueError, AttributeError, TypeError) as e:
            raise UserError(f"{path} is no result of this program; move it away") from e
    print(f"written: {path}")


if __name__ == "__main__":
    runtime.launch(main)
