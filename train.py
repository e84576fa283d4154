"""
Pretrain a Transformer with any attention type in ATTENTION (model.py).

    python train.py config/b_ssmax.py                    one GPU, or the CPU
    torchrun --standalone --nproc_per_node=8 train.py config/b_ssmax.py     eight GPUs
    python train.py config/quick.py --attention_type=ssmax       a small model, 4 minutes on a CPU

Run the same command again to resume the run in out_dir. Config files are executed as Python.
"""
import dataclasses
import datetime
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lib import attention, checkpoint, runtime
from lib.attention import ModelConfig
from lib.checkpoint import FREE_TO_CHANGE
from lib.config import complete, configure
from lib.data import ORDERS, Tokens, check_splits
from lib.loss import summed_loss
from lib.runtime import UserError, print0
from lib.text import check_same_vocab, decode, end_of_text
from model import ATTENTION, GPTConfig, Learned

# -----------------------------------------------------------------------------
# settings

Decay = Literal["none", "linear", "cosine"]


@dataclass(frozen=True)
class TrainConfig(ModelConfig):
    """Pretraining. The defaults are the paper's (Appendix B); ModelConfig has the model's."""
    # data
    out_dir: str = "out/a_softmax"  # ckpt.pt and log.jsonl go here
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    train_split: str = "train"  # split to train on
    val_split: str = "val"  # split for the validation loss
    data_order: Literal[ORDERS] = "windows"  # windows: blocks at random places; sequence: in order
    loss_on: Literal["all", "repeats"] = "all"  # repeats: only where (token, target) came before
    seed: int = 1337  # seed of the initial weights and of the order of the data
    init_from: str = ""  # start from this checkpoint; attention_type may replace its softmax
    variant: str = ""  # name in figures; empty: made from attention_type, init_from, switch_iter
    resume: Literal["auto", "overwrite"] = "auto"  # continue the run in out_dir, or overwrite it
    # optimization
    max_iters: int = 200_000  # number of updates
    batch_size: int = 2048  # sequences per update, over all ranks
    micro_batch_size: int = 0  # sequences that a rank computes at once; 0: chosen for the device
    learning_rate: float = 6e-4  # learning rate after the warm-up
    warmup_iters: int = 1000  # updates of linear warm-up
    decay: Decay = "none"  # shape of the decay to min_lr; none: constant
    decay_iters: int = 0  # updates at the end with a falling rate; 0: all after the warm-up
    min_lr: float = 0.0  # learning rate that the decay would reach one update after the last
    beta1: float = 0.9  # AdamW: decay of the mean gradient
    beta2: float = 0.95  # AdamW: decay of the mean squared gradient
    weight_decay: float = 0.1  # for matrices only; s, b, p_n and norms have none
    grad_clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    switch_iter: int = 0  # the paper's (f): switch attention_type at this update; 0: never
    switch_attention_type: Literal[tuple(ATTENTION)] = "ssmax"  # (f): the type to switch to
    switch_warmup_iters: int = 1000  # (f): updates of the second warm-up, after the switch
    # evaluation
    eval_interval: int = 1000  # updates between validation losses, also at start and end; 0: never
    eval_seqs: int = 512  # validation sequences; they are the same every time
    sample_interval: int = 0  # updates between printed continuations of a validation text; 0: never
    # log and checkpoints
    save_interval: int = 1000  # updates between checkpoints
    log_interval: int = 1  # updates between printed lines; log.jsonl has every update
    wandb_log: bool = False  # also log to Weights & Biases
    wandb_project: str = "nanossmax"  # name of the project in wandb
    wandb_run_name: str = ""  # name of the run in wandb; empty: the name of out_dir
    # machine
    device: str = "auto"  # auto, cuda, cuda:1, cpu or mps
    dtype: runtime.DType = "auto"  # auto: bfloat16 autocast where the hardware has it
    compile: bool = True  # use torch.compile; if that fails, print one line and train without it
    loss_chunk: int = 0  # rows of logits computed at once; fewer take less memory; 0: automatic

    def __post_init__(self):
        super().__post_init__()
        for key in ("batch_size", "eval_seqs", "save_interval", "log_interval"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)} must be positive")
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError(f"beta1={self.beta1} and beta2={self.beta2} must be below 1, "
                             "as in --beta1=0.9 --beta2=0.95")
        if self.switch_iter and self.attention_type != "softmax":
            raise ValueError("switch_iter needs attention_type=softmax to switch from")
        if self.switch_iter >= self.max_iters > 0:  # sft.py computes max_iters later if it is 0
            raise ValueError(f"switch_iter={self.switch_iter} must be below max_iters="
                             f"{self.max_iters}; set both")
        if self.batch_size < runtime.WORLD_SIZE:
            raise ValueError(f"batch_size={self.batch_size} counts the sequences of all ranks: set "
                             f"it to at least {runtime.WORLD_SIZE}, one for each rank")
        if not self.out_dir:
            raise ValueError("out_dir must name a folder")
        if self.doc_mask and self.loss_on == "repeats":
            raise ValueError("loss_on=repeats trains on pairs that a row repeats, but doc_mask may "
                             "hide the first of them: leave one of the two out")

    # Names of the settings that the user gave; configure() sets it. It has no type annotation, so
    # that dataclass does not take it for a setting.
    given = frozenset()

    def without_effect(self):
        """Return {setting: reason why it has no effect}."""
        reasons = {}
        if not self.max_iters:
            reasons["switch_iter"] = "with max_iters=0"
        if not self.switch_iter:
            reasons |= dict.fromkeys(("switch_attention_type", "switch_warmup_iters"),
                                     "without switch_iter")
        if self.decay == "none":
            reasons |= dict.fromkeys(("decay_iters", "min_lr"), "with decay=none")
        # s_init has an effect only if s is Learned() without a start of its own. With --init_from,
        # `from_checkpoint` compares a typed s_init with that of the checkpoint instead.
        if ATTENTION[self.attention_type].s != Learned() and not self.init_from:
            reasons["s_init"] = f"with attention_type={self.attention_type}"
        return reasons

    def check_effects(self):
        """Raise UserError if the user gave a setting that has no effect on a new run."""
        if self.resume == "auto" and (Path(self.out_dir) / "ckpt.pt").exists():
            # the command of an old run must continue it, even if a newer version would refuse it
            return
        for key, reason in self.without_effect().items():
            value, default = getattr(self, key), getattr(type(self), key)
            # typing the default is allowed: it may undo what a config file sets
            if key in self.given and value != default:
                raise UserError(f"{key}={value} has no effect {reason}: leave it out, or set "
                                f"--{key}={default}")


