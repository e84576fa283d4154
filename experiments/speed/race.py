"""
nanoGPT's recipe against ours on the same text: validation loss by minutes of training (README.md).

    git clone https://github.com/karpathy/nanoGPT
    python -m experiments.speed.race --nanogpt=nanoGPT                    35 minutes on two cores
    python -m experiments.speed.race --nanogpt=nanoGPT --minutes=5 --ours="config/laptop.py
        --learning_rate=4e-3"

nanoGPT runs as its README says for a CPU (4 layers, 128 wide, config/train_shakespeare_char.py, no
dropout), but on GPT-2's tokens and with 8 rows of 256, which are the shapes of config/laptop.py.
Both learning rates fall until the end of the run, whose number of updates a pilot finds. The two
run side by side with one core each, so that both see the same disturbance. Minutes are those of
updates: validation and checkpoints do not count. Both losses are on the same rows at the end.
"""
import importlib.util
import itertools
import os
import re
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from lib import runtime
from lib.config import configure
from lib.data import Tokens
from lib.runtime import UserError, launch, write_json
from plot import save
from train import TrainConfig

EVALUATIONS = 8  # validation losses of a run after the first
PILOT = 10  # updates that find the time of one
EVAL_SEQS = 96  # validation rows; nanoGPT draws others each time, in batches of 16


@dataclass(frozen=True)
class RaceConfig:
    nanogpt: str = ""  # folder with a checkout of github.com/karpathy/nanoGPT
    ours: str = "config/laptop.py --attention_type=ssmax"  # arguments of train.py
    data_dir: str = "data/books"  # a corpus of GPT-2's ids, made by prepare.py
    val_split: str = "val"  # split for the validation loss
    minutes: float = 30.0  # how long each of the two trains
    compile: bool = False  # let nanoGPT compile its model
    one_after_the_other: bool = False  # each with all cores, and not side by side with one
    out: str = "out/race"  # folder of the runs, of race.json and race.png


# -----------------------------------------------------------------------------
# nanoGPT's side


def write_bins(cfg):
    """Write the corpus as nanoGPT reads it: data/NAME/train.bin and val.bin of bare uint16."""
    folder = Path(cfg.nanogpt) / "data" / "nanossmax_race"
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train.bin"), (cfg.val_split, "val.bin")):
        tokens = Tokens(cfg.data_dir, split)
        if tokens.vocab is not None:
            raise UserError(f"{cfg.data_dir} has a vocabulary of its own, and nanoGPT reads "
                            "GPT-2's ids: prepare the text without --compact_vocab or --tokenizer")
        with open(folder / name, "wb") as out:
            for path in tokens.paths:
                out.write(np.fromfile(path, dtype=tokens.dtype).astype("<u2").tobytes())
    return folder.name


