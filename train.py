"""
Pretrain a Transformer with any attention type of the paper.

    python train.py config/b_ssmax.py                                      one GPU, or the CPU
    torchrun --standalone --nproc_per_node=8 train.py config/b_ssmax.py    eight GPUs; the losses stay the same
    python train.py config/quick.py --attention_type=ssmax                 a small model in two minutes on a laptop

The same command again continues the run in out_dir. A config file is Python and is executed.
"""
import dataclasses
import functools
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import checkpoint
import runtime
from configurator import configure
from data import ORDERS, Tokens
from model import ATTENTION, GPT, GPTConfig
from runtime import UserError, print0

# -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainConfig(GPTConfig):
    """Defaults: the paper's pretraining (Appendix B), with the model's own settings from GPTConfig."""
    out_dir: str = "out/a_softmax"  # ckpt.pt and log.jsonl go here
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    train_split: str = "train"  # its split to train on
    val_split: str = "val"  # its split for the validation loss
    data_order: str = "windows"  # windows (random), blocks (each once an epoch, shuffled), sequence (as in the file)
    seed: int = 1337  # of the initial weights and the order of the data
    init_from: str = ""  # start from the weights and architecture of this checkpoint; softmax can become attention_type
    variant: str = ""  # name in figures, a to f, pn or head_scale; empty: what the other settings (and init_from) say
    resume: str = "auto"  # auto: continue the run in out_dir; overwrite: start anew and replace it
    # optimization
    max_iters: int = 200_000  # updates
    batch_size: int = 2048  # sequences an update, over all ranks
    micro_batch_size: int = 64  # sequences that a rank computes at once; changes memory and speed, not the result
    learning_rate: float = 6e-4  # after the warm-up
    warmup_iters: int = 1000  # updates of linear warm-up
    decay: str = "none"  # none (constant), linear or cosine
    decay_iters: int = 0  # updates of decay before the end; 0: all after the warm-up
    min_lr: float = 0.0  # where the decay ends
    beta1: float = 0.9  # AdamW
    beta2: float = 0.95  # AdamW
    weight_decay: float = 0.1  # on parameters of rank >= 2 only: s, b, p_n and norms are left alone
    grad_clip: float = 1.0  # norm of the gradient; 0: no clipping
    # the paper's (f): from this update on, another attention type
    switch_iter: int = 0  # 0: never
    switch_attention_type: str = "ssmax"  # what softmax becomes then, with s = 1/mean(log n)
    switch_warmup_iters: int = 1000  # the learning rate warms up again over so many updates
    # evaluation, log, checkpoints
    eval_interval: int = 1000  # updates between validation losses (and at start and end); 0: never
    eval_seqs: int = 512  # sequences of the validation split, the same every time
    save_interval: int = 1000  # updates between checkpoints
    log_interval: int = 1  # updates between lines on the screen; log.jsonl has them all
    wandb_log: bool = False  # also log to Weights & Biases
    wandb_project: str = "nanossmax"  # its project
    wandb_run_name: str = ""  # its run; empty: the name of out_dir
    # machine
    device: str = "auto"  # auto, cuda, cuda:1, cpu, mps
    dtype: str = "auto"  # auto: bfloat16 autocast where the hardware has it, else float32
    compile: bool = True  # torch.compile; falls back with one line where it cannot
    loss_chunk: int = 0  # rows of logits that exist at once (less memory); 0: what is fastest on the device

    def __post_init__(self):
        super().__post_init__()
        for key in ("batch_size", "micro_batch_size", "eval_seqs", "save_interval", "log_interval"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be positive")
        for key in ("seed", "max_iters", "learning_rate", "warmup_iters", "decay_iters", "min_lr", "beta1", "beta2", "weight_decay", "grad_clip",
                    "switch_iter", "switch_warmup_iters", "eval_interval", "loss_chunk"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key} must not be negative")
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError("beta1 and beta2 must be below 1")
        if self.switch_iter and (self.attention_type != "softmax" or self.switch_iter >= self.max_iters):
            raise ValueError(f"switch_iter={self.switch_iter} needs attention_type=softmax (it is {self.attention_type}) and a larger max_iters "
                             f"(it is {self.max_iters}); set --switch_iter and --switch_warmup_iters to fit")
        if not self.out_dir:
            raise ValueError("out_dir must name a folder")
        if "/" in self.variant or "\\" in self.variant:
            raise ValueError("variant is part of a file's name: no slashes")
        for key, choices in {"decay": ("none", "linear", "cosine"), "resume": ("auto", "overwrite"), "data_order": ORDERS,
                             "switch_attention_type": tuple(ATTENTION)}.items():
            if getattr(self, key) not in choices:
                raise ValueError(f"{key} must be one of {', '.join(choices)}, not {getattr(self, key)!r}")


# What a continued run may change: it alters neither the data nor the mathematics.
FREE_TO_CHANGE = {"out_dir", "data_dir", "val_split", "resume", "micro_batch_size", "eval_interval", "eval_seqs", "save_interval",
                  "log_interval", "wandb_log", "wandb_project", "wandb_run_name", "device", "compile", "loss_chunk"}


def learning_rate(cfg, step):
    """The learning rate of update `step` (from 0): warm-up, constant, decay, and a second warm-up after the switch of (f)."""
    factor = min(1.0, (step + 1) / max(1, cfg.warmup_iters))
    if cfg.switch_iter and step >= cfg.switch_iter:
        factor *= min(1.0, (step - cfg.switch_iter + 1) / max(1, cfg.switch_warmup_iters))
    start = max(cfg.warmup_iters, cfg.max_iters - (cfg.decay_iters or cfg.max_iters))
    if cfg.decay == "none" or step < start:
        return factor * cfg.learning_rate
    gone = (step - start) / max(1, cfg.max_iters - start)
    share = 1 - gone if cfg.decay == "linear" else 0.5 * (1 + math.cos(math.pi * gone))
    return factor * (cfg.min_lr + share * (cfg.learning_rate - cfg.min_lr))


def make_optimizer(cfg, model, state=None):
    """AdamW with decay on rank >= 2 only. `state` (by parameter name) carries moments over; a parameter it lacks starts afresh."""
    named = list(model.named_parameters())
    groups = [{"params": [(n, p) for n, p in named if p.dim() >= 2], "weight_decay": cfg.weight_decay},
              {"params": [(n, p) for n, p in named if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.beta1, cfg.beta2), fused=True)
    if state is not None:
        groups = optimizer.state_dict()["param_groups"]
        index = {name: i for g in groups for name, i in zip(g["param_names"], g["params"])}
        optimizer.load_state_dict({"state": {i: state[n] for n, i in index.items() if n in state}, "param_groups": groups})
    return optimizer


def optimizer_state(optimizer):
    saved = optimizer.state_dict()
    names = {i: name for g in saved["param_groups"] for name, i in zip(g["param_names"], g["params"])}
    return {names[i]: s for i, s in saved["state"].items()}


# -----------------------------------------------------------------------------


class Log:
    """out_dir/log.jsonl, one JSON object a line: first the config, then every update and evaluation. And wandb, if wanted."""

    def __init__(self, cfg, model, start, digest):
        self.file = self.wandb = None
        if runtime.rank() != 0:
            return
        path = Path(cfg.out_dir) / "log.jsonl"
        header = {"config": dataclasses.asdict(cfg), "data": digest, "params": model.num_params(), "torch": torch.__version__}
        lines = [json.dumps(header) + "\n"]
        try:  # updates that are done again must not stand there twice
            if start and path.exists():
                lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n") and json.loads(line).get("iter", 0) <= start]
        except (ValueError, AttributeError, TypeError) as e:
            raise UserError(f"{path} is not a log of this program any more ({e}); mend it, or move it away") from e
        with runtime.atomic_write(path, "w") as f:
            f.writelines(lines)
        self.file = open(path, "a")
        if cfg.wandb_log:
            try:
                import wandb
                self.wandb = wandb
                wandb.init(project=cfg.wandb_project, name=cfg.wandb_run_name or Path(cfg.out_dir).name, dir=cfg.out_dir,
                           config=dataclasses.asdict(cfg))
            except Exception as e:  # no key, no network, no package: none is worth a training run
                print0(f"wandb is off ({runtime.describe(e)}); WANDB_MODE=offline logs without network")
                self.wandb = None

    def __call__(self, record):
        if self.file:
            with runtime.writing(self.file.name):
                self.file.write(json.dumps(record) + "\n")
                self.file.flush()
        if self.wandb:
            self.wandb.log({k: v for k, v in record.items() if not isinstance(v, list)}, step=record["iter"])

    def sync(self):
        if self.file:
            with runtime.writing(self.file.name):
                os.fsync(self.file.fileno())


def print_update(record, max_iters, seconds):
    """The line of one update; `seconds` an update takes of late."""
    mfu = f" | MFU {record['mfu']:.1%}" if "mfu" in record else ""
    print0("iter {iter:,}/{0:,} | loss {loss:.4f} | lr {lr:.2e} | norm {grad_norm:.2f} | {tokens_per_s:,} tokens/s".format(max_iters, **record)
           + f"{mfu} | ETA {runtime.duration(seconds * (max_iters - record['iter']))}")


def non_finite(done, loss, norm, ckpt_path, saved):
    good = f"the last good checkpoint is {ckpt_path} (iter {saved:,})" if saved is not None else "there is no checkpoint yet"
    return UserError(f"iter {done:,}: loss {loss}, gradient norm {norm}: stopped before the update; {good}. "
                     "A lower learning_rate or a longer warm-up may help", status=1)


def learned_scales(model):
    """{s: [layer][head], b: [layer][head]} where learned."""
    found = {}
    for block in model.blocks:
        for name, p in block.attn.named_parameters(recurse=False):
            found.setdefault(name, []).append([round(v, 5) for v in p.tolist()])
    return found


def compiled(cfg, model, run, micros):
    """torch.compile the model, proved on micro-batches of every shape; where that fails, say so in one line and go on without."""
    if not cfg.compile:
        return model
    began = time.time()
    try:
        fast = torch.compile(model, dynamic=False)
        for micro in {micro[0].shape: micro for micro in micros}.values():
            run(fast, micro).backward()
        print0(f"compiled in {runtime.duration(time.time() - began)}")
        return fast
    except torch.OutOfMemoryError:
        raise
    except Exception as e:  # no C++ compiler, no Python headers, an unsupported system: each fails in its own way
        print0(f"torch.compile does not work here ({runtime.describe(e)}); going on without it")
        return model
    finally:
        model.zero_grad(set_to_none=True)


def advised(fit):
    """`fit` that says, where a GPU's memory does not suffice, which micro-batch to try."""
    @functools.wraps(fit)
    def wrapper(cfg, *args, **kwargs):
        try:
            return fit(cfg, *args, **kwargs)
        except torch.OutOfMemoryError as e:
            half = min(cfg.micro_batch_size, -(-cfg.batch_size // runtime.world_size())) // 2
            smaller = f"--micro_batch_size={half}, which does not change the result, then " if half else ""
            raise UserError(f"out of memory ({runtime.describe(e)}); try {smaller}--loss_chunk=2048") from e
    return wrapper


@advised
def fit(cfg, model, train_batch, val_batch, vocab=None, resumed=None, digest=""):
    """
    The training loop, for pretraining and fine-tuning alike. Trains `model` in place and saves it in cfg.out_dir.

    train_batch(step) -> (micro-batches, denominator): this rank's part of global batch `step` as a list of x, y (int64 arrays, -1 in y
    is not trained), and what the summed loss of the whole global batch is divided by. val_batch() -> the same for validation.
    resumed: the checkpoint to continue, whose weights `model` has already.
    """
    if cfg.batch_size < runtime.world_size():
        raise UserError(f"batch_size {cfg.batch_size} is the global batch and must have a sequence for each of {runtime.world_size()} ranks")
    device = next(model.parameters()).device
    autocast = runtime.autocast(device, cfg.dtype)
    ckpt_path = Path(cfg.out_dir) / "ckpt.pt"
    start = resumed["iter"] if resumed else 0
    optimizer = make_optimizer(cfg, model, resumed["optimizer"] if resumed else None)
    if resumed:
        resumed["optimizer"] = None  # a copy of the moments on the CPU is not needed any more
    bounded = cfg.loss_chunk or runtime.logits_at_once(device, cfg.vocab_size)
    # a GPU is fastest with all logits at once, compiled
    chunk = cfg.loss_chunk or (0 if device.type == "cuda" else runtime.logits_at_once(device, cfg.vocab_size, training=True))
    stop, log = runtime.StopFlag(), Log(cfg, model, start, digest)
    peak = runtime.peak_flops(device)

    def run(net, micro, denominator=1.0, chunk=chunk):
        x, y = (torch.from_numpy(a).to(device, non_blocking=True) for a in micro)
        with autocast:
            return net(x, y, reduction="sum", chunk=chunk)[1] / denominator

    @torch.no_grad()
    def validate(done):
        micros, denominator = val_batch()
        total = torch.zeros((), device=device)
        for micro in micros:
            total += run(model, micro, denominator, bounded)  # not compiled, so all logits at once would need more than training
        runtime.all_reduce([total])
        log({"iter": done, "val_loss": total.item(), **learned_scales(model)})
        print0(f"iter {done:,}: validation loss {total.item():.4f}")

    def save(done):
        log.sync()
        if runtime.rank() == 0:
            checkpoint.save(ckpt_path, {
                "model": model.state_dict(), "model_config": dataclasses.asdict(model.config), "config": dataclasses.asdict(cfg),
                "optimizer": optimizer_state(optimizer), "iter": done, "vocab": vocab, "data": digest})

    if cfg.eval_interval and start == 0:
        validate(0)
    saved, net, ema = start if resumed else None, None, None
    for step in range(start, cfg.max_iters):
        if cfg.switch_iter and step == cfg.switch_iter:  # (f): moments of what stays are kept, the data goes on, s is new
            model.swap_attention(cfg.switch_attention_type)
            optimizer, net = make_optimizer(cfg, model, optimizer_state(optimizer)), None
            print0(f"iter {step:,}: {cfg.attention_type} becomes {cfg.switch_attention_type}")
        if net is None:
            net = compiled(cfg, model, run, train_batch(step)[0])
        began = time.perf_counter()
        micros, denominator = train_batch(step)
        lr = learning_rate(cfg, step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = torch.zeros(2, device=device)  # the loss, and how many ranks were told to stop
        for micro in micros:
            part = run(net, micro, denominator)
            part.backward()
            loss[0] += part.detach()
        loss[1] = bool(stop.signal)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        runtime.all_reduce([*grads, loss])  # once an update; every rank ends with the same sums
        norm = torch.nn.utils.get_total_norm(grads)
        loss, stops, norm = *loss.tolist(), norm.item()
        if not math.isfinite(loss + norm):
            raise non_finite(step + 1, loss, norm, ckpt_path, saved)
        if cfg.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), cfg.grad_clip, torch.tensor(norm, device=device))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        done, dt = step + 1, time.perf_counter() - began
        tokens = sum(x.size for x, _ in micros) * runtime.world_size()
        ema = dt if ema is None or step == start + 1 else 0.95 * ema + 0.05 * dt  # the first update is slower than the others
        mfu = {"mfu": model.flops_per_token(cfg.block_size) * tokens / dt / peak / runtime.world_size()} if peak else {}
        record = {"iter": done, "loss": loss, "lr": lr, "grad_norm": norm, "tokens_per_s": round(tokens / dt), **mfu}
        log(record)
        if done % cfg.log_interval == 0 or done == cfg.max_iters:
            print_update(record, cfg.max_iters, ema)
        if cfg.eval_interval and (done % cfg.eval_interval == 0 or done == cfg.max_iters):
            validate(done)
        if stops or done % cfg.save_interval == 0 or done == cfg.max_iters:
            save(done)
            saved = done
        if stops:
            number = stop.signal or 15
            again = "the same command" if cfg.resume == "auto" else "--resume=auto"
            raise UserError(f"stopped by signal {number} after iter {done:,}, saved in {ckpt_path}; {again} continues", status=128 + number)
    if saved is None:  # a swap without training: (e)
        save(start)
    print0(f"done: {ckpt_path}" if start < cfg.max_iters or not resumed else f"finished before, nothing to do: {ckpt_path}")


# -----------------------------------------------------------------------------


def find_resumable(cfg, digest):
    """The checkpoint in out_dir if it is one of this very run, None if there is none. UserError rather than overwrite another run."""
    path = Path(cfg.out_dir) / "ckpt.pt"
    if cfg.resume == "overwrite" and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise UserError("--resume=overwrite would start anew at each restart by torchrun; move the old run away, or leave out --max-restarts")
    if cfg.resume == "overwrite" or not (path.exists() or checkpoint.previous(path).exists()):
        return None
    state = checkpoint.load(path)
    free = FREE_TO_CHANGE | ({"max_iters"} if cfg.decay == "none" else set())
    old = {**{f.name: f.default for f in dataclasses.fields(cfg)}, **state["config"]}  # a run older than a setting had its default
    differs = [f"{k}={old[k]!r} (now {v!r})" for k, v in dataclasses.asdict(cfg).items() if k not in free and old[k] != v]
    if state["data"] != digest:
        differs.append("training data")
    if differs:
        raise UserError(f"{cfg.out_dir} holds another run: it has {', '.join(differs)}; choose another --out_dir, or --resume=overwrite")
    return state


def variant(cfg, init):
    """The paper's letter for a run, from its settings and the checkpoint that it starts from; fine-tuning keeps that of pretraining."""
    letters = {"softmax": "a", "ssmax": "b", "ssmax_s1": "c", "ssmax_bias": "d"}
    if cfg.variant:
        return cfg.variant
    if init and init["model_config"]["attention_type"] == cfg.attention_type:
        return init["config"].get("variant", "")
    if init and cfg.attention_type == "ssmax":
        return "e"
    return "f" if cfg.switch_iter else letters.get(cfg.attention_type, cfg.attention_type)


def start_model(cfg, device, digest, vocab=None):
    """
    (cfg, model, resumed checkpoint or None, vocab): a fresh model, the run in out_dir, or the weights of init_from. The last brings its
    architecture (and vocabulary) into cfg; attention_type and rope_theta other than the defaults replace its own.
    """
    init = None
    if cfg.init_from:
        init = checkpoint.load(cfg.init_from)
        vocab = init["vocab"]
        theirs = dataclasses.asdict(GPTConfig(**init["model_config"]))  # with the defaults of settings that it is older than
        asked = {k: getattr(cfg, k) for k in theirs if getattr(cfg, k) != getattr(GPTConfig, k)}
        differs = [k for k, v in asked.items() if v != theirs[k] and k not in ("attention_type", "rope_theta", "vocab_size")]
        if differs:
            raise UserError(f"{cfg.init_from} has {', '.join(f'{k}={theirs[k]}' for k in differs)}; leave out what its architecture says")
        try:
            cfg = dataclasses.replace(cfg, **{**theirs, **asked})
        except ValueError as e:
            raise UserError(f"{e} (after --init_from={cfg.init_from})") from e
    cfg = dataclasses.replace(cfg, variant=variant(cfg, init))
    resumed = find_resumable(cfg, digest)
    if resumed:
        print0(f"continuing {cfg.out_dir} after iter {resumed['iter']:,}")
        model, _ = checkpoint.load_model(cfg.out_dir, device, state=dict(resumed))
    elif init:
        model, _ = checkpoint.load_model(cfg.init_from, device, cfg.attention_type, cfg.rope_theta, state=init)
    else:
        torch.manual_seed(cfg.seed)  # on the CPU: the same initial weights on every device, for every attention type
        fields = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(GPTConfig)}
        model = GPT(GPTConfig(**fields)).to(device)
    return cfg, model.train(), resumed, vocab


def main():
    cfg = configure(TrainConfig)
    device = runtime.get_device(cfg.device)
    runtime.init_ranks(device)
    train = Tokens(cfg.data_dir, cfg.train_split)
    val = Tokens(cfg.data_dir, cfg.val_split) if cfg.eval_interval else None
    if cfg.vocab_size not in (GPTConfig.vocab_size, train.vocab_size):
        raise UserError(f"{cfg.data_dir} has a vocabulary of {train.vocab_size}, vocab_size is {cfg.vocab_size}; leave it out")
    if val and val.vocab != train.vocab:
        raise UserError(f"{cfg.data_dir}: {cfg.val_split} and {cfg.train_split} have different vocabularies; prepare both with --compact_vocab")
    cfg = dataclasses.replace(cfg, vocab_size=train.vocab_size)
    cfg, model, resumed, vocab = start_model(cfg, device, train.digest, train.vocab)
    if vocab != train.vocab:
        raise UserError(f"{cfg.init_from} was trained on another vocabulary than {cfg.data_dir} has")

    def micro_batches(tokens, step, n):
        x, y = tokens.batch(cfg.seed, step, n, cfg.block_size, cfg.data_order)
        m = cfg.micro_batch_size
        return [(x[i:i + m], y[i:i + m]) for i in range(0, len(x), m)], n * cfg.block_size

    print0(f"{cfg.attention_type}: {model.num_params():,} parameters | {len(train):,} training tokens | "
           f"{cfg.batch_size * cfg.block_size:,} tokens an update | {runtime.world_size()} rank(s) on {device.type}, "
           f"{str(runtime.get_dtype(device, cfg.dtype)).removeprefix('torch.')}")
    fit(cfg, model, lambda step: micro_batches(train, step, cfg.batch_size), lambda: micro_batches(val, 0, cfg.eval_seqs),
        vocab=train.vocab, resumed=resumed, digest=train.digest)


if __name__ == "__main__":
    runtime.launch(main)