# Dense bf16 peak in FLOP/s, from data sheets. The first key that occurs in the device's name
# counts. Unknown devices report no MFU.
PEAK_FLOPS = {
    "B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12,
    "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}

# -----------------------------------------------------------------------------
# corpus, then model, then the loop


def main():
    cfg = configure(TrainConfig)
    cfg.check_effects()
    device = runtime.setup(cfg.device)
    # the checkpoint records the dtype that auto means on this machine
    cfg = complete(cfg, dtype=runtime.dtype_name(device, cfg.dtype))
    corpus, held_out = open_corpus(cfg)

    resumed = find_resumable(cfg, corpus.data)
    if resumed:
        model, metadata = resume(cfg, resumed, device)
    elif cfg.init_from:
        model, metadata = from_checkpoint(cfg, corpus.data, device)
        check_same_vocab(cfg.init_from, metadata["vocab"], cfg.data_dir, corpus.vocab,
                         "prepare the text with the checkpoint's vocabulary (--tokenizer or "
                         "--compact_vocab of prepare.py)")
    else:
        model, metadata = from_scratch(cfg, corpus, device)

    describe_run(cfg, model, metadata, corpus)
    # A resumed run must go on, even if it began before this check existed. With init_from doc_mask
    # comes from the checkpoint and cannot be changed.
    if not (resumed or cfg.init_from):
        check_doc_mask(cfg, model, corpus)
    batches = Batches(cfg, corpus, held_out, model.config.block_size, model.config.doc_mask)
    fit(cfg, model, metadata, resumed, batches)


def describe_run(cfg, model, metadata, corpus):
    """Print a summary of the run, and warn about settings that are likely mistakes."""
    device, block_size = model.wte.weight.device, model.config.block_size
    tokens_per_update = cfg.batch_size * block_size
    print0(f"{metadata['variant']}: {model.num_params():,} parameters | {len(corpus):,} training "
           f"tokens | {tokens_per_update:,} tokens per update | {runtime.WORLD_SIZE} rank(s) on "
           f"{device.type}, {cfg.dtype}")
    if device.type == "cpu" and model.flops_per_token(block_size) * tokens_per_update > 1e15:
        print0("an update of this size takes hours on a CPU; try config/laptop.py or "
               "config/quick.py")
    rows, wanted = corpus.blocks_in_sequence(block_size), cfg.max_iters * cfg.batch_size
    if cfg.data_order == "sequence" and wanted > rows:
        print0(f"the corpus has {rows:,} rows in sequence and the run reads {wanted:,}: the data "
               f"repeats after iter {rows // cfg.batch_size:,}")


def check_doc_mask(cfg, model, corpus):
    """Raise a UserError if documents are so long that doc_mask would mask nothing."""
    block_size = model.config.block_size
    # A random row of block_size + 1 tokens holds a given token with the probability
    # (block_size + 1) / len(corpus). Summed over the ends of all documents, this is an upper bound
    # on the share of rows with the end of a document:
    share_with_end = corpus.documents * (block_size + 1) / len(corpus)
    if model.config.doc_mask and share_with_end < 0.1:
        mean, rows_per_end = len(corpus) // corpus.documents, math.floor(1 / share_with_end)
        raise UserError(f"the documents of {cfg.data_dir} have {mean:,} tokens on average, and a "
                        f"row has block_size={block_size}: at most one row in {rows_per_end:,} "
                        "would hold two documents, and in the others doc_mask masks nothing; leave "
                        "doc_mask out, or set a larger block_size")


def open_corpus(cfg):
    """Return the Tokens of the training split and of the validation split (None if not used)."""
    corpus = Tokens(cfg.data_dir, cfg.train_split)
    needs_val = cfg.eval_interval or cfg.sample_interval
    held_out = Tokens(cfg.data_dir, cfg.val_split) if needs_val else None
    if held_out:
        check_splits(corpus, held_out)
    # the corpus defines the vocabulary; a vocab_size that was typed must agree with it
    if cfg.vocab_size not in (GPTConfig.vocab_size, corpus.vocab_size):
        raise UserError(f"{cfg.data_dir} has a vocabulary of {corpus.vocab_size} ids, not "
                        f"vocab_size={cfg.vocab_size}; leave vocab_size out")
    return corpus, held_out


@dataclass
class Batches:
    """Gives `fit` the micro-batches of every update and of the validation loss."""
    cfg: TrainConfig
    corpus: Tokens
    held_out: Tokens | None
    block_size: int  # this and doc_mask are the model's: with --init_from cfg may have others
    doc_mask: bool

    def train(self, step, m):
        """
        Return this rank's micro-batches of global batch `step`, [(x, y, documents), ...], and the
        number of trained targets in the *global* batch, by which the summed loss is divided.

        x, y: int64 arrays (at most m, T). Targets of -1 are ignored. documents: None, or as in
        Attention.make_position in model.py.
        """
        return self.micro_batches(self.corpus, step, self.cfg.batch_size, m)

    def val(self, m):
        """The same for the validation loss: one fixed batch of the validation split."""
        return self.micro_batches(self.held_out, 0, self.cfg.eval_seqs, m)

    def micro_batches(self, tokens, step, n, m):
        cfg = self.cfg
        x, y = tokens.batch(cfg.seed, step, n, self.block_size, cfg.data_order)
        # counted in the global batch, so that ranks and micro-batches add up to the mean loss
        trained = n * self.block_size
        if cfg.loss_on == "repeats":
            y = only_repeats(x, y)
            trained = sum(runtime.all_gather(int((y >= 0).sum())))
            if not trained:
                raise UserError(f"{cfg.data_dir}: in {n} rows of split {tokens.split} no pair of "
                                "tokens occurs twice, so loss_on=repeats has nothing to train: "
                                "leave loss_on out")
        documents = None
        if self.doc_mask:  # an end-of-text token belongs to the document that follows it
            documents = np.cumsum(x == end_of_text(tokens.vocab), axis=1)
        micros = []
        for i in range(0, len(x), m):
            part = slice(i, i + m)
            micros.append((x[part], y[part], documents[part] if self.doc_mask else None))
        return micros, trained


def only_repeats(x, y):
    """Return y (rows, T) with -1 at the first occurrence of each pair (token, target) in a row."""
    masked = y.copy()
    for row, pairs in zip(masked, (x << 32) + y, strict=True):  # one int64 per pair
        _, first = np.unique(pairs, return_index=True)  # index of the first occurrence
        row[first] = -1
    return masked


# -----------------------------------------------------------------------------
# Where the model comes from. `metadata` holds the variant, `base` (the settings of the run that
# this one began from), the vocabulary and the data. All of it goes into the checkpoint, and all but
# the vocabulary into the log.


def from_scratch(cfg, corpus, device):
    """Return (model, metadata) of a new run with random weights."""
    # Initialized on the CPU, so that the weights do not depend on the device. They do not depend on
    # the attention type either, because s, b and g are not random.
    torch.manual_seed(cfg.seed)
    settings = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(ModelConfig)}
    settings["vocab_size"] = corpus.vocab_size
    model = attention.build(ModelConfig(**settings)).to(device)
    return model.train(), {
        "variant": cfg.variant or cfg.attention_type + switch_name(cfg), "base": None,
        "vocab": corpus.vocab, "data": corpus.data}


