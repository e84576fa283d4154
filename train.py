"""
Pretrain a Transformer with any attention type in ATTENTION (model.py).

    python train.py config/b_ssmax.py                    one GPU, or the CPU
    torchrun --standalone --nproc_per_node=8 train.py config/b_ssmax.py     eight GPUs
    python train.py config/quick.py --attention_type=ssmax       a small model, 3 minutes on a CPU,
                                                         on the corpus that `make quick` prepares

Run the same command again to resume the run in out_dir. Config files are executed as Python.
"""
import dataclasses
import datetime
import math
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lib import attention, checkpoint, ranks, runtime
from lib.attention import ModelConfig
from lib.config import arguments, complete, make, non_defaults
from lib.data import ORDERS, Tokens, check_splits, only_repeats
from lib.errors import UserError, describe, launch
from lib.log import Log, scales_by_layer
from lib.loss import summed_loss
from lib.ranks import print0
from lib.start import begin
from lib.text import end_of_text
from model import ATTENTION

# -----------------------------------------------------------------------------
# settings

Decay = Literal["none", "linear", "cosine"]


@dataclass(frozen=True)
class TrainConfig(ModelConfig):
    """Pretraining. The defaults are the paper's (Appendix B); ModelConfig has the model's."""
    # model
    attention_type: Literal[tuple(ATTENTION)] = "softmax"  # a name in ATTENTION (model.py)
    # data
    out_dir: str = "out/a_softmax"  # ckpt.pt and log.jsonl go here
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    train_split: str = "train"  # split to train on
    val_split: str = "val"  # split for the validation loss
    data_order: Literal[ORDERS] = "random"  # random: blocks at random places; sequence: in order
    loss_on: Literal["all", "repeats"] = "all"  # repeats: only pairs (token, target) seen before
    seed: int = 1337  # seed of the initial weights and of the order of the data
    init_from: str = ""  # start from this checkpoint; type, windows, theta and length may change
    variant: str = ""  # name in figures; empty: made from attention_type, init_from, switch_iter
    # optimization
    max_iters: int = 200_000  # number of updates; 0: only validate and save, as for the paper's (e)
    batch_size: int = 2048  # sequences per update, over all ranks
    micro_batch_size: int = 0  # sequences that a rank computes at once; 0: chosen for the device
    learning_rate: float = 6e-4  # learning rate after the warm-up
    warmup_iters: int = 1000  # updates of linear warm-up
    decay: Decay = "none"  # shape of the decay to min_lr; none: constant
    decay_iters: int = 0  # updates of the decay; 0: decay from the end of the warm-up
    min_lr: float = 0.0  # learning rate at the end of the decay
    beta1: float = 0.9  # AdamW: decay of the mean gradient
    beta2: float = 0.95  # AdamW: decay of the mean squared gradient
    weight_decay: float = 0.1  # for matrices; norms and learned scales have none
    grad_clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    switch_iter: int = 0  # the paper's (f): switch attention_type at this update; 0: never
    switch_attention_type: Literal[tuple(ATTENTION)] = "ssmax"  # (f): the type to switch to
    switch_warmup_iters: int = 1000  # (f): updates of the second warm-up, after the switch
    # evaluation
    eval_interval: int = 1000  # updates between validation losses, also at start and end; 0: never
    eval_seqs: int = 512  # validation sequences, the same in every run on a corpus
    # log and checkpoints
    save_interval: int = 1000  # updates between checkpoints; 0: only at the end
    log_interval: int = 1  # updates between printed lines; log.jsonl has every update
    wandb_log: bool = False  # also log to Weights & Biases
    wandb_project: str = "nanossmax"  # name of the project in wandb
    wandb_run_name: str = ""  # name of the run in wandb; empty: the name of out_dir
    # machine
    device: str = "auto"  # auto, cuda, cuda:1, cpu or mps
    dtype: runtime.DType = "auto"  # auto: bfloat16 autocast where the hardware has it
    compile: bool = True  # use torch.compile, if it works on this machine
    loss_chunk: int = 0  # rows of logits computed at once; fewer take less memory; 0: automatic

    def __post_init__(self):
        super().__post_init__()
        attention.load(self.attention)  # an error now, and not after the data are read
        if self.batch_size < ranks.WORLD_SIZE:
            raise ValueError(f"batch_size={self.batch_size} counts the sequences of all ranks: set "
                             f"it to at least {ranks.WORLD_SIZE}, one for each rank")
        if self.eval_seqs < 1:
            raise ValueError("eval_seqs=0 must be positive; eval_interval=0 turns validation off")
        # max_iters=0 passes: train.py then only saves the model, and sft.py sets it later.
        if self.max_iters and self.switch_iter >= self.max_iters:
            raise ValueError(f"switch_iter={self.switch_iter} must be below max_iters="
                             f"{self.max_iters}; set both")
        if self.decay != "none" and self.min_lr > self.learning_rate:
            raise ValueError(f"min_lr={self.min_lr} is above learning_rate={self.learning_rate}, "
                             "so the learning rate would rise: set --min_lr lower")
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError(f"beta1={self.beta1} and beta2={self.beta2} must be below 1")

    NEEDS = {
        "val_split": "eval_interval",
        "eval_seqs": "eval_interval",
        "decay_iters": "decay != 'none'",
        "min_lr": "decay != 'none'",
        "switch_attention_type": "switch_iter",
        "switch_warmup_iters": "switch_iter",
        "wandb_project": "wandb_log",
        "wandb_run_name": "wandb_log",
    }


