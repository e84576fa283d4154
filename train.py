"""
Pretrain a Transformer with any attention: a type in ATTENTION (model.py), gallery/, or a file.

    python train.py config/b_ssmax.py                    one GPU, or the CPU
    torchrun --standalone --nproc_per_node=8 train.py config/b_ssmax.py     eight GPUs
    python train.py config/quick.py --attention_type=ssmax       a small model, 3 minutes on a CPU,
                                                         on the corpus that `make quick` prepares

Run the same command again to resume the run in out_dir. Config files are executed as Python.
"""
import dataclasses
import datetime
import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from lib import checkpoint, models, ranks, runtime, start
from lib.config import non_defaults, replaced
from lib.data import ORDERS, Tokens
from lib.errors import UserError, launch
from lib.log import Log, scales_by_layer
from lib.loss import summed_loss
from lib.models import ModelConfig
from lib.ranks import print0
from lib.text import check_same_vocab
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
    out_dir: str = "out/a_softmax"  # checkpoints and log.jsonl go here
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    data_order: Literal[ORDERS] = "random"  # random: blocks at random places; sequence: in order
    seed: int = 1337  # seed of the initial weights and of the order of the data
    init_from: str = ""  # start from this checkpoint; may change CONVERTIBLE (lib/start.py)
    variant: str = ""  # name in tables and figures; empty: that of init_from or of the attention
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
    # machine
    device: str = "auto"  # auto, cuda, cuda:1, cpu or mps
    dtype: runtime.DType = "auto"  # auto: bfloat16 autocast where the hardware has it
    compile: bool = True  # use torch.compile, if it works on this machine
    loss_chunk: int = 0  # rows of logits computed at once; fewer take less memory; 0: automatic

    def __post_init__(self):
        super().__post_init__()
        models.load(self.attention)  # an error now, and not after the data are read
        if self.batch_size < ranks.WORLD_SIZE:
            raise ValueError(f"batch_size={self.batch_size} counts the sequences of all ranks: set "
                             f"it to at least {ranks.WORLD_SIZE}, one for each rank")
        if self.eval_seqs < 1:
            raise ValueError("eval_seqs=0 must be positive; eval_interval=0 turns validation off")
        if self.decay != "none" and self.min_lr > self.learning_rate:
            raise ValueError(f"min_lr={self.min_lr} is above learning_rate={self.learning_rate}, "
                             "so the learning rate would rise: set --min_lr lower")
        if self.switch_iter and self.switch_attention_type == self.attention_type:
            raise ValueError(f"switch_attention_type={self.switch_attention_type} is the type that "
                             "the model has already: choose another one")
        if self.switch_iter and not self.variant:
            raise ValueError("a run that switches its attention_type needs a name in tables: set "
                             "variant, as config/f_swap_during.py does")
        if self.seed >= 2**32:
            raise ValueError(f"seed={self.seed} must be below 2**32: torch draws the initial "
                             "weights from its lower 32 bits alone")
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError(f"beta1={self.beta1} and beta2={self.beta2} must be below 1")

    EFFECTIVE_IF = {
        "rope_theta": "set(window_pattern) != {'L'}",
        "rope_scaling": None,  # evaluations alone stretch RoPE
        "rope_factor": None,
        "eval_seqs": "eval_interval",
        "decay_iters": "decay != 'none'",
        "min_lr": "decay != 'none'",
        "switch_attention_type": "switch_iter",
        "switch_warmup_iters": "switch_iter",
        "wandb_project": "wandb_log",
    }


# -----------------------------------------------------------------------------
# corpus, then model, then the loop