def from_checkpoint(cfg, data, device):
    """
    Return (model, metadata) of a new run that begins with the weights of cfg.init_from.

    data: digest and source of the data.
    """
    state = checkpoint.load(cfg.init_from)
    trained = state["model_config"]
    # What the user gave must agree with the checkpoint: another n_head, for instance, would load
    # and silently be another model. Only the attention type and theta may change.
    given = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(ModelConfig)
             if f.name in cfg.given}
    # None: keep the checkpoint's
    changes = {key: given.get(key) for key in ("attention_type", "rope_theta")}
    differences = [f"{k}={trained[k]}" for k in given
                   if k not in changes and given[k] != trained[k]]
    if differences:
        raise UserError(f"{cfg.init_from} was trained with {', '.join(differences)}, which cannot "
                        "change now; leave these settings out")
    model = checkpoint.restore(state, device, name=cfg.init_from, **changes)
    if cfg.switch_iter and model.config.attention_type != "softmax":
        raise UserError(f"{cfg.init_from} is not a softmax model: leave switch_iter out")
    if model.config.doc_mask and cfg.loss_on == "repeats":
        raise UserError(f"{cfg.init_from} was trained with doc_mask, which may hide the first of "
                        "the pairs that loss_on=repeats trains on: leave loss_on out")
    return model.train(), {
        "variant": cfg.variant or checkpoint.variant_of(state, model) + switch_name(cfg),
        "base": state["config"] | {key: state[key] for key in ("iter", "data", "base")},
        "vocab": state["vocab"], "data": data}


