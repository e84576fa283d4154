"""
Estimate the hours and the disk space that run.sh in this folder needs. (run.sh --dry_run calls it.)

    python -m experiments.paper.estimate a_softmax b_ssmax --n_measured=2

Everything here is computed from the settings and nothing is measured.
"""
from dataclasses import dataclass

import torch

from eval_posloss import PosLossConfig
from lib.config import configure
from lib.runtime import UserError, launch
from model import GPT
from train import PEAK_FLOPS, TrainConfig

GPU = "H200"
MFU = 0.45  # assumed share of the GPU's peak
BYTES_PER_TOKEN = 2  # of a bin: ids of GPT-2's vocabulary fit in 16 bits
BYTES_PER_PARAMETER = 12  # of a checkpoint: the weight and AdamW's two moments, in fp32


@dataclass(frozen=True)
class EstimateConfig:
    # arguments
    files: tuple = ()  # variants to pretrain: names of files in config/, as in a_softmax b_ssmax
    # estimate
    gpus: int = 1  # GPUs that train together
    n_measured: int = 0  # number of checkpoints that are fine-tuned and measured
    n_seqs: int = 100_000  # windows for the loss by position of each of these


def hours(flops, gpus):
    """Return the hours that this many FLOPs take."""
    return flops / (MFU * PEAK_FLOPS[GPU] * gpus) / 3600


def empty_model(settings):
    """Return a model without weights, which takes no memory, to count parameters and FLOPs."""
    with torch.device("meta"):
        return GPT(settings)


def print_hours(cfg, variants):
    """Print the hours of pretraining and of the loss by position. variants: {name: settings}."""
    print(f"{'pretraining':<20}{'tokens':>16}{'hours':>10}")
    total = 0
    for name, train in variants.items():
        tokens = train.max_iters * train.batch_size * train.block_size
        flops = tokens * empty_model(train).flops_per_token(train.block_size)
        total += hours(flops, cfg.gpus)
        print(f"{name:<20}{tokens / 1e9:>13,.1f} bn{hours(flops, cfg.gpus):>10,.0f}")
    print(f"{'all of them':<36}{total:>10,.0f}")

    seq_len = PosLossConfig.seq_len
    # a forward pass alone has a third of an update's FLOPs
    flops = cfg.n_seqs * seq_len * empty_model(train).flops_per_token(seq_len) / 3
    print(f"loss by position, {cfg.n_seqs:,} windows of {seq_len:,} tokens: "
          f"{hours(flops, cfg.gpus):,.1f} hours for each of {cfg.n_measured} checkpoints")
    print("not estimated: download, tokenizing, fine-tuning, needles")


def print_disk(cfg, variants):
    """Print the disk space of corpus and checkpoints. variants: {name: settings}."""
    tokens = max(train.max_iters * train.batch_size * train.block_size
                 for train in variants.values())
    params = max(empty_model(train).num_params() for train in variants.values())
    # Each measured checkpoint is fine-tuned into a folder of its own. (e) is not pretrained, but it
    # has a folder too.
    folders = len(variants) + 1 + cfg.n_measured
    # each folder keeps two checkpoints, and there is a third one while it is written
    checkpoints = BYTES_PER_PARAMETER * params * (2 * folders + 1)
    corpus = BYTES_PER_TOKEN * tokens
    print(f"{'disk':<36}{'GB':>10}")
    print(f"{'corpus, which all variants share':<36}{corpus / 1e9:>10,.0f}")
    print(f"{f'checkpoints, two in {folders} folders':<36}{checkpoints / 1e9:>10,.0f}")
    print(f"{'both':<36}{(corpus + checkpoints) / 1e9:>10,.0f}")


def main():
    cfg = configure(EstimateConfig)
    if not cfg.files or cfg.gpus < 1:
        raise UserError("name the variants to pretrain, as in a_softmax b_ssmax, and at least one "
                        "GPU; see --help")
    variants = {name: configure(TrainConfig, [f"config/{name}.py"]) for name in cfg.files}
    print(f"\nESTIMATES, computed and not measured: {MFU:.0%} MFU is assumed, on {cfg.gpus} x {GPU}"
          + ", each as fast as one alone" * (cfg.gpus > 1) + "\n")
    print_hours(cfg, variants)
    print()
    print_disk(cfg, variants)


if __name__ == "__main__":
    launch(main)