# -----------------------------------------------------------------------------
# corpus, then model, then the loop


def main():
    given = arguments(TrainConfig)
    cfg = make(TrainConfig, given)
    device = runtime.setup(cfg.device)
    # the checkpoint records the dtype that auto means on this machine
    cfg = complete(cfg, dtype=runtime.dtype_name(device, cfg.dtype))
    corpus = Tokens(cfg.data_dir, cfg.train_split)
    held_out = Tokens(cfg.data_dir, cfg.val_split) if cfg.eval_interval else None
    if held_out:
        check_splits(corpus, held_out)

    model, run = begin(cfg, given, corpus.data, device, corpus)
    block_size, doc_mask = model.config.block_size, model.config.doc_mask
    if doc_mask and cfg.loss_on == "repeats":
        raise UserError("loss_on=repeats trains on pairs that a row repeats, but doc_mask may hide "
                        "the first of them: leave one of the two out")
    tokens_per_update = cfg.batch_size * block_size
    print0(f"{run['variant']}: {model.num_params():,} parameters | {len(corpus):,} training tokens "
           f"| {tokens_per_update:,} tokens per update | {ranks.WORLD_SIZE} rank(s) on "
           f"{device.type}, {cfg.dtype}")
    flops = runtime.flops_per_token(model, block_size) * tokens_per_update
    if device.type == "cpu" and flops > 1e15:
        print0("note: an update of this size takes hours on a CPU; try config/laptop.py or "
               "config/quick.py")

    def micro_batches(split, step, n_rows):
        """Yield this rank's part of batch `step`, in micro-batches of at most n_rows rows."""
        if split == "train":
            x, y = corpus.batch(cfg.seed, step, cfg.batch_size, block_size, cfg.data_order)
        else:  # the same text in all runs, whatever their seed and data_order
            x, y = held_out.spread(cfg.eval_seqs, block_size)
        if cfg.loss_on == "repeats":
            y = only_repeats(x, y)
        documents = None
        if doc_mask:
            # The end of text counts as the first token of the next document, as in a prompt that
            # begins with it.
            documents = np.cumsum(x == end_of_text(corpus.vocab), axis=1)
        for i in range(0, len(x), n_rows):
            rows = slice(i, i + n_rows)
            of_rows = None if documents is None else documents[rows]
            yield to_device(device, x[rows], y[rows], of_rows)

    fit(cfg, model, run, micro_batches)


def to_device(device, x, y, documents=None):
    """
    Return a micro-batch of numpy arrays as tensors (x, y, counted, documents) on the device.

    x, y: int64 (rows, T); targets y of -1 are ignored. counted: the indices of the targets that are
    not, in y.flatten(), or None if all count. documents: None, or as in Attention.make_position in
    model.py.
    """
    # We look for them while the batch is on the CPU: asking the GPU would stall every micro-batch.
    counted = None if (y >= 0).all() else np.flatnonzero(y >= 0)
    tensors = []
    for array in (x, y, counted, documents):
        tensor = None
        if array is not None:
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            if device.type == "cuda":  # copies from pinned memory are asynchronous
                tensor = tensor.pin_memory()
            tensor = tensor.to(device, non_blocking=True)
        tensors.append(tensor)
    return tensors