def resume(cfg, state, device):
    """Return (model, metadata) of the run in cfg.out_dir, whose checkpoint is `state`."""
    print0(f"continuing {cfg.out_dir} after iter {state['iter']:,}")
    model = checkpoint.restore(state, device, name=cfg.out_dir)
    return model.train(), {key: state[key] for key in ("variant", "base", "vocab", "data")}


def switch_name(cfg):
    return f">>{cfg.switch_attention_type}" if cfg.switch_iter else ""  # softmax>>ssmax is (f)


def find_resumable(cfg, data):
    """Return the checkpoint in out_dir, or None. UserError if its settings or data differ."""
    path = Path(cfg.out_dir) / "ckpt.pt"
    if cfg.resume == "overwrite" and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise UserError("--resume=overwrite would start from scratch at each restart by torchrun: "
                        "leave out --max-restarts")
    if cfg.resume == "overwrite" or not path.exists():
        return None
    state = checkpoint.load(path)
    # without decay, max_iters does not affect the schedule, so a run may become longer
    free = FREE_TO_CHANGE | ({"max_iters"} if cfg.decay == "none" else set())
    # settings that were added later take their defaults
    old = {f.name: f.default for f in dataclasses.fields(cfg)} | state["config"]
    if old["dtype"] == "auto":  # older runs did not record what auto meant
        old["dtype"] = cfg.dtype
    differences = [f"{k}={old[k]!r} (now {v!r})" for k, v in dataclasses.asdict(cfg).items()
                   if k not in free and old[k] != v]
    if state["data"]["digest"] != data["digest"]:
        differences.append("other training data")
    if differences:
        raise UserError(f"{cfg.out_dir} holds another run: it has {', '.join(differences)}; choose "
                        "another --out_dir, or --resume=overwrite")
    return state


# -----------------------------------------------------------------------------
# the loop