def main():
    cfg, state, is_resumed = start.begin(TrainConfig)
    device = runtime.setup(cfg.device)
    # the checkpoint records the dtype that auto means on this machine
    cfg = replaced(cfg, dtype=runtime.dtype_name(device, cfg.dtype))
    corpus = Tokens(cfg.data_dir, "train", cfg.vocab_size)
    held_out, data = None, corpus.data
    if cfg.eval_interval:
        held_out = Tokens(cfg.data_dir, "val", cfg.vocab_size)
        check_same_vocab("train", corpus.vocab, "val", held_out.vocab,
                         f"prepare both splits of {cfg.data_dir} in the same way")
        data = data | {"validation": held_out.data["digest"]}
    model, run, optimizer_states = start.model_of(cfg, state, is_resumed, data, device, corpus)
    del state  # the model has its weights
    block_size = model.config.block_size
    # fail before the log is written: text too short, ids without text
    for tokens in filter(None, (corpus, held_out)):
        tokens.rows_in_sequence(block_size)
    end = corpus.vocab.end if model.config.doc_mask else None
    print0(f"{len(corpus):,} training tokens, {cfg.batch_size * block_size:,} of them per update")

    def get_batch(split, step):
        """Return this rank's part of a batch, (x, y, documents) as in `micro_batches`, and the
        digest of the whole batch."""
        if split == "train":
            x, y, digest = corpus.batch(cfg.seed, step, cfg.batch_size, block_size,
                                        cfg.data_order)
        else:  # the same text in all runs, whatever their seed and data_order
            x, y = held_out.validation_rows(cfg.eval_seqs, block_size)
            digest = f"{held_out.data['digest']}-{cfg.eval_seqs}-{block_size}"
        documents = None
        if model.config.doc_mask:
            # The end of text counts as the first token of the next document, as in a prompt that
            # begins with it.
            documents = np.cumsum(x == end, axis=1)
        return (x, y, documents), digest

    fit(cfg, model, run, optimizer_states, get_batch)


# -----------------------------------------------------------------------------
# the run: update, validate, save


def fit(cfg, model, run, optimizer_states, get_batch):
    """
    Train `model` in place, for train.py and sft.py, and save it in cfg.out_dir.

    run, optimizer_states: see start.model_of. get_batch: see `main`.
    """
    settings = [f"{key}={value}" for key, value in non_defaults(cfg).items()]
    print0("settings that differ from the defaults:", *settings)
    device, block_size = model.wte.weight.device, model.config.block_size
    flops_per_token = runtime.flops_per_token(model, block_size)
    print0(f"{run['variant']}: {model.num_params():,} parameters | {ranks.WORLD_SIZE} rank(s) on "
           f"{device.type}, {cfg.dtype}")
    if device.type == "cpu" and flops_per_token * cfg.batch_size * block_size > 1e15:
        print0("note: an update of this size takes hours on a CPU; try config/laptop.py or "
               "config/quick.py")
    start_iter = run["iter"]  # 0 in a new run
    loss_fn = runtime.compiled(summed_loss, device) if cfg.compile else summed_loss
    max_rows = math.ceil(cfg.batch_size / ranks.WORLD_SIZE)
    chosen = runtime.rows_at_once(model, max_rows, compiled=loss_fn is not summed_loss)
    micro_batch_size = min(cfg.micro_batch_size or chosen, max_rows)
    # after rows_at_once, which reserves the memory of their moments itself
    optimizers = make_optimizers(cfg, model)
    if optimizer_states is None:
        save(cfg, model, optimizers, run, 0)  # from now on the folder belongs to this run
    else:
        for optimizer in optimizers:
            # pop: a second copy would cost twice the model's memory
            optimizer.load_state_dict(optimizer_states.pop(0))
    log = Log(cfg, model, run)
    peak, began = runtime.peak_flops(device), time.time()
    signals = runtime.catch_signals()

    if start_iter == 0 and cfg.eval_interval:
        micro_batch_size = validate(cfg, model, get_batch, micro_batch_size, log, 0)
    for step in range(start_iter, cfg.max_iters):
        if cfg.switch_iter and step == cfg.switch_iter:  # (f)
            print0(f"iter {step:,}: softmax becomes {cfg.switch_attention_type}")
            model.swap_attention(cfg.switch_attention_type)
            optimizers = make_optimizers(cfg, model, before=optimizers)

        record = update(cfg, model, optimizers, loss_fn, get_batch, step, micro_batch_size)
        micro_batch_size = record["micro_batch_size"]
        if peak:
            record["mfu"] = flops_per_token * record["tokens_per_s"] / peak / ranks.WORLD_SIZE
        if device.type == "cuda":
            record["gib"] = torch.cuda.max_memory_allocated(device) / 2**30  # peak so far
        log(record)
        done = step + 1  # updates
        is_last = done == cfg.max_iters
        if is_last or is_due(cfg.log_interval, done):
            seconds_left = (time.time() - began) / (done - start_iter) * (cfg.max_iters - done)
            print0(progress(cfg, record, seconds_left))

        if cfg.eval_interval and (is_last or is_due(cfg.eval_interval, done)):
            micro_batch_size = validate(cfg, model, get_batch, micro_batch_size, log, done)
        received = sum(ranks.all_gather(signals), [])  # signals of all ranks
        if is_last or received or is_due(cfg.save_interval, done):
            save(cfg, model, optimizers, run, done)
        if received and not is_last:
            raise UserError(f"stopped after iter {done:,}, saved in {cfg.out_dir}; the same "
                            "command continues", status=128 + received[0])
    print0(f"done: {cfg.out_dir}")