# -----------------------------------------------------------------------------
# one update, in the order in which it runs


def update(cfg, model, optimizer, loss_fn, micro_batches, step, n_rows, signals=()):
    """
    Run update `step` (from 0) in micro-batches of n_rows rows. Return its record for the log, and
    the number of stop signals that all ranks have received.

    loss_fn: summed_loss, or the same compiled. micro_batches(split, step, n_rows): see `main`.
    """
    began = time.perf_counter()
    device = model.wte.weight.device
    lr = learning_rate(cfg, step)
    for group in optimizer.param_groups:
        group["lr"] = lr

    def forward_backward(n_rows):
        """Add up the gradients of the summed loss in p.grad. Return this rank's sums."""
        model.zero_grad(set_to_none=True)  # of an attempt that ran out of memory
        sums = torch.zeros(4, device=device)  # of losses, targets, tokens and stop signals
        for x, y, counted, documents in micro_batches("train", step, n_rows):
            with runtime.autocast(device, cfg.dtype):
                loss = loss_fn(model, x, y, cfg.loss_chunk, counted, documents)
            loss.backward()
            sums[0] += loss.detach()
            sums[1] += (y >= 0).sum()
            sums[2] += x.numel()
        sums[3] += len(signals)
        return sums

    sums, n_rows = fitting(forward_backward, n_rows)

    # We all-reduce gradients ourselves instead of using DDP: one code path serves one process and
    # many, and the compiled graph gets no breaks from DDP.
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    ranks.all_reduce([*grads, sums])
    # Sums over all ranks and micro-batches, divided once, are the mean over the global batch.
    torch._foreach_div_(grads, sums[1])
    norm = torch.nn.utils.get_total_norm(grads)
    if cfg.grad_clip:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), cfg.grad_clip, norm)

    # With one rank this is the only GPU synchronization in an update. With several, the ranks also
    # wait for each other after their micro-batches (ranks.attempt).
    loss, norm, targets, tokens, n_stops = torch.stack(
        (sums[0] / sums[1], norm, *sums[1:])).tolist()
    if not targets:
        raise UserError("no target of this batch is trained on (with loss_on=repeats: no row "
                        "repeats a pair); make block_size or batch_size larger")
    if not math.isfinite(loss + norm):  # checked before the step, which would spoil the weights
        problem = (f"iter {step + 1:,}: the loss is {loss} and the gradient norm {norm}, so "
                   "training stopped before the update; a checkpoint that was saved is good. Try a "
                   "lower learning_rate or a longer warm-up, in another --out_dir")
        if step == 0:  # no learning rate has had an effect yet
            problem = (f"the first loss is {loss} and its gradient norm {norm}: look for the cause "
                       "in the attention, the initial weights or the data, and try again")
        raise UserError(problem, status=1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)  # frees the gradients' memory for validation
    tokens_per_s = round(tokens / (time.perf_counter() - began))
    return {"iter": step + 1, "loss": loss, "lr": lr, "grad_norm": norm,
            "tokens_per_s": tokens_per_s, "micro_batch_size": n_rows}, n_stops


def learning_rate(cfg, step):
    """Return the learning rate of update `step` (from 0): warm-up, constant, decay. (f) warms up
    again after the switch."""
    factor = min(1.0, (step + 1) / max(1, cfg.warmup_iters))
    if cfg.switch_iter and step >= cfg.switch_iter:
        factor *= min(1.0, (step - cfg.switch_iter + 1) / max(1, cfg.switch_warmup_iters))
    start = cfg.warmup_iters  # of the decay
    if cfg.decay_iters:
        start = max(start, cfg.max_iters - cfg.decay_iters)
    if cfg.decay == "none" or step < start:
        return factor * cfg.learning_rate
    progress = (step - start) / max(1, cfg.max_iters - start)
    share = 1 - progress if cfg.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return factor * (cfg.min_lr + share * (cfg.learning_rate - cfg.min_lr))


