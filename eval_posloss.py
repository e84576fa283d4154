"""
Per-position test loss, far beyond the training length (section 3.2 and Fig. 5 of the paper).

    python eval_posloss.py out/a_softmax/ckpt.pt out/b_ssmax/ckpt.pt --data_dir=data/slimpajama --split=test
    python eval_posloss.py out/a_softmax/ckpt.pt --attention_type=ssmax --tag=e         (e): swapped at load, no training

Each result goes beside its checkpoint, posloss.json, or posloss-<tag>.json. The same command again continues a killed run, or repeats
the table of a finished one. `torchrun` shares the windows among the ranks.
"""
import dataclasses
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import checkpoint
import runtime
from configurator import configure
from data import Tokens, random_starts
from runtime import UserError, print0


@dataclass(frozen=True)
class PosLossConfig:
    files: tuple = ()  # checkpoints
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    split: str = "test"  # its split
    seq_len: int = 20_000  # tokens of a window
    n_seqs: int = 1000  # windows, drawn at random; the paper has 100,000
    rope_theta: float = 500_000.0  # base of RoPE, in the paper 50 times that of training; 0: that of training
    attention_type: str = ""  # swap the attention of a softmax checkpoint at load: (e)
    swap_scale: float = 1.0  # mean factor on q after the swap; with head_scale one constant temperature, a control for (e)
    seed: int = 1337  # of the windows: the same for every checkpoint
    tag: str = ""  # the result is posloss-<tag>.json
    micro_batch_size: int = 0  # windows at once; 0: as many as fit
    loss_chunk: int = 0  # rows of logits that exist at once; 0: what suits the device
    save_seconds: int = 60  # between partial results
    device: str = "auto"  # auto, cuda, cpu, mps
    dtype: str = "auto"  # auto, bfloat16, float32

    def __post_init__(self):
        if "/" in self.tag or "\\" in self.tag:
            raise ValueError("tag is part of a file's name: no slashes")
        if min(self.seq_len, self.n_seqs) < 1:
            raise ValueError("seq_len and n_seqs must be positive")
        if min(self.micro_batch_size, self.loss_chunk, self.save_seconds, self.rope_theta, self.seed) < 0:
            raise ValueError("micro_batch_size, loss_chunk, save_seconds, rope_theta and seed must not be negative")


MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20)  # of the training length, in the table


def loss_sums(model, window, chunk):
    """window (B, T+1) -> the sums over B of the losses at each position and of their squares, (2, T) in fp64."""
    losses = model(window[:, :-1], window[:, 1:], reduction="none", chunk=chunk)[1].double()
    return torch.stack((losses.sum(0), losses.square().sum(0)))