def nanogpt_command(cfg, shape, dataset, out, updates, interval):
    """Return nanoGPT's command for a CPU (its README), at our shapes and with our tokens."""
    settings = dict(
        device="cpu", dtype="float32", compile=cfg.compile, dropout=0.0, dataset=dataset,
        out_dir=str(out), n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd,
        block_size=shape.block_size, batch_size=shape.batch_size, max_iters=updates,
        lr_decay_iters=updates, log_interval=1, eval_interval=interval,
        eval_iters=max(1, EVAL_SEQS // shape.batch_size) if interval <= updates else 1,
        always_save_checkpoint=True)
    return [sys.executable, "-u", "train.py", "config/train_shakespeare_char.py",
            *(f"--{key}={value}" for key, value in settings.items())]


def nanogpt_curve(text):
    """Return [(minutes of updates, validation loss)] and the seconds of an update from what
    nanoGPT printed."""
    seconds = {int(i): float(ms) / 1000
               for i, ms in re.findall(r"iter (\d+): .*time ([\d.]+)ms", text)}
    losses = {int(i): float(loss) for i, loss in re.findall(r"step (\d+): .*val loss (\S+)", text)}
    # an evaluation counts in the time of the update after it, which is replaced by the usual time
    usual = statistics.median(list(seconds.values())[1:])
    each = [usual if i in losses else seconds[i] for i in sorted(seconds)]
    elapsed = [0.0, *itertools.accumulate(each)]
    return [(elapsed[i] / 60, losses[i]) for i in sorted(losses)], usual


def nanogpt_loss(cfg, out, x, y):
    """Return the loss of nanoGPT's last checkpoint on the rows x, y."""
    spec = importlib.util.spec_from_file_location("nanogpt", Path(cfg.nanogpt) / "model.py")
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    state = torch.load(out / "ckpt.pt", weights_only=True)
    model = nanogpt.GPT(nanogpt.GPTConfig(**state["model_args"])).eval()
    model.load_state_dict({key.removeprefix("_orig_mod."): value
                           for key, value in state["model"].items()})
    with torch.no_grad():
        losses = [model(*rows)[1].item() for rows in zip(x.split(8), y.split(8), strict=True)]
    return statistics.mean(losses)


# -----------------------------------------------------------------------------
# our side


def our_command(cfg, out, updates, interval):
    return [sys.executable, "-u", "train.py", *shlex.split(cfg.ours), "--device=cpu",
            f"--data_dir={cfg.data_dir}", f"--val_split={cfg.val_split}", f"--out_dir={out}",
            f"--max_iters={updates}", f"--eval_interval={interval}", f"--eval_seqs={EVAL_SEQS}",
            f"--save_interval={updates}", "--sample_interval=0", "--resume=overwrite"]


def our_curve(path):
    """The same as nanogpt_curve, from our log.jsonl."""
    records = runtime.read_lines(path)
    shape = records[0]["config"]
    tokens = shape["batch_size"] * shape["block_size"]
    seconds = {0: 0.0} | {r["iter"]: tokens / r["tokens_per_s"]
                          for r in records if "tokens_per_s" in r}
    elapsed = dict(zip(seconds, itertools.accumulate(seconds.values()), strict=True))
    curve = [(elapsed[r["iter"]] / 60, r["val_loss"]) for r in records if "val_loss" in r]
    return curve, statistics.median(list(seconds.values())[2:])


# -----------------------------------------------------------------------------
# the race


def run(cfg, commands):
    """Run {name: (command, folder, log)}, side by side with a core each or one after the other."""
    cores = sorted(os.sched_getaffinity(0))
    if not cfg.one_after_the_other and len(cores) < len(commands):
        raise UserError("side by side needs two cores; set --one_after_the_other")
    running = []
    for core, (name, (command, folder, log)) in zip(itertools.cycle(cores), commands.items(),
                                                    strict=False):
        alone = cfg.one_after_the_other
        environment = os.environ if alone else os.environ | {"OMP_NUM_THREADS": "1"}
        mine = set(cores) if alone else {core}
        with open(log, "w") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT,
                preexec_fn=lambda mine=mine: os.sched_setaffinity(0, mine))
        running.append((name, process, log))
        if alone:
            process.wait()
    for name, process, log in running:
        if process.wait():
            raise UserError(f"{name} failed; {log} says why", status=1)