def fit(cfg, model, metadata, resumed, batches):
    """
    Train `model` in place, for train.py and sft.py, and save it in cfg.out_dir.

    resumed: the checkpoint that this run continues, or None. batches: see Batches.
    """
    prepare_run(cfg, model, resumed)
    device = next(model.parameters()).device
    path = Path(cfg.out_dir) / "ckpt.pt"
    start = resumed["iter"] if resumed else 0
    optimizer = make_optimizer(cfg, model)
    # Compute.for_run measures the free memory, and subtracts what Adam's moments will take. So it
    # must run before they are loaded.
    compute = Compute.for_run(cfg, model)
    if resumed:
        optimizer.load_state_dict(resumed.pop("optimizer"))  # pop frees Adam's two moments
    log = Log(cfg, model, metadata, start if resumed else None)
    received_signals = runtime.install_stop_flag()
    peak = runtime.peak_flops(device, PEAK_FLOPS)

    def validate(done):
        with torch.no_grad():
            loss, _ = try_batch(cfg, model, compute, batches.val, training=False)
        runtime.all_reduce([loss])
        log({"iter": done, "val_loss": loss.item(), **learned_scales(model)})
        print0(f"iter {done:,}: validation loss {loss.item():.4f}")

    def save(done):
        if runtime.RANK == 0:
            log.sync()  # first, so that the log is never older than the checkpoint
            checkpoint.save(path, {
                "model": model.state_dict(), "model_config": dataclasses.asdict(model.config),
                "config": dataclasses.asdict(cfg), "optimizer": optimizer.state_dict(),
                "iter": done, **metadata})

    if cfg.eval_interval and not resumed:  # with random weights it is near log(vocab_size)
        validate(0)
    if cfg.sample_interval and not resumed:
        print_sample(cfg, model, batches, metadata["vocab"])
    mean_seconds = 0.0  # running mean of the seconds per update
    for step in range(start, cfg.max_iters):
        if cfg.switch_iter and step == cfg.switch_iter:  # (f): Adam's moments are kept, s is new
            model.swap_attention(cfg.switch_attention_type)
            moments = optimizer.state
            optimizer = make_optimizer(cfg, model)
            optimizer.state.update(moments)
            compute.compile(cfg)  # again, since the compiled loss uses softmax
            print0(f"iter {step:,}: softmax becomes {cfg.switch_attention_type}")

        began = time.perf_counter()
        loss, norm, tokens, stops = update(
            cfg, model, optimizer, compute, step, partial(batches.train, step), received_signals)
        done, seconds = step + 1, time.perf_counter() - began
        if step <= start + 1:  # the first update is slow (cold caches), so the second replaces it
            mean_seconds = seconds
        else:
            mean_seconds = 0.95 * mean_seconds + 0.05 * seconds
        record = {"iter": done, "loss": loss, "lr": optimizer.param_groups[0]["lr"],
                  "grad_norm": norm, "tokens_per_s": round(tokens / seconds),
                  "micro_batch_size": compute.micro}
        if peak:
            flops = model.flops_per_token(model.config.block_size) * tokens
            record["mfu"] = flops / seconds / peak / runtime.WORLD_SIZE
        log(record)
        last = done == cfg.max_iters
        if last or is_due(cfg.log_interval, done):
            print_update(cfg, record, mean_seconds)
        if (cfg.eval_interval and last) or is_due(cfg.eval_interval, done):
            validate(done)
        if is_due(cfg.sample_interval, done):
            print_sample(cfg, model, batches, metadata["vocab"])
        if stops or last or is_due(cfg.save_interval, done):
            save(done)
        if stops:  # a signal that another rank received counts as SIGTERM, 15
            raise UserError(f"stopped after iter {done:,}, saved in {path}; the same command "
                            "with --resume=auto continues",
                            status=128 + (received_signals or [15])[0])
    if not resumed and cfg.max_iters == 0:  # a swap without training: (e)
        save(0)
    runtime.exit_on_next_signal(received_signals)  # all is saved
    if resumed and start >= cfg.max_iters:
        print0(f"nothing to train: this run has its {start:,} updates already: {path}")
    else:
        print0(f"done: {path}")


