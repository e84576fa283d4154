"""
Estimate the hours and the disk space that run.sh in this folder needs. (run.sh --dry_run calls it.)

    python -m experiments.paper.estimate a_softmax b_ssmax --n_measured=2

Everything here is computed from the settings. The share of the GPU's peak, mfu, was measured: with
default settings the paper's model reached 34 to 36 % on an H100, which has the H200's peak, and
config/mini.py with windows 25 % on an H200.
"""
from collections import Counter
from dataclasses import dataclass

import torch

from lib.config import configure
from lib.errors import launch
from lib.runtime import PEAK_FLOPS, flops_per_token
from model import GPT
from train import TrainConfig

GPU = "H200"
DOLLARS_PER_HOUR = 3  # of one GPU
BYTES_PER_TOKEN = 2  # of a bin: ids of GPT-2's vocabulary fit in 16 bits
BYTES_PER_PARAMETER = 12  # of a checkpoint: the weight and AdamW's two moments, in fp32


@dataclass(frozen=True)
class EstimateConfig:
    # arguments
    files: tuple = ("a_softmax",)  # a variant for each run: names of files in config/
    # estimate
    base: str = ""  # config file of the model's size; empty: the paper's
    gpus: int = 1  # GPUs that train together
    mfu: float = 0.34  # share of the GPU's peak
    n_measured: int = 0  # number of checkpoints that are fine-tuned and measured
    n_seqs: int = 100_000  # pieces for the loss by position of each of these
    seq_len: int = 20_000  # tokens in a piece


def short(number):
    """Return a number as text with no more digits than an estimate deserves."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def main():
    cfg = configure(EstimateConfig)
    flops_per_hour = 3600 * cfg.mfu * PEAK_FLOPS[GPU] * cfg.gpus
    print(f"\nESTIMATES, computed for {cfg.gpus} x {GPU} at {cfg.mfu:.0%} of its peak")

    print(f"\n{'pretraining':<20}{'tokens':>16}{'hours':>10}")
    total = corpus = checkpoint = 0
    for name, runs in Counter(cfg.files).items():
        settings = [f"config/{name}.py"]
        if cfg.base:
            settings.append(cfg.base)
        train = configure(TrainConfig, settings)
        with torch.device("meta"):  # a model without weights, to count parameters and FLOPs
            model = GPT(train)
        tokens = train.max_iters * train.batch_size * train.block_size
        flops = tokens * flops_per_token(model, train.block_size)
        hours = flops / flops_per_hour
        times = f" x {runs} runs" if runs > 1 else ""
        print(f"{name:<20}{tokens / 1e9:>13,.4g} bn{short(hours):>10}{times}")
        total += runs * hours
        corpus = max(corpus, BYTES_PER_TOKEN * tokens)
        checkpoint = max(checkpoint, BYTES_PER_PARAMETER * model.num_params())
    print(f"{'all of them':<36}{short(total):>10}")

    tokens = cfg.n_seqs * cfg.seq_len
    # a forward pass alone has a third of an update's FLOPs
    flops = tokens * flops_per_token(model, cfg.seq_len) / 3
    hours = flops / flops_per_hour
    print(f"loss by position, at most {cfg.n_seqs:,} pieces of {cfg.seq_len:,} tokens: "
          f"{short(hours)} hours for each of {cfg.n_measured} checkpoints")
    total += cfg.n_measured * hours
    print(f"all of this at {DOLLARS_PER_HOUR} $ per GPU and hour: "
          f"{short(total * cfg.gpus * DOLLARS_PER_HOUR)} $")
    print("not estimated: download, tokenizing, fine-tuning, needles")

    # Each measured checkpoint is fine-tuned into a folder of its own. (e) is not pretrained, but it
    # has a folder too.
    folders = len(cfg.files) + 1 + cfg.n_measured
    # Each folder keeps two checkpoints, and there is a third one while it is written.
    checkpoints = checkpoint * (2 * folders + 1)
    print(f"\n{'disk':<36}{'GB':>10}")
    sizes = {"corpus, which all variants share": corpus,
             f"checkpoints, two in {folders} folders": checkpoints,
             "both": corpus + checkpoints}
    for content, size in sizes.items():
        print(f"{content:<36}{short(size / 1e9):>10}")


if __name__ == "__main__":
    launch(main)