def fitting(work, n_rows):
    """
    Return (work(n_rows), n_rows). If memory runs out on any rank, all ranks halve n_rows and try
    again. (The whole batch runs again, so nothing counts twice.)
    """
    while True:
        try:
            return ranks.attempt(work, n_rows), n_rows
        except torch.OutOfMemoryError:
            if n_rows == 1:
                raise torch.OutOfMemoryError(
                    "with a micro-batch of 1; --loss_chunk=512 needs less") from None
        n_rows //= 2
        print0(f"out of memory: going on in micro-batches of {n_rows}, with the same result but "
               "for rounding")


# -----------------------------------------------------------------------------
# the run: validate, save, stop, switch, update, log


def fit(cfg, model, run, micro_batches):
    """
    Train `model` in place, for train.py and sft.py, and save it in cfg.out_dir.

    run: what the checkpoint holds beside the model, see `begin` in lib/start.py. micro_batches: see
    `main`.
    """
    settings = [f"{key}={value}" for key, value in non_defaults(cfg).items()]
    print0("settings that differ from the defaults:", *settings)
    device, path = model.wte.weight.device, Path(cfg.out_dir) / "ckpt.pt"
    first, resumed = run["iter"], run["optimizer"] is not None
    log = Log(cfg, model, run)
    optimizer = make_optimizer(cfg, model)
    if resumed:
        optimizer.load_state_dict(run["optimizer"])
    del run["optimizer"]  # frees Adam's two moments
    loss_fn = training_loss(cfg, device)
    n_rows = initial_micro_batch_size(cfg, model, compiled=loss_fn is not summed_loss)
    peak, began = runtime.peak_flops(device), time.time()
    signals, n_stops = runtime.catch_signals(), 0

    for done in range(first, cfg.max_iters + 1):  # number of updates done
        last = done == cfg.max_iters
        if done > first or not resumed:  # a resumed run has done this before it was saved
            if cfg.eval_interval and (last or is_due(cfg.eval_interval, done)):
                n_rows = validate(cfg, model, micro_batches, n_rows, log, done)
            if last or n_stops or done and is_due(cfg.save_interval, done):
                save(cfg, model, optimizer, run, path, done)
        if n_stops:
            number = signals[0] if signals else signal.SIGTERM  # another rank may have got it
            raise UserError(f"stopped after iter {done:,}, saved in {path}; the same command "
                            "continues", status=128 + number)
        if last:
            break

        if cfg.switch_iter and done == cfg.switch_iter:  # (f)
            print0(f"iter {done:,}: softmax becomes {cfg.switch_attention_type}")
            model.swap_attention(cfg.switch_attention_type)
            moments = optimizer.state  # of all old parameters
            optimizer = make_optimizer(cfg, model)
            optimizer.state.update(moments)

        record, n_stops = update(
            cfg, model, optimizer, loss_fn, micro_batches, done, n_rows, signals)
        n_rows = record["micro_batch_size"]
        if peak:
            flops = runtime.flops_per_token(model, model.config.block_size) * record["tokens_per_s"]
            record["mfu"] = flops / peak / ranks.WORLD_SIZE
        if device.type == "cuda":
            record["gib"] = torch.cuda.max_memory_allocated(device) / 2**30  # the most so far
        log(record)
        left = cfg.max_iters - record["iter"]
        if not left or is_due(cfg.log_interval, record["iter"]):
            seconds_left = (time.time() - began) / (record["iter"] - first) * left
            print0(progress(cfg, record, seconds_left))
    print0(f"done: {path}")
    if signals:  # a signal came during the last validation or save
        sys.exit(128 + signals[0])


def is_due(interval, done):
    """Return whether something that is done every `interval` updates (0: never) is due now."""
    return interval > 0 and done % interval == 0


