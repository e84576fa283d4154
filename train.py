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
import os
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
from lib.start import (
    check_ranks,
    check_schedule,
    find_resumable,
    from_checkpoint,
    from_scratch,
    prepare_folder,
    resume,
)
from lib.text import check_same_vocab, end_of_text
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
    max_iters: int = 200_000  # number of updates; 0: only save the model, as for the paper's (e)
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
    train_only: Literal["", "scales"] = ""  # scales: only learned scales and p_n; empty: all
    grad_clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    switch_iter: int = 0  # the paper's (f): switch attention_type at this update; 0: never
    switch_attention_type: Literal[tuple(ATTENTION)] = "ssmax"  # (f): the type to switch to
    switch_warmup_iters: int = 1000  # (f): updates of the second warm-up, after the switch
    # evaluation
    eval_interval: int = 1000  # updates between validation losses, also at start and end; 0: never
    eval_seqs: int = 512  # validation sequences; they are the same every time
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
        # max_iters=0 passes: train.py then trains nothing, and sft.py sets it later.
        if self.max_iters and self.switch_iter >= self.max_iters:
            raise ValueError(f"switch_iter={self.switch_iter} must be below max_iters="
                             f"{self.max_iters}; set both")


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

    resumed = find_resumable(cfg, corpus.data)
    if resumed:
        model, metadata = resume(cfg, resumed, device)
    elif cfg.init_from:
        model, metadata = from_checkpoint(cfg, given, corpus.data, device)
        check_same_vocab(cfg.init_from, metadata["vocab"], cfg.data_dir, corpus.vocab,
                         "prepare the text with the checkpoint's vocabulary (--tokenizer or "
                         "--compact_vocab of prepare.py)")
    else:
        model, metadata = from_scratch(cfg, corpus, device)

    describe_run(cfg, model, metadata, corpus)
    fit(cfg, model, metadata, resumed, Batches(cfg, model.config, corpus, held_out))


def describe_run(cfg, model, metadata, corpus):
    device, block_size = model.wte.weight.device, model.config.block_size
    tokens_per_update = cfg.batch_size * block_size
    print0(f"{metadata['variant']}: {model.num_params():,} parameters | {len(corpus):,} training "
           f"tokens | {tokens_per_update:,} tokens per update | {ranks.WORLD_SIZE} rank(s) on "
           f"{device.type}, {cfg.dtype}")
    flops = runtime.flops_per_token(model, block_size) * tokens_per_update
    if device.type == "cpu" and flops > 1e15:
        print0("note: an update of this size takes hours on a CPU; try config/laptop.py or "
               "config/quick.py")


# -----------------------------------------------------------------------------
# batches


@dataclass
class Batches:
    """
    The batches of a run. `train` and `val` return (micro_batches, n_targets): this rank's
    [(x, y, documents), ...], and the number of trained targets in the *global* batch, by which the
    summed loss is divided.

    x, y: int64 arrays (at most micro_batch_size, T); targets of -1 are ignored. documents: None, or
    as in Attention.make_position in model.py.
    """
    cfg: TrainConfig
    model_config: ModelConfig  # of the model: with --init_from cfg may have another block_size
    corpus: Tokens
    held_out: Tokens | None
    micro_batch_size: int = 0  # sequences that a rank computes at once; `fit` sets it

    def __post_init__(self):
        if self.model_config.doc_mask and self.cfg.loss_on == "repeats":
            raise UserError("loss_on=repeats trains on pairs that a row repeats, but doc_mask may "
                            "hide the first of them: leave one of the two out")

    def train(self, step):
        return self.micro_batches(self.corpus, step, self.cfg.batch_size)

    def val(self):  # the same batch every time
        return self.micro_batches(self.held_out, 0, self.cfg.eval_seqs)

    def micro_batches(self, tokens, step, n):
        """Return global batch `step` of n sequences."""
        cfg, block_size = self.cfg, self.model_config.block_size
        x, y = tokens.batch(cfg.seed, step, n, block_size, cfg.data_order)
        # counted in the global batch, so that ranks and micro-batches add up to the mean loss
        n_targets = n * block_size
        if cfg.loss_on == "repeats":
            y = only_repeats(x, y)
            n_targets = sum(ranks.all_gather(int((y >= 0).sum())))
            if not n_targets:  # the mean loss would be 0 / 0
                raise UserError("loss_on=repeats: no row of a batch repeats a pair, so there is "
                                "nothing to train on; make block_size or batch_size larger")
        documents = None
        if self.model_config.doc_mask:
            # The end of text counts as the first token of the next document, as in a prompt that
            # begins with it.
            documents = np.cumsum(x == end_of_text(tokens.vocab), axis=1)
        micros = []
        for i in range(0, len(x), self.micro_batch_size):
            rows = slice(i, i + self.micro_batch_size)
            micros.append((x[rows], y[rows], None if documents is None else documents[rows]))
        return micros, n_targets