def print_update(cfg, record, mean_seconds):
    """Print one line about an update, from its record in the log."""
    done = record["iter"]
    eta = datetime.timedelta(seconds=round(mean_seconds * (cfg.max_iters - done)))
    mfu = f" | MFU {record['mfu']:.1%}" if "mfu" in record else ""
    print0(f"iter {done:,}/{cfg.max_iters:,} | loss {record['loss']:.4f} | lr {record['lr']:.2e} | "
           f"norm {record['grad_norm']:.2f} | micro-batch {record['micro_batch_size']} | "
           f"{record['tokens_per_s']:,} tokens/s{mfu} | ETA {eta}")


def is_due(interval, done):
    """Return whether something that is done every `interval` updates (0: never) is due now."""
    return interval > 0 and done % interval == 0


def update(cfg, model, optimizer, compute, step, batch, received_signals=()):
    """
    Run update `step` (from 0) and return (loss, gradient norm, tokens of all ranks, number of stop
    signals on all ranks). batch(m) returns this rank's micro-batches of m sequences and the number
    of targets in the global batch, see Batches.train.
    """
    lr = learning_rate(cfg, step)
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss, tokens = try_batch(cfg, model, compute, batch, training=True)  # adds up the gradients

    # We all-reduce gradients ourselves instead of using DDP: one code path serves one process and
    # many, and the compiled graph gets no breaks from DDP.
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    # torch.full, because torch.tensor would copy from the CPU and wait for the GPU
    stops, tokens = (torch.full((), float(count), device=loss.device)
                     for count in (len(received_signals), tokens))
    runtime.all_reduce([*grads, loss, stops, tokens])
    total_norm = torch.nn.utils.get_total_norm(grads)
    # With one rank this is the only GPU synchronization in an update. With several, the ranks also
    # wait for each other after their micro-batches (runtime.attempt).
    loss, norm, stops, tokens = torch.stack((loss, total_norm, stops, tokens)).tolist()
    if not math.isfinite(loss + norm):  # checked before the step, which would spoil the weights
        raise UserError(f"iter {step + 1:,}: the loss is {loss} and the gradient norm {norm}, so "
                        "training stopped before the update; a checkpoint that was saved is good. "
                        "Try a lower learning_rate or a longer warm-up, in another --out_dir or "
                        "with --resume=overwrite", status=1)

    if cfg.grad_clip:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), cfg.grad_clip, total_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)  # frees the gradients' memory for validation
    return loss, norm, tokens, stops


@dataclass
class Compute:
    """Micro-batch size and loss function, chosen to fit the machine without effect on results."""
    micro: int  # sequences that a rank computes at once
    loss_fn: Callable = summed_loss  # training loss, compiled if that works: see `compile`

    @classmethod
    def for_run(cls, cfg, model):
        device = next(model.parameters()).device
        micro = cfg.micro_batch_size or first_micro_batch(cfg, model, device)
        compute = cls(min(runtime.all_gather(micro)))  # the smallest of all ranks
        compute.compile(cfg)
        return compute

    def compile(self, cfg):
        """Compile the training loss if cfg says so. torch.compile is lazy, so it may fail at the
        first call (`try_batch`). Validation has other shapes and is not compiled."""
        self.loss_fn = summed_loss
        if cfg.compile:
            try:
                self.loss_fn = torch.compile(summed_loss, dynamic=False)
            except Exception as e:  # torch.compile may not support this Python
                self.give_up_compiling(e)

    def give_up_compiling(self, error):
        self.loss_fn = summed_loss
        print0(f"torch.compile does not work here ({runtime.describe(error)}); going on without it")


def try_batch(cfg, model, compute, batch, training):
    """
    Return (loss, tokens) of this rank's part of the batch. With `training`, also add up gradients,
    with the compiled loss if there is one.

    batch(m): see `update`. If memory runs out or the compiler fails, `compute` is changed and the
    whole batch runs again.
    """
    micro_batches, denominator = batch(compute.micro)
    while True:
        loss_fn = compute.loss_fn if training else summed_loss
        try:
            return runtime.attempt(
                run_micro_batches, cfg, model, loss_fn, micro_batches, denominator)
        except torch.OutOfMemoryError:
            if compute.micro == 1:
                raise torch.OutOfMemoryError("with a micro-batch of 1") from None
            compute.micro //= 2
            print0(f"out of memory: going on in micro-batches of {compute.micro}, with the same "
                   "result")
            micro_batches, denominator = batch(compute.micro)
        except Exception as e:
            # torch.compile raises many kinds of errors: no compiler, no Python headers, ... If it
            # fails on this rank alone, the other ranks wait in the all_gather at the end of
            # runtime.attempt, and this rank must reach that one next. So it runs the same
            # micro-batches again and does not call `batch`, which may call all_gather too.
            compiled = loss_fn is not summed_loss
            if not compiled or isinstance(e, UserError) or runtime.out_of_memory(e):
                raise
            compute.give_up_compiling(e)
        # clear the gradients and redo the whole batch, so that nothing counts twice
        model.zero_grad(set_to_none=True)


