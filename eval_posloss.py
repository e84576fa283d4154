"""
Per-position test loss, far beyond the training length (section 3.2 and Fig. 5 of the paper).

    python eval_posloss.py out/a_softmax out/b_ssmax --rope_factor=50     as in the paper
    python eval_posloss.py out/a_softmax --attention_type=ssmax --tag=e   (e): swapped at load
    python eval_posloss.py out/laptop/b --split=val --seq_len=4096 --n_seqs=20

The result is posloss[-tag].jsonl beside the checkpoint (or, with --out=FOLDER, in FOLDER/RUN), with
a record for each piece of text. Its loss at position p is the mean over the p/10 positions before
it (at 1,000: 900 to 999). The same command continues a killed evaluation. `torchrun` divides the
pieces among its processes.
"""
from dataclasses import dataclass

import numpy as np
import torch

from lib import results, runtime
from lib.config import configure
from lib.data import random_starts
from lib.errors import UserError, launch
from lib.evaluate import EvalConfig, check_length, corpus_of, digest_of, evaluate
from lib.loss import token_losses
from lib.ranks import print0


@dataclass(frozen=True)
class PosLossConfig(EvalConfig):
    # evaluation
    seq_len: int = 20_000  # tokens in a piece of the text
    n_seqs: int = 1000  # number of pieces; fewer if the split is too short (paper: 100,000)
    # machine
    loss_chunk: int = 0  # rows of logits in memory at once; 0: chosen for the device

    def __post_init__(self):
        super().__post_init__()
        if not (self.seq_len and self.n_seqs):
            raise ValueError(f"seq_len={self.seq_len} and n_seqs={self.n_seqs} must be positive")


def choose_pieces(cfg, n_tokens):
    """
    Return the first positions of the pieces in a split of `n_tokens`, in rising order, as int64.

    They follow from cfg.seed and are the same for every checkpoint. Pieces do not overlap, so that
    a mean over pieces has an honest error. There are fewer than cfg.n_seqs if no more fit.
    UserError if none fits.
    """
    usable = n_tokens - 1  # the last position of a piece needs the token after it as its target
    n_fit = usable // cfg.seq_len
    if n_fit == 0:
        raise UserError(f"seq_len={cfg.seq_len:,} is too long: split {cfg.split} has {n_tokens:,} "
                        f"tokens; choose a smaller --seq_len, {usable:,} at most")
    if n_fit < cfg.n_seqs:
        print0(f"only {n_fit:,} pieces of {cfg.seq_len:,} tokens fit into split {cfg.split} "
               f"without overlap: n_seqs={cfg.n_seqs:,} becomes {n_fit:,}")
    n = min(cfg.n_seqs, n_fit)
    # n_spare tokens are in no piece. We draw n numbers up to n_spare and sort them: the i-th is how
    # many spare tokens lie before piece i.
    n_spare = usable - n * cfg.seq_len
    spare_before = np.sort(random_starts(cfg.seed, "posloss", 0, n, n_spare + 1)).astype(np.int64)
    return spare_before + cfg.seq_len * np.arange(n)


def measured_positions(length, block_size):
    """Return the positions whose losses are stored, in rising order and at most `length`."""
    multiples = [round(m * block_size) for m in results.MULTIPLES]  # for the tables
    # The first positions are left out: their loss falls so far that the rest would look flat.
    between = np.geomspace(max(1, length // 256), length, 90).astype(int).tolist()
    return sorted({position for position in multiples + between if 0 < position <= length})


def posloss(cfg, path, model, state):
    """Return the items, pieces of text, and how they are measured, see `evaluate`."""
    device = model.wte.weight.device
    check_length(path, model, cfg.seq_len)
    tokens = corpus_of(cfg, path, state)
    starts = choose_pieces(cfg, len(tokens))
    positions = measured_positions(cfg.seq_len, model.config.block_size)
    chunk = cfg.loss_chunk or runtime.rows_of_logits(device, model.config.vocab_size)

    def measure(items):
        pieces = tokens.read(starts[[item["i"] for item in items]], cfg.seq_len + 1)
        batch = torch.from_numpy(pieces).to(device)
        # Each weight is used once per pass, so caching its bf16 copy would save nothing.
        with runtime.autocast(device, cfg.dtype, cache=False):
            losses = token_losses(model, batch[:, :-1], batch[:, 1:], chunk)
        tenths = [losses[:, at - max(1, at // 10):at].mean(dim=1) for at in positions]
        records = []
        for piece, row in zip(pieces, torch.stack(tenths, dim=1).tolist(), strict=True):
            by_position = {at: round(loss, 6) for at, loss in zip(positions, row, strict=True)}
            records.append({"digest": digest_of(piece), f"{cfg.split} loss": by_position})
        return records

    items = [{"size": cfg.seq_len, "i": i} for i in range(len(starts))]
    return items, measure, {"data": tokens.data}


def main():
    evaluate(configure(PosLossConfig), "posloss", posloss)


if __name__ == "__main__":
    launch(main)