def is_due(interval, done):
    """Return whether something that is done every `interval` updates (0: never) is due now."""
    return interval > 0 and done % interval == 0


def update(cfg, model, optimizers, loss_fn, get_batch, step, micro_batch_size):
    """
    Run update `step` (from 0) in micro-batches. Return its record for the log.

    loss_fn: summed_loss, or the same compiled. get_batch: see `main`.
    """
    began = time.perf_counter()
    lr = learning_rate(cfg, step)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_ratio"]
    batch, digest = get_batch("train", step)
    sums, micro_batch_size = halved_until_it_fits(
        lambda n: forward_backward(cfg, model, loss_fn, batch, n), micro_batch_size)

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
    loss, norm, tokens = torch.stack((sums[0] / sums[1], norm, sums[2])).tolist()
    if not math.isfinite(loss + norm):  # checked before the step, which would spoil the weights
        raise UserError(f"iter {step + 1:,}: the loss is {loss} and the gradient norm {norm}, so "
                        "training stopped before the update; saved checkpoints are good. "
                        "Try a lower learning_rate or a longer warm-up, in another --out_dir (in "
                        "the first update: look at the attention and the data)", status=1)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # frees the gradients' memory for validation
    tokens_per_s = round(tokens / (time.perf_counter() - began))
    return {"iter": step + 1, "digest": digest, "loss": loss, "lr": lr, "grad_norm": norm,
            "tokens_per_s": tokens_per_s, "micro_batch_size": micro_batch_size}


def forward_backward(cfg, model, loss_fn, batch, micro_batch_size):
    """
    Return this rank's sums of losses, targets and tokens over a batch. If gradients are enabled,
    accumulate those of the summed loss in p.grad.
    """
    device = model.wte.weight.device
    model.zero_grad(set_to_none=True)  # left by an attempt that ran out of memory
    sums = torch.zeros(3, device=device)
    for x, y, places, documents in micro_batches(*batch, micro_batch_size, device):
        with runtime.autocast(device, cfg.dtype):
            loss = loss_fn(model, x, y, cfg.loss_chunk, places, documents)
        if torch.is_grad_enabled():
            loss.backward()
        sums[0] += loss.detach()
        sums[1] += (y >= 0).sum()
        sums[2] += x.numel()
    return sums