# -----------------------------------------------------------------------------
# optimizer, schedule, compilation, micro-batch


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
    # fused on a CPU too, unlike nanoGPT: one pass over the parameters instead of a dozen
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.beta1, cfg.beta2),
                             fused=True)


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


def initial_micro_batch_size(cfg, model):
    """Return how many sequences a rank computes at once; `batch_loss` halves it if need be."""
    if cfg.micro_batch_size:
        return cfg.micro_batch_size
    # On a GPU 16 sequences of the paper's model (10.6 GiB on an H100); halved if they do not fit.
    # A CPU is not faster with more than 4,096 tokens.
    tokens = 2**14 if model.wte.weight.device.type == "cuda" else 2**12
    rows_of_rank = math.ceil(cfg.batch_size / ranks.WORLD_SIZE)
    rows = min(rows_of_rank, max(1, tokens // model.config.block_size))
    return 2 ** (rows.bit_length() - 1)  # a power of two can be halved repeatedly


def optimizer_after_switch(cfg, model, optimizer):
    """Return an optimizer for the model after (f), with the moments of all old parameters."""
    new = make_optimizer(cfg, model)
    new.state.update(optimizer.state)
    return new


# -----------------------------------------------------------------------------
# the loop


def fit(cfg, model, metadata, resumed, batches):
    """
    Train `model` in place, for train.py and sft.py, and save it in cfg.out_dir.

    resumed: the checkpoint that this run continues, or None. batches: see Batches.
    """
    settings = [f"{key}={value}" for key, value in non_defaults(cfg).items()]
    print0("settings that differ from the defaults:", *settings)
    device = model.wte.weight.device
    start = resumed["iter"] if resumed else 0
    check_ranks(cfg, metadata, resumed)
    check_schedule(cfg, model, start)
    path = Path(cfg.out_dir) / "ckpt.pt"
    prepare_folder(path.parent, model, resumed)

    if cfg.train_only:
        model.requires_grad_(False)
        for p in model.learned_scales().values():
            p.requires_grad_(True)
    optimizer = make_optimizer(cfg, model)
    if resumed:
        optimizer.load_state_dict(resumed.pop("optimizer"))  # pop frees Adam's two moments
    loss_fn = training_loss(cfg, device)
    batches.micro_batch_size = initial_micro_batch_size(cfg, model)
    log = Log(cfg, model, metadata, start if resumed else None)
    received_signals = runtime.install_stop_flag()
    peak = runtime.peak_flops(device)

    if cfg.eval_interval and not resumed:  # near log(vocab_size) if the weights are random
        validate(cfg, model, batches, log, 0)
    if not resumed and cfg.max_iters == 0:  # a swap without training: (e)
        save(cfg, model, optimizer, metadata, log, 0)
    began = time.time()
    for step in range(start, cfg.max_iters):
        if cfg.switch_iter and step == cfg.switch_iter:  # (f)
            print0(f"iter {step:,}: softmax becomes {cfg.switch_attention_type}")
            model.swap_attention(cfg.switch_attention_type)
            optimizer = optimizer_after_switch(cfg, model, optimizer)

        record, n_stops = update(cfg, model, optimizer, loss_fn, batches, step, received_signals)
        done = step + 1
        if peak:
            flops = runtime.flops_per_token(model, model.config.block_size) * record["tokens_per_s"]
            record["mfu"] = flops / peak / ranks.WORLD_SIZE
        log(record)

        last = done == cfg.max_iters
        if last or is_due(cfg.log_interval, done):
            seconds_left = (time.time() - began) / (done - start) * (cfg.max_iters - done)
            print0(progress(cfg, record, seconds_left))
        if (cfg.eval_interval and last) or is_due(cfg.eval_interval, done):
            validate(cfg, model, batches, log, done)
        if n_stops or last or is_due(cfg.save_interval, done):
            save(cfg, model, optimizer, metadata, log, done)
        if n_stops:
            number = signal.SIGTERM  # also if another rank got the signal
            if received_signals:
                number = received_signals[0]
            raise UserError(f"stopped after iter {done:,}, saved in {path}; the same command "
                            "continues", status=128 + number)
    if resumed and start >= cfg.max_iters:
        print0(f"nothing to train: this run has its {start:,} updates already: {path}")
    else:
        print0(f"done: {path}")
    if received_signals:  # a signal came during the last validation or save
        sys.exit(128 + received_signals[0])


def is_due(interval, done):
    """Return whether something that is done every `interval` updates (0: never) is due now."""
    return interval > 0 and done % interval == 0


@torch.no_grad()
def validate(cfg, model, batches, log, done):
    """Log and print the validation loss after `done` updates."""
    # not compiled: without gradients it would be compiled a second time
    loss, _ = batch_loss(cfg, model, summed_loss, batches, batches.val)
    ranks.all_reduce([loss])
    # After the last update nothing else would notice NaN. Before the first we do not stop, because
    # `update` then fails with a better message.
    loss = loss.item()
    if done and not math.isfinite(loss):
        raise UserError(f"iter {done:,}: the validation loss is {loss}, so training stopped and "
                        "did not save this model; try a lower learning_rate, in another --out_dir",
                        status=1)
    log({"iter": done, "val_loss": loss, **scales_by_layer(model)})
    print0(f"iter {done:,}: validation loss {loss:.4f}")


def save(cfg, model, optimizer, metadata, log, done):
    """Save the checkpoint of a run after `done` updates, on rank 0."""
    if ranks.RANK == 0:
        os.fsync(log.file.fileno())  # first: the log is never older than the checkpoint
        checkpoint.save(Path(cfg.out_dir) / "ckpt.pt", {
            "model": model.state_dict(),
            "model_config": dataclasses.asdict(model.config),
            "config": dataclasses.asdict(cfg),
            "optimizer": optimizer.state_dict(),
            "iter": done,
            **metadata,
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


def update(cfg, model, optimizer, loss_fn, batches, step, received_signals=()):
    """
    Run update `step` (from 0). Return its record for the log, and the number of stop signals that
    all ranks have received. loss_fn: see `training_loss`. batches: see Batches.
    """
    began = time.perf_counter()
    lr = learning_rate(cfg, step)
    for group in optimizer.param_groups:
        group["lr"] = lr
    # runs forward and backward over all micro-batches; gradients add up in p.grad
    loss, tokens = batch_loss(cfg, model, loss_fn, batches, lambda: batches.train(step))

    # We all-reduce gradients ourselves instead of using DDP: one code path serves one process and
    # many, and the compiled graph gets no breaks from DDP.
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    # torch.full, because torch.tensor would copy from the CPU and wait for the GPU
    n_stops = torch.full((), float(len(received_signals)), device=loss.device)
    tokens = torch.full((), float(tokens), device=loss.device)
    ranks.all_reduce([*grads, loss, n_stops, tokens])
    total_norm = torch.nn.utils.get_total_norm(grads)
    # With one rank this is the only GPU synchronization in an update. With several, the ranks also
    # wait for each other after their micro-batches (ranks.attempt).
    loss, norm, n_stops, tokens = torch.stack((loss, total_norm, n_stops, tokens)).tolist()
    if not math.isfinite(loss + norm):  # checked before the step, which would spoil the weights
        problem = (f"iter {step + 1:,}: the loss is {loss} and the gradient norm {norm}, so "
                   "training stopped before the update; a checkpoint that was saved is good. Try a "
                   "lower learning_rate or a longer warm-up, in another --out_dir")
        if step == 0:  # no learning rate has had an effect yet
            problem = (f"the first loss is {loss} and its gradient norm {norm}: look for the cause "
                       "in the attention, the initial weights or the data, and try again")
        raise UserError(problem, status=1)

    if cfg.grad_clip:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), cfg.grad_clip, total_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)  # frees the gradients' memory for validation
    tokens_per_s = round(tokens / (time.perf_counter() - began))
    return {"iter": step + 1, "loss": loss, "lr": lr, "grad_norm": norm,
            "tokens_per_s": tokens_per_s, "micro_batch_size": batches.micro_batch_size}, n_stops


def batch_loss(cfg, model, loss_fn, batches, get_batch):
    """
    Return (loss, tokens) of this rank's part of the global batch that get_batch() returns, cut into
    micro-batches. Also add up the gradients if they are enabled. The losses of all ranks add up to
    the mean over the global batch.

    If memory runs out on any rank, all ranks halve batches.micro_batch_size and try again.
    """
    while True:
        micro_batches, n_targets = get_batch()
        try:
            return ranks.attempt(accumulate, cfg, model, loss_fn, micro_batches, n_targets)
        except torch.OutOfMemoryError:
            if batches.micro_batch_size == 1:
                raise torch.OutOfMemoryError(
                    "with a micro-batch of 1; --loss_chunk=512 needs less") from None
        batches.micro_batch_size //= 2
        print0(f"out of memory: going on in micro-batches of {batches.micro_batch_size}, with the "
               "same result but for rounding")
        model.zero_grad(set_to_none=True)  # the whole batch runs again, so nothing counts twice


def accumulate(cfg, model, loss_fn, micro_batches, n_targets):
    """Return the sums (loss, tokens) over the micro-batches; call backward if gradients are
    enabled."""
    device = model.wte.weight.device
    chunk = cfg.loss_chunk
    # Compiled code on a GPU computes all logits at once, in few kernels. All other code computes
    # them in chunks, to bound memory.
    all_at_once = device.type == "cuda" and loss_fn is not summed_loss
    if not (chunk or all_at_once):
        chunk = runtime.rows_of_logits(device, model.config.vocab_size, training=True)
    total = torch.zeros((), device=device)  # stays on the device: .item() would synchronize
    for x, y, documents in micro_batches:
        # We look for the targets that count while the batch is on the CPU: asking the GPU would
        # stall every micro-batch.
        counted = None if (y >= 0).all() else np.flatnonzero(y >= 0)
        x, y = to_device(x, device), to_device(y, device)
        counted, documents = to_device(counted, device), to_device(documents, device)
        with runtime.autocast(device, cfg.dtype):
            loss = loss_fn(model, x, y, chunk, counted, documents) / n_targets
        if torch.is_grad_enabled():
            loss.backward()
        total += loss.detach()
    return total, sum(x.size for x, _, _ in micro_batches)


def to_device(array, device):
    """Return a numpy array as a tensor on the device; None stays None."""
    if array is None:
        return None
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":  # copies from pinned memory are asynchronous
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


if __name__ == "__main__":
    launch(main)