def race(cfg, shape, dataset, updates):
    """Let both train for {name: updates}; return {name: log file or text}."""
    out = Path(cfg.out).resolve() / ("pilot" if max(updates.values()) == PILOT else "runs")
    out.mkdir(parents=True, exist_ok=True)
    # n + 1: nanoGPT always evaluates before its first update, and the pilot needs no more
    intervals = {name: n + 1 if n == PILOT else n // EVALUATIONS for name, n in updates.items()}
    theirs = nanogpt_command(cfg, shape, dataset, out / "nanogpt", updates["nanoGPT"],
                             intervals["nanoGPT"])
    ours = our_command(cfg, out / "ours", updates["ours"], intervals["ours"])
    run(cfg, {"nanoGPT": (theirs, cfg.nanogpt, out / "nanogpt.txt"),
              "ours": (ours, ".", out / "ours.txt")})
    curves = {"nanoGPT": nanogpt_curve((out / "nanogpt.txt").read_text()),
              "ours": our_curve(out / "ours" / "log.jsonl")}
    return out, curves


def time_to(curve, loss):
    """Return the minutes at which the curve first falls to `loss`, or None: linear between."""
    for (m0, l0), (m1, l1) in itertools.pairwise(curve):
        if l1 <= loss:
            return m0 + (m1 - m0) * (l0 - loss) / (l0 - l1)
    return None


def whole_number(updates):
    """Return the largest multiple of EVALUATIONS, so that the last update is evaluated."""
    if updates < 2 * EVALUATIONS:
        raise UserError(f"there is time for {updates:.0f} updates only; set a larger --minutes")
    return int(updates) // EVALUATIONS * EVALUATIONS


def main():
    cfg = configure(RaceConfig)
    if not (Path(cfg.nanogpt or "-") / "train.py").exists():
        raise UserError(f"nanogpt={cfg.nanogpt!r} is not a checkout of nanoGPT: git clone "
                        "https://github.com/karpathy/nanoGPT, and set --nanogpt=nanoGPT")
    shape = configure(TrainConfig, ["config/laptop.py"])
    dataset = write_bins(cfg)
    _, pilot = race(cfg, shape, dataset, {"nanoGPT": PILOT, "ours": PILOT})
    seconds = {name: usual for name, (_, usual) in pilot.items()}
    updates = {name: whole_number(60 * cfg.minutes / s) for name, s in seconds.items()}
    for name, s in seconds.items():
        print(f"{name}: {s:.3f} s an update, so {updates[name]:,} updates", flush=True)
    out, found = race(cfg, shape, dataset, updates)

    curves = {name: curve for name, (curve, _) in found.items()}
    rows = Tokens(cfg.data_dir, cfg.val_split).batch(
        shape.seed, 0, EVAL_SEQS, shape.block_size)  # those of our validation loss
    last = nanogpt_loss(cfg, out / "nanogpt", *(torch.from_numpy(z.copy()) for z in rows))
    reached = time_to(curves["ours"], last)
    result = {
        "minutes": cfg.minutes, "ours": cfg.ours, "compile": cfg.compile,
        "one_after_the_other": cfg.one_after_the_other, "torch": torch.__version__,
        "seconds_per_update": {name: usual for name, (_, usual) in found.items()},
        "updates": updates, "curves": curves, "nanogpt_last_loss_on_our_rows": last,
        "minutes_to_that_loss": reached}
    write_json(Path(cfg.out) / "race.json", result)
    draw(result, Path(cfg.out) / "race.png")
    print(f"nanoGPT's last loss on our rows: {last:.4f}, after {curves['nanoGPT'][-1][0]:.1f} "
          f"minutes. Ours ends at {curves['ours'][-1][1]:.4f} and has that loss after "
          f"{'more time' if reached is None else f'{reached:.1f} minutes'}.")


def draw(result, path):
    axis = Figure().subplots()
    for (name, curve), color in zip(result["curves"].items(), ("0.5", "C0"), strict=True):
        axis.plot(*zip(*curve, strict=True), marker=".", color=color,
                  label=f"{name}, {result['updates'][name]:,} updates")
    last = result["nanogpt_last_loss_on_our_rows"]
    axis.axhline(last, color="0.5", linestyle=":", label=f"nanoGPT at the end: {last:.3f}")
    axis.set(xlabel="minutes of training", ylabel="validation loss (nats)",
             ylim=(min(loss for _, loss in result["curves"]["ours"]) - 0.1, 8))
    axis.legend()
    save(axis.figure, path)


if __name__ == "__main__":
    launch(main)