def run_micro_batches(cfg, model, loss_fn, micro_batches, denominator):
    """Return (loss, tokens) of the micro-batches; call backward if gradients are on."""
    device = model.wte.weight.device
    # Compiled code on a GPU is fastest with all logits at once. All other code computes them in
    # chunks, to bound memory.
    chunk, compiled = cfg.loss_chunk, loss_fn is not summed_loss
    if not chunk and not (device.type == "cuda" and compiled):
        chunk = runtime.logits_at_once(device, model.config.vocab_size, training=True)
    total = torch.zeros((), device=device)  # stays on the device: .item() would synchronize
    for x, y, documents in micro_batches:
        # We look for the targets that count while the batch is on the CPU: asking the GPU would
        # stall every micro-batch.
        counted = None if (y >= 0).all() else np.flatnonzero(y >= 0)
        x, y, counted, documents = (
            to_device(array, device) for array in (x, y, counted, documents))
        with runtime.autocast(device, cfg.dtype):
            loss = loss_fn(model, x, y, chunk, counted, documents) / denominator
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


# -----------------------------------------------------------------------------
# what the loop uses


def prepare_run(cfg, model, resumed):
    """
    Check the length of the warm-up, whether the model can be switched (f), the folder of a new run,
    and the free space on the disk. If all is well and the run is new, also remove the squad.json
    of an older run from the folder, and rename its checkpoint to ckpt_prev.pt.
    """
    if 0 < cfg.max_iters < cfg.warmup_iters:
        print0(f"warmup_iters={cfg.warmup_iters:,} is longer than the run: the learning rate only "
               f"gets to {learning_rate(cfg, cfg.max_iters - 1):.2e}; set --warmup_iters")
    if cfg.switch_iter and model.config.attention_type == "softmax":
        try:
            dataclasses.replace(model.config, attention_type=cfg.switch_attention_type)
        except ValueError as e:
            raise UserError(str(e)) from e
    folder = Path(cfg.out_dir)
    with runtime.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    own = {"log.jsonl", "squad.json"}  # a new run replaces these
    left = sorted({path.name for path in folder.glob("[!.]*.json*")} - own)
    if left and not resumed:
        raise UserError(f"{folder} holds results of an earlier run ({', '.join(left)}), which "
                        "would be taken for results of this run: move them away, or choose another "
                        "--out_dir")
    # three checkpoints (current, previous, being written), each with weights and two moments; (e)
    # saves its weights once
    needed = (3 * 12 if cfg.max_iters else 4) * model.num_params()
    free = shutil.disk_usage(folder).free
    # A folder with checkpoints is not checked: they take this space already. (ckpt*, because rank 0
    # may already have renamed ckpt.pt, below.)
    if free < needed and not any(folder.glob("ckpt*.pt")):
        raise UserError(f"{folder} has {free / 1e9:.1f} GB free, but the checkpoints of this model "
                        f"take {needed / 1e9:.1f} GB; make room or choose another --out_dir")
    # wait for all ranks: one may still be reading the checkpoint that is renamed below
    runtime.all_gather(None)
    if not resumed and runtime.RANK == 0:
        (folder / "squad.json").unlink(missing_ok=True)  # sft.py writes it at the end of a run
        if (folder / "ckpt.pt").exists():
            # An older run is being overwritten. If this one dies before its first save, the next
            # command, with --resume=auto, would otherwise continue the old one.
            (folder / "ckpt.pt").replace(folder / "ckpt_prev.pt")


def first_micro_batch(cfg, model, device):
    """Return how many sequences a rank computes at once at the beginning: a power of two."""
    c, tokens = model.config, 2**12  # tokens per micro-batch; a CPU is not faster with more
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # bytes kept per token for backward in compiled code, see experiments/speed/memory.py
        per_token = c.n_layer * (20 * c.n_embd + 10 * c.n_inner) + 4 * c.vocab_size
        # parameters are on the GPU already; gradients and two moments are still to come
        tokens = (0.85 * free - 12 * model.num_params()) / per_token
    rows_of_rank = math.ceil(cfg.batch_size / runtime.WORLD_SIZE)
    rows = min(rows_of_rank, max(1, int(tokens / c.block_size)))
    return 2 ** (rows.bit_length() - 1)  # it can be halved repeatedly


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