@torch.no_grad()
def measure(cfg, path, tokens, device):
    """The result for one checkpoint, as a dict; partial results are kept in its file."""
    out = Path(path).parent / f"posloss{'-' * bool(cfg.tag)}{cfg.tag}.json"
    model, state = checkpoint.load_model(path, device, cfg.attention_type, cfg.rope_theta, cfg.swap_scale)
    checkpoint.check_length(model, cfg.seq_len)
    if state["vocab"] != tokens.vocab:
        raise UserError(f"{path} was trained on another vocabulary than {cfg.data_dir} has")
    settings = {k: v for k, v in dataclasses.asdict(cfg).items()
                if k not in ("files", "tag", "data_dir", "micro_batch_size", "loss_chunk", "save_seconds", "device")}
    settings.update(checkpoint=checkpoint.fingerprint(path), data=tokens.digest, dtype=str(runtime.get_dtype(device, cfg.dtype)))
    result = runtime.continue_result(out, settings) or {"settings": settings, "done": 0, "sums": [[0.0] * cfg.seq_len] * 2}
    if "mean" in result:
        return result
    done, sums = result["done"], torch.tensor(result["sums"], dtype=torch.float64, device=device)
    starts = random_starts(cfg.seed, "posloss", 0, cfg.n_seqs, len(tokens) - cfg.seq_len)
    size = cfg.micro_batch_size or max(1, (2**17 if device.type == "cuda" else 2**13) // cfg.seq_len)
    chunk = cfg.loss_chunk or runtime.logits_at_once(device, model.config.vocab_size)
    began = saved = time.perf_counter()
    first = done
    while done < cfg.n_seqs:
        # one turn: `size` windows a rank; the ranks' sums meet in the file, so that any number of ranks can continue it
        mine = starts[done:done + size * runtime.world_size()][runtime.rank()::runtime.world_size()]
        turn = torch.zeros_like(sums)
        if len(mine):
            window = torch.from_numpy(tokens.read(mine, cfg.seq_len + 1)).to(device)
            try:
                with runtime.autocast(device, cfg.dtype, cache=False):  # each weight is needed once
                    turn += loss_sums(model, window, chunk)
            except torch.OutOfMemoryError:
                if size == 1 or runtime.world_size() > 1:
                    raise
                size //= 2
                continue
        runtime.all_reduce([turn])
        sums += turn
        done = min(cfg.n_seqs, done + size * runtime.world_size())
        now = time.perf_counter()
        rate = (done - first) * cfg.seq_len / (now - began)
        if now - saved > cfg.save_seconds and done < cfg.n_seqs:
            saved = now
            runtime.write_json(out, {**result, "done": done, "sums": sums.tolist()})
        print0(f"\r{path}: {done:,}/{cfg.n_seqs:,} windows | {rate:,.0f} tokens/s | ETA "
               f"{runtime.duration((cfg.n_seqs - done) * cfg.seq_len / rate)}   ", end="")
    print0()
    total, squares = sums.cpu().numpy()
    mean = total / cfg.n_seqs
    spread = np.sqrt(np.maximum(squares / cfg.n_seqs - mean**2, 0) / max(1, cfg.n_seqs - 1))
    result = {"settings": settings, "config": state["config"], "model_config": dataclasses.asdict(model.config), "count": cfg.n_seqs,
              "tokens_per_s": round(rate), "mean": mean.round(6).tolist(), "stderr": spread.round(6).tolist()}
    runtime.write_json(out, result)
    return result


def table(results):
    """Mean loss at multiples of the training length: over the tenth of the positions before it."""
    block = next(iter(results.values()))["model_config"]["block_size"]
    length = len(next(iter(results.values()))["mean"])
    ends = [n for n in (round(m * block) for m in MULTIPLES) if n < 0.95 * length] + [length]
    width = max(len(name) for name in results) + 2
    print0(f"{'loss (nats) before position':<{width}}" + "".join(f"{n:>16,}" for n in ends))
    print0(f"{'':<{width}}" + "".join(f"{f'{n / block:.3g}x':>16}" for n in ends))
    for name, result in results.items():
        cells = []
        for n in ends:
            part = slice(n - max(1, n // 10), n)
            error = math.hypot(*result["stderr"][part]) / len(result["stderr"][part])  # positions taken as independent
            cells.append(f"{np.mean(result['mean'][part]):.4f} ±{error:.4f}")
        print0(f"{name:<{width}}" + "".join(f"{c:>16}" for c in cells) + f"   {result['tokens_per_s']:,} tokens/s")


def main():
    cfg = configure(PosLossConfig)
    if not cfg.files:
        raise UserError("name one or more checkpoints; see --help")
    device = runtime.get_device(cfg.device)
    runtime.init_ranks(device)
    tokens = Tokens(cfg.data_dir, cfg.split)
    if len(tokens) <= cfg.seq_len:
        raise UserError(f"split {cfg.split} has {len(tokens):,} tokens, a window needs {cfg.seq_len + 1:,}; choose a smaller --seq_len")
    table({path: measure(cfg, path, tokens, device) for path in cfg.files})


if __name__ == "__main__":
    runtime.launch(main)
