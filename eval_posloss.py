"""
Per-position test loss, far beyond the training length (section 3.2 and Fig. 5 of the paper).

    python eval_posloss.py out/a_softmax out/b_ssmax            as in the paper, to 20,000 tokens
    python eval_posloss.py out/a_softmax --attention_type=ssmax --tag=e     (e): swapped at load
    python eval_posloss.py out/laptop/b --data_dir=data/books --split=val --seq_len=4096 --n_seqs=20

The result is posloss[-tag].json beside the checkpoint, or FOLDER/NAME/posloss[-tag].json with
--out=FOLDER, where NAME is the checkpoint's folder. The same command continues a killed run;
`torchrun` divides the windows among its processes.
"""
import time
from dataclasses import dataclass

import numpy as np
import torch

from lib import evaluate, runtime
from lib.config import configure
from lib.data import Tokens, random_starts
from lib.evaluate import MULTIPLES, EvalConfig, loss_before, measured_ends, tenth_before
from lib.loss import token_losses
from lib.runtime import UserError, print0
from lib.text import check_same_vocab


@dataclass(frozen=True)
class PosLossConfig(EvalConfig):
    # evaluation
    seq_len: int = 20_000  # tokens in a window (a piece of the text; not an attention window)
    n_seqs: int = 1000  # number of such windows, drawn at random; the paper has 100,000
    keep: tuple = ()  # positions n: for each, keep all losses at the last n/10 positions up to n
    # machine
    loss_chunk: int = 0  # rows of logits in memory at once; 0: chosen for the device

    def __post_init__(self):
        super().__post_init__()
        if min(self.seq_len, self.n_seqs) < 1:
            raise ValueError(f"seq_len={self.seq_len} and n_seqs={self.n_seqs} must be positive")
        for end in self.keep:
            if type(end) is not int or not 1 <= end <= self.seq_len:
                raise ValueError(f"keep: {end!r} is no position of a window; write whole numbers "
                                 f"from 1 to seq_len={self.seq_len:,}")


SAVE_SECONDS = 60  # between partial results; a kill loses at most this much work


def loss_sums(losses, block_size):
    """
    Return sums over the windows of their losses (B, T), one fp64 vector of T + 2 E numbers:

        T  the loss at each position
        E  the mean loss before each of the E `measured_ends`
        E  the squares of these means, for their standard errors
    """
    if losses.device.type == "mps":  # MPS has no fp64
        losses = losses.cpu()
    losses = losses.double()  # because the variance is a small difference of large sums
    ends = measured_ends(losses.size(1), block_size)
    before = torch.stack([losses[:, tenth_before(end)].mean(1) for end in ends], dim=1)
    return torch.cat((losses.sum(0), before.sum(0), before.square().sum(0)))


def kept_losses(losses, ends):
    """Return, for each window, the losses of the tenth before each end, one after the other."""
    parts = [losses[:, tenth_before(end)] for end in ends]
    rows = torch.cat([losses[:, :0], *parts], dim=1)  # [:, :0] because there may be no parts
    return [[round(loss, 4) for loss in row] for row in rows.tolist()]


def in_order(of_ranks):
    """Return the rows of all windows in order. of_ranks[r] has those of windows r, r + W, r + 2W,
    ... for W ranks."""
    rows = [None] * sum(map(len, of_ranks))
    for r, of_rank in enumerate(of_ranks):
        rows[r::len(of_ranks)] = of_rank
    return rows


def independent_windows(starts, length):
    """Return how many of the windows can be chosen so that no two of them overlap."""
    chosen = free = 0  # `free` is the first position after the windows chosen so far
    for start in sorted(starts):
        if start >= free:
            chosen += 1
            free = start + length
    return chosen