def make_optimizer(cfg, model):
    """Return AdamW with weight decay on matrices only. The last group has the learned scales."""
    # s, b and p_n have no weight decay, as in the paper: it would pull s to 0, which is uniform
    # attention.
    scales = model.scales()
    rest = [p for name, p in model.named_parameters() if name not in scales]
    groups = [{"params": [p for p in rest if p.dim() >= 2], "weight_decay": cfg.weight_decay},
              {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0}]
    if scales:
        groups.append({"params": list(scales.values()), "weight_decay": 0.0})
    # fused on a CPU too, unlike nanoGPT: one pass over the parameters instead of a dozen
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.beta1, cfg.beta2),
                             fused=True)


def print_sample(cfg, model, batches, vocab):
    """Print the beginning of a validation row and the model's greedy continuation. Every rank must
    call it, because batches.val may ask all of them for the number of targets."""
    micro_batches, _ = batches.val(1)
    if runtime.RANK != 0:  # with more ranks than rows this one may have none
        return
    x, _, _ = micro_batches[0]
    idx = torch.from_numpy(x[:1, :16]).to(model.wte.weight.device)
    T = idx.size(1)
    with runtime.autocast(idx.device, cfg.dtype):
        row = model.generate(idx, min(32, model.max_len - T), temperature=0)[0].tolist()
    print0(f"    {decode(row[:T], vocab)!r} -> {decode(row[T:], vocab)!r}")


def learned_scales(model):
    """Return learned s, b, g and sink as {name: [layer][head]}; a layer without them is None."""
    scales = {}
    for name, p in model.scales().items():
        if name.startswith("blocks."):  # leaves out p_n, which stays in the checkpoint
            _, layer, *_, letter = name.split(".")
            by_layer = scales.setdefault(letter, [None] * len(model.blocks))
            by_layer[int(layer)] = [round(v, 5) for v in p.tolist()]
    return scales


class Log:
    """
    Writes out_dir/log.jsonl: one line about the run, then one per update or evaluation. It also
    sends the numbers to Weights & Biases if wandb_log is set.

    start: None for a new run. A run that resumes after `start` updates drops the lines of later
    updates, which it runs again.
    """

    def __init__(self, cfg, model, metadata, start):
        self.file = self.wandb = None
        if runtime.RANK != 0:
            return
        path = Path(cfg.out_dir) / "log.jsonl"
        records = [{"config": dataclasses.asdict(cfg), "params": model.num_params(),
                    "model_config": dataclasses.asdict(model.config), "torch": torch.__version__,
                    **{key: metadata[key] for key in ("variant", "base", "data")}}]
        if start is not None and path.exists():
            with runtime.explain(f"{path} is damaged; move it away", runtime.MALFORMED):
                old = runtime.read_lines(path)
                if old and "config" in old[0]:  # with the new settings: max_iters may differ
                    records = [old[0] | {"config": dataclasses.asdict(cfg)}]
                records += [r for r in old if 0 <= r.get("iter", -1) <= start]
        runtime.write_lines(path, records)
        self.file = open(path, "a", buffering=1)  # written line by line
        if cfg.wandb_log:
            try:
                import wandb
                self.wandb = wandb.init(
                    project=cfg.wandb_project, dir=cfg.out_dir, config=dataclasses.asdict(cfg),
                    name=cfg.wandb_run_name or Path(cfg.out_dir).name)
            except Exception as e:  # training goes on without a key, network or package
                print0(f"wandb is off ({runtime.describe(e)}); WANDB_MODE=offline needs no network")

    def sync(self):
        """Wait until what was logged is on the disk."""
        with runtime.writing(self.file.name):
            os.fsync(self.file.fileno())

    def __call__(self, record):
        if self.file:
            with runtime.writing(self.file.name):
                self.file.write(json.dumps(record) + "\n")
        if self.wandb:
            # wandb cannot plot lists: s of each head stays in log.jsonl
            numbers = {k: v for k, v in record.items() if not isinstance(v, list)}
            self.wandb.log(numbers, step=record["iter"])


if __name__ == "__main__":
    runtime.launch(main)
