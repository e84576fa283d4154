"""
What windows and packed documents cost: an update in turns, and one prompt of 65,536 tokens.

    python -m experiments.windows.cost            some minutes of one core; nothing beside it

An update is measured side by side with RoPE in every layer: the candidates take turns, and only
ratios of neighbouring turns count. A prompt is measured for each attention type in a process of
its own, so that its peak memory is its own.
"""
import itertools
import multiprocessing
import os
import time
from dataclasses import dataclass

import numpy as np
import torch

from experiments.speed.bench import peak_mib
from experiments.verdicts import markdown
from lib import attention, runtime
from lib.attention import ModelConfig
from lib.config import configure
from train import Compute, TrainConfig, make_optimizer, update

QUICK = dict(n_layer=2, n_head=2, n_embd=64, n_inner=168, block_size=128, vocab_size=372)
LONGER = dict(n_layer=4, n_head=4, n_embd=256, n_inner=688, block_size=2048, vocab_size=4096)
# name: (settings of the model, window of its S layers and their pattern, sequences of an update)
MODELS = {
    "config/quick.py: 2 layers of 64, 128 tokens": (
        QUICK, dict(window=32, window_pattern="SL"), 16),
    "4 layers of 256, 2,048 tokens": (
        LONGER, dict(window=256, window_pattern="SSSL"), 2),
}
TYPES = ("softmax", "ssmax", "ssmax_bias", "ssmax_s1", "head_scale", "asentmax", "residual")
WARM_UP = 3  # turns that do not count
NEW_TOKENS = 5  # of an answer


@dataclass(frozen=True)
class CostConfig:
    rounds: int = 20  # turns of each candidate
    prompt: int = 65536  # tokens of the prompt


def updates(settings, rows, doc_mask=False):
    """Yield the seconds that each update takes."""
    cfg = TrainConfig(**settings, batch_size=rows, dtype="float32", compile=False)
    model = attention.build(ModelConfig(**settings, doc_mask=doc_mask))
    optimizer, compute = make_optimizer(cfg, model), Compute.for_run(cfg, model)
    x, y = np.random.default_rng(0).integers(cfg.vocab_size, size=(2, rows, cfg.block_size))
    # four documents in each row
    documents = np.arange(cfg.block_size)[None].repeat(rows, 0) * 4 // cfg.block_size
    batch = [(x, y, documents if doc_mask else None)]
    for step in itertools.count():
        began = time.perf_counter()
        update(cfg, model, optimizer, compute, step, lambda m: (batch, x.size))
        yield time.perf_counter() - began


def print_updates(rounds):
    lines = []
    for name, (settings, windows, rows) in MODELS.items():
        ssmax = dict(settings, attention_type="ssmax")
        candidates = {
            "RoPE in every layer": updates(settings, rows),
            "windows": updates(settings | windows, rows),
            "RoPE in every layer, SSMax": updates(ssmax, rows),
            "windows, SSMax": updates(ssmax | windows, rows),
            "windows, SSMax, documents masked": updates(ssmax | windows, rows, doc_mask=True),
        }
        seconds = {candidate: [] for candidate in candidates}
        for turn in range(WARM_UP + rounds):
            for candidate, timings in candidates.items():
                took = next(timings)
                if turn >= WARM_UP:
                    seconds[candidate].append(took)
        first = np.array(seconds["RoPE in every layer"])
        for candidate, of_candidate in seconds.items():
            ratios = np.array(of_candidate) / first
            low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
            lines.append([name, candidate, f"{1000 * np.median(of_candidate):.0f}",
                          f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    markdown(f"An update, {rounds} turns", ["model", "", "ms", "of RoPE in every layer",
                                            "quartiles"], lines)


def one_prompt(attention_type, prompt):
    """Return (seconds, MiB) of one prompt and its answer. MiB is the peak of the process minus its
    peak after a short prompt."""
    torch.set_num_threads(1)
    settings, windows, _ = MODELS["config/quick.py: 2 layers of 64, 128 tokens"]
    runtime.setup("cpu")
    config = ModelConfig(**settings, **windows, attention_type=attention_type)
    model = attention.build(config).eval()
    idx = torch.randint(config.vocab_size, (1, prompt))
    with torch.no_grad():
        model.generate(idx[:, :256], NEW_TOKENS, temperature=0)
        before = peak_mib()
        began = time.perf_counter()
        model.generate(idx, NEW_TOKENS, temperature=0)
        took = time.perf_counter() - began
    return took, peak_mib() - before


def print_prompts(prompt):
    lines = []
    for attention_type in TYPES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, mib = pool.apply(one_prompt, (attention_type, prompt))
        lines.append([f"`{attention_type}`", f"{seconds:.2f}", f"{mib:.0f}"])
    markdown(f"One prompt of {prompt:,} tokens and {NEW_TOKENS} new ones, one core",
             ["", "seconds", "MiB above those of a short prompt"], lines)


def main():
    cfg = configure(CostConfig)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    runtime.setup("cpu")
    print_updates(cfg.rounds)
    print_prompts(cfg.prompt)


if __name__ == "__main__":
    runtime.launch(main)