@torch.no_grad()
def validate(cfg, model, micro_batches, n_rows, log, done):
    """Log and print the validation loss after `done` updates. Return n_rows, or what fitted."""
    device = model.wte.weight.device

    def forward(n_rows):
        """Return this rank's sums of losses and targets."""
        sums = torch.zeros(2, device=device)
        for x, y, counted, documents in micro_batches("val", 0, n_rows):
            with runtime.autocast(device, cfg.dtype):
                # not compiled: without gradients it would be compiled a second time
                sums[0] += summed_loss(model, x, y, cfg.loss_chunk, counted, documents)
            sums[1] += (y >= 0).sum()
        return sums

    sums, n_rows = fitting(forward, n_rows)
    ranks.all_reduce([sums])
    loss = (sums[0] / sums[1]).item()
    # After the last update nothing else would notice NaN. Before the first we do not stop, because
    # `update` then fails with a better message.
    if done and not math.isfinite(loss):
        raise UserError(f"iter {done:,}: the validation loss is {loss}, so training stopped and "
                        "did not save this model; try a lower learning_rate, in another --out_dir",
                        status=1)
    log({"iter": done, "val_loss": loss, **scales_by_layer(model)})
    print0(f"iter {done:,}: validation loss {loss:.4f}")
    return n_rows


def save(cfg, model, optimizer, run, path, done):
    """Save the checkpoint of a run after `done` updates, on rank 0."""
    if ranks.RANK == 0:
        checkpoint.save(path, run | {
            "model": model.state_dict(),
            "model_config": dataclasses.asdict(model.config),
            "config": dataclasses.asdict(cfg),
            "optimizer": optimizer.state_dict(),
            "iter": done,
        })


def progress(cfg, record, seconds_left):
    """Return the line that is printed after an update."""
    parts = [f"iter {record['iter']:,}/{cfg.max_iters:,}", f"loss {record['loss']:.4f}",
             f"lr {record['lr']:.2e}", f"norm {record['grad_norm']:.2f}",
             f"micro-batch {record['micro_batch_size']}", f"{record['tokens_per_s']:,} tokens/s"]
    if "mfu" in record:
        parts.append(f"MFU {record['mfu']:.1%}")
    parts.append(f"ETA {datetime.timedelta(seconds=round(seconds_left))}")
    return " | ".join(parts)


# -----------------------------------------------------------------------------
# before the first update: optimizer, compilation, micro-batch


def make_optimizer(cfg, model):
    """Return AdamW with weight decay on matrices only. Learned scales are a group of their own."""
    # Learned scales have no weight decay, as in the paper: it would pull s to 0, which is uniform
    # attention.
    scales = model.learned_scales()
    rest = [p for name, p in model.named_parameters() if name not in scales]
    groups = [{"params": [p for p in rest if p.dim() >= 2], "weight_decay": cfg.weight_decay},
              {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0}]
    if scales:
        groups.append({"params": list(scales.values()), "weight_decay": 0.0})
    trained = [p for group in groups for p in group["params"]]
    assert sorted(map(id, trained)) == sorted(map(id, model.parameters())), "each once, and all"
    # fused on a CPU too, unlike nanoGPT: one pass over the parameters instead of a dozen
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.beta1, cfg.beta2),
                             fused=True)


def training_loss(cfg, device):
    """Return summed_loss, compiled if cfg says so and torch.compile works on this machine."""
    if not cfg.compile:
        return summed_loss
    problem = ""
    try:  # It needs a C compiler, Python's headers, a GPU that Triton supports, and more.
        torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(1, device=device))
    except Exception as e:
        problem = describe(e)
    problems = list(filter(None, ranks.all_gather(problem)))  # of all ranks, which decide alike
    if problems:
        print0(f"note: torch.compile does not work here ({problems[0]}); training without it")
        return summed_loss
    return torch.compile(summed_loss, dynamic=False)


def initial_micro_batch_size(cfg, model, compiled):
    """Return how many sequences a rank computes at once; `fitting` halves it if need be."""
    rows_of_rank = math.ceil(cfg.batch_size / ranks.WORLD_SIZE)
    if cfg.micro_batch_size:
        return min(cfg.micro_batch_size, rows_of_rank)
    device = model.wte.weight.device
    tokens = 2**12  # a CPU is not faster with more
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # 64 sequences of the paper's model trained 1.2 times as fast on an H200 as 16 on an H100
        tokens = min(2**16, runtime.tokens_that_fit(model, free, compiled))
    rows = min(rows_of_rank, max(1, tokens // model.config.block_size))
    rows = min(ranks.all_gather(rows))  # the ranks halve it together
    return 2 ** (rows.bit_length() - 1)  # a power of two can be halved repeatedly


if __name__ == "__main__":
    launch(main)