def micro_batches(x, y, documents, micro_batch_size, device):
    """
    Yield (x, y, places, documents) of each micro-batch, as tensors on the device.

    x, y: int64 (rows, T); targets y of -1 are ignored. places: the indices in y.flatten() of the
    targets that are not ignored; None if all count. documents: None, or as in GPT.context.
    """
    for i in range(0, len(x), micro_batch_size):
        rows = slice(i, i + micro_batch_size)
        # Fine-tuning pads rows: they are cut after the last target, at a multiple of 64, so that
        # few shapes are compiled.
        T = x.shape[1]
        places = None
        if (y[rows] < 0).any():
            last_column = np.flatnonzero((y[rows] >= 0).any(axis=0)).max(initial=0)
            T = min(T, 64 * (last_column // 64 + 1))
            # found on the CPU, because asking the GPU would stall every micro-batch
            places = np.flatnonzero(y[rows, :T] >= 0)
        arrays = x[rows, :T], y[rows, :T], places, None if documents is None else documents[rows]
        yield [None if array is None else to_device(array, device) for array in arrays]


def to_device(array, device):
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":  # copies from pinned memory are asynchronous
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def learning_rate(cfg, step):
    """Return the learning rate of update `step` (from 0): warm-up, constant, decay. (f) warms up
    again after the switch."""
    factor = min(1.0, (step + 1) / max(1, cfg.warmup_iters))
    if cfg.switch_iter and step >= cfg.switch_iter:
        factor *= min(1.0, (step - cfg.switch_iter + 1) / max(1, cfg.switch_warmup_iters))
    decay_start = cfg.warmup_iters
    if cfg.decay_iters:
        decay_start = max(decay_start, cfg.max_iters - cfg.decay_iters)
    if cfg.decay == "none" or step < decay_start:
        return factor * cfg.learning_rate
    ratio = (step - decay_start) / max(1, cfg.max_iters - decay_start)  # of the decay that is done
    coeff = 1 - ratio if cfg.decay == "linear" else 0.5 * (1 + math.cos(math.pi * ratio))
    return factor * (cfg.min_lr + coeff * (cfg.learning_rate - cfg.min_lr))


def halved_until_it_fits(work, size):
    """
    Return (work(size), size), where size is that of a micro-batch. If memory runs out on any rank,
    all ranks halve it and run the whole batch again.
    """
    while True:
        try:
            return ranks.attempt(work, size), size
        except torch.OutOfMemoryError:
            if size == 1:
                raise torch.OutOfMemoryError(
                    "with a micro-batch of 1; --loss_chunk=512 needs less") from None
        size //= 2
        print0(f"out of memory: continuing with micro-batches of {size} (same result up to "
               "rounding)")


@torch.no_grad()
def validate(cfg, model, get_batch, micro_batch_size, log, done):
    """Log and print the validation loss after `done` updates. Return the micro-batch size that
    fitted."""
    batch, digest = get_batch("val", 0)
    # not compiled: without gradients it would be compiled a second time
    sums, micro_batch_size = halved_until_it_fits(
        lambda n: forward_backward(cfg, model, summed_loss, batch, n), micro_batch_size)
    ranks.all_reduce([sums])
    loss = (sums[0] / sums[1]).item()
    # `update` refuses NaN, but no update follows the last validation.
    if done and not math.isfinite(loss):
        raise UserError(f"iter {done:,}: the validation loss is {loss}, so training stopped and "
                        "did not save this model; try a lower learning_rate, in another --out_dir",
                        status=1)
    scales = scales_by_layer(model)
    log({"iter": done, "digest": digest, "val_loss": loss, **scales})
    line = f"iter {done:,}: validation loss {loss:.4f}"
    for name, layers in scales.items():
        means = [f"{np.mean(heads):.3f}" for heads in layers if heads]
        line += f" | mean {name} of each layer {' '.join(means)}"
    print0(line)
    return micro_batch_size


def save(cfg, model, optimizers, run, done):
    """Save the checkpoint of a run after `done` updates, on rank 0."""
    if ranks.RANK == 0:
        checkpoint.save(cfg.out_dir, run | {
            "model": model.state_dict(),
            "model_config": dataclasses.asdict(model.config),
            "config": dataclasses.asdict(cfg),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "attention_code": models.code_of(model.config),  # (f) changes it
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
# optimizers


def make_optimizers(cfg, model, before=()):
    """
    Return the optimizers, here one; each parameter is in exactly one of them. Each group has
    an lr_ratio, by which `update` multiplies the learning rate.

    before: optimizers whose moments are taken over, as after the switch of (f).
    """
    parameters = list(model.parameters())
    # Norms and learned scales have no weight decay, as in the paper: it would pull s to 0, which is
    # uniform attention.
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": cfg.weight_decay},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    # fused on a CPU too, unlike nanoGPT: one pass over the parameters instead of a dozen
    adamw = torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.beta1, cfg.beta2),
                              fused=True)
    optimizers = [adamw]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.setdefault("lr_ratio", 1.0)
            # parameters that stay keep their moments
            optimizer.state |= {p: old.state[p] for old in before for p in group["params"]
                                if p in old.state}
    return optimizers


if __name__ == "__main__":
    launch(main)