@torch.no_grad()
def measure(cfg, path, tokens, device):
    """Return the result for one checkpoint; partial results are kept in its file."""
    model, state = evaluate.open_for_context(cfg, path, device, cfg.seq_len)
    check_same_vocab(path, state["vocab"], cfg.data_dir, tokens.vocab,
                     "choose the --data_dir of a corpus with the checkpoint's vocabulary")
    out, (record,) = evaluate.begin(
        cfg, path, model, state, tokens.data, "posloss.json", [measure])
    if "mean" in record:
        return record  # it was finished before
    block_size = model.config.block_size
    n_sums = cfg.seq_len + 2 * len(measured_ends(cfg.seq_len, block_size))
    # What a killed run had done is in its file: the first `done` windows.
    done = record.pop("done", 0)
    sums = np.array(record.pop("sums", [0.0] * n_sums))
    kept = record.pop("kept", [])
    # Every checkpoint gets the same windows, so that they differ in the model alone.
    starts = random_starts(cfg.seed, "posloss", 0, cfg.n_seqs, len(tokens) - cfg.seq_len).tolist()
    independent = independent_windows(starts, cfg.seq_len)
    if independent < cfg.n_seqs:
        print0(f"{cfg.n_seqs:,} windows of {cfg.seq_len:,} tokens overlap in a split of "
               f"{len(tokens):,}: errors count them as {independent:,} independent ones")
    began = saved = time.perf_counter()

    def results_of(jobs):
        losses = window_losses(cfg, model, tokens, [start for _, start in jobs], device)
        part = loss_sums(losses, block_size).cpu().numpy()
        # one result for all jobs of this rank: their sums, and a list with the kept losses of each
        return [(part, kept_losses(losses, cfg.keep))]

    jobs = [(cfg.seq_len, start) for start in starts[done:]]
    for turn, results in evaluate.work(device, str(path), jobs, results_of, cfg.micro_batch_size):
        done += len(turn)
        sums = sums + sum(part for part, _ in results)
        kept += in_order([rows for _, rows in results])
        if time.perf_counter() - saved > SAVE_SECONDS and done < cfg.n_seqs:
            saved = time.perf_counter()
            runtime.write_json(out, {**record, "done": done, "sums": sums.tolist(), "kept": kept})
    # Windows that were measured before this start of the program are not counted.
    rate = len(jobs) * cfg.seq_len / (time.perf_counter() - began)
    record |= {"count": cfg.n_seqs, "independent": independent, "tokens_per_s": round(rate)}
    record |= means_and_errors(cfg, sums, independent, block_size)
    if cfg.keep:
        record["kept"] = kept
    runtime.write_json(out, record)
    return record


def window_losses(cfg, model, tokens, starts, device):
    """Return the losses (B, seq_len) of the windows that begin at these B positions."""
    window = torch.from_numpy(tokens.read(starts, cfg.seq_len + 1)).to(device)
    chunk = cfg.loss_chunk or runtime.logits_at_once(device, model.config.vocab_size)
    # Each weight is used once per pass, so caching its bf16 copy would save nothing.
    with runtime.autocast(device, cfg.dtype, cache=False):
        return token_losses(model, window[:, :-1], window[:, 1:], chunk)


def means_and_errors(cfg, sums, independent, block_size):
    """
    Return {"mean": mean loss at each position, "stderr_before": {end: standard error of the mean
    loss before it}} from the `loss_sums` of all windows, `independent` of which do not overlap.
    """
    ends = measured_ends(cfg.seq_len, block_size)
    mean, before, square = np.split(sums / cfg.n_seqs, [cfg.seq_len, cfg.seq_len + len(ends)])
    # The errors are taken over windows: neighbouring positions of a window are not independent.
    stderr_before = {}
    if independent > 1:
        # If all windows are equal, rounding may make the difference negative.
        variance = np.maximum(square - before**2, 0)
        variance *= cfg.n_seqs / (cfg.n_seqs - 1)
        errors = np.sqrt(variance / independent).round(6).tolist()
        for end, error in zip(ends, errors, strict=True):
            stderr_before[str(end)] = error
    return {"mean": mean.round(6).tolist(), "stderr_before": stderr_before}


def print_tables(results):
    """Print a table for each training length, because the columns are multiples of it."""
    of_length = {}
    for path, result in results.items():
        of_length.setdefault(result["model_config"]["block_size"], {})[path] = result
    for block, group in of_length.items():
        print_table(block, group)


def print_table(block, results):
    """Print the mean loss in the last tenth of positions before multiples of the training length.
    """
    length = len(next(iter(results.values()))["mean"])
    ends = [round(multiple * block) for multiple in MULTIPLES]
    ends = [end for end in ends if 0 < end < 0.95 * length] + [length]
    width = max(28, *(len(path) + 2 for path in results))
    title = "loss (nats) before position"
    print0(f"{title:<{width}}" + "".join(f"{end:>16,}" for end in ends))
    multiples = [f"{end / block:.3g}x" for end in ends]
    print0(" " * width + "".join(text.rjust(16) for text in multiples))
    for path, result in results.items():
        line = f"{path:<{width}}"
        for end in ends:
            loss, error = loss_before(end, result)
            cell = f"{loss:.4f}"
            if error is not None:
                cell += f" ±{error:.4f}"
            line += f"{cell:>16}"
        print0(f"{line}   {result['tokens_per_s']:,} tokens/s")


def main():
    cfg = configure(PosLossConfig)
    device = runtime.setup(cfg.device)
    tokens = Tokens(cfg.data_dir, cfg.split)
    if len(tokens) <= cfg.seq_len:  # a window has one more token, the target of the last position
        raise UserError(f"seq_len={cfg.seq_len:,} is too long: split {cfg.split} has "
                        f"{len(tokens):,} tokens; choose a smaller --seq_len, "
                        f"{max(0, len(tokens) - 1):,} at most")
    if device.type == "cpu" and cfg.n_seqs * cfg.seq_len > 5e6:  # the defaults are meant for a GPU
        print0("this takes long on a CPU; --seq_len=4096 --n_seqs=20 give a first look")
    print_tables({path: measure(cfg, path, tokens, device) for path in cfg.files})


if __name__ == "__main__":
    runtime.launch(main)
