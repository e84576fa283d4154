"""
Which f(n) does a trained model want? For each context size, the constant factor on the query that
is best there: for the loss of the last tenth of its positions, or for needles found, at any depth.

    python -m experiments.temperature.temperature out/a out/b --data_dir=data/slimpajama
    python -m experiments.temperature.temperature out/a config/quick_niah.py --what=needles

If (b)'s log n is right its curve stays at 1, and (a)'s grows as log n does. RoPE's theta is the
evaluations', 50 times that of training, and matters; --rope_factor=1 keeps that of training. The
result is temperature[-tag].jsonl, a line a size, beside each checkpoint or where --out says;
experiments.temperature.figure draws them.
"""
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

import eval_niah
from lib import evaluate, runtime
from lib.config import configure
from lib.data import random_starts
from lib.loss import token_losses
from lib.runtime import UserError, print0
from lib.tasks import make_sample, open_haystack


@dataclass(frozen=True)
class TemperatureConfig(eval_niah.NiahConfig):
    # evaluation
    what: Literal["loss", "needles"] = "loss"  # loss: of the last tenth of a context
    context_sizes: tuple = (1024, 2048, 4096, 8192, 16384)  # tokens
    factors: tuple = tuple(round(2 ** (i / 4), 3) for i in range(-4, 9))  # 0.5 to 4
    n_samples: int = 20  # windows or needles a size, the same for each factor

    def __post_init__(self):
        super().__post_init__()
        if self.what == "loss" and self.haystack:
            raise ValueError("the loss is of --data_dir: no --haystack, or --what=needles")
        if self.trials or self.dump:
            raise ValueError("trials and dump are eval_niah.py's")
        good = all(type(x) in (int, float) and x > 0 for x in self.factors)
        if not good or len(self.factors) < 3 or list(self.factors) != sorted(set(self.factors)):
            raise ValueError("factors must be three or more positive numbers that rise")


def best(factors, costs):
    """costs (factors, samples) -> the factor of the least mean cost, by a parabola in its log, NaN
    where all factors are alike."""
    mean, x = costs.mean(1), np.log(factors)
    least = np.flatnonzero(mean < mean.min() + 1e-9)  # several factors may find all needles
    if len(least) == len(x):
        return math.nan
    if len(least) > 1 or least[0] in (0, len(x) - 1):  # a plateau, or no neighbour
        return float(np.exp(x[least].mean()))
    near = slice(least[0] - 1, least[0] + 2)  # farther off a cost is no parabola
    a, b, _ = np.polyfit(x[near], mean[near], 2)
    return float(np.exp(-b / (2 * a)))


def interval(factors, costs):
    """95 % of `best` over samples drawn again and again, as many as there are (bootstrap)."""
    # by samples, not by factors: windows differ by more than factors do
    rng = np.random.default_rng(0)  # the same interval whenever it is asked for
    drawn = rng.integers(costs.shape[1], size=(400, costs.shape[1]))
    found = [x for rows in drawn if (x := best(factors, costs[:, rows])) == x]  # NaN is not
    return np.quantile(found or [math.nan], (0.025, 0.975)).tolist()


@torch.no_grad()
def measure(cfg, path, device):
    """[record] of one checkpoint, a size each; finished ones are kept in its file."""
    sizes = cfg.context_sizes
    model, state = evaluate.open_model(cfg, path, device, max(sizes))
    vocab = state["vocab"]
    hay, data = open_haystack(cfg, vocab)
    if cfg.what == "loss" and len(hay) <= max(sizes):
        raise UserError(f"split {cfg.split} has {len(hay):,} tokens; smaller --context_sizes")
    if cfg.what == "needles":
        eval_niah.check_room(cfg, path, model, make_sample(cfg, vocab, hay, max(sizes), None, 0))
    out, records = evaluate.begin(
        cfg, path, model, state, data, "temperature.jsonl", [measure, eval_niah.answer], len(sizes))
    # layers that see all keys: within a window n is constant, and the layer stays plain softmax
    layers = [block.attn for block in model.blocks if math.isinf(block.attn.reach)]
    # factors are put on these, and not one on the other
    learned = [(attn.s.clone(), attn.b.clone()) for attn in layers]

    def losses(jobs):
        size, numbers = jobs[0][0], [i for _, i in jobs]
        # as many windows for every factor, and the same: only the factor differs
        starts = random_starts(cfg.seed, "temperature", size, cfg.n_samples, len(hay) - size)
        window = torch.from_numpy(hay.read(starts[numbers], size + 1)).to(device)
        chunk = runtime.logits_at_once(device, model.config.vocab_size)
        with runtime.autocast(device, cfg.dtype, cache=False):
            found = token_losses(model, window[:, :-1], window[:, 1:], chunk)
        # where all see about `size` keys; the mean over all positions would blur the curve
        found = found[:, size - max(1, size // 10):].mean(1).tolist()
        return list(zip(numbers, found, strict=True))

    def misses(jobs):
        batch = [make_sample(cfg, vocab, hay, size, None, i) for size, i in jobs]
        found = eval_niah.answer(cfg, model, vocab, batch, device)
        return [(record["i"], 1.0 - record["exact"]) for record in found]  # the least is the best

    def costs(size, factor):
        """Those of all samples, in their order."""
        # every type multiplies by s f(n)^g + b: a factor on s and b is one on the query
        for attn, (s, b) in zip(layers, learned, strict=True):
            attn.s.copy_(factor * s)
            attn.b.copy_(factor * b)
        found = []
        for _, results in evaluate.work(
                device, f"{path}, {size:,}, factor {factor}",
                [(size, i) for i in range(cfg.n_samples)],
                losses if cfg.what == "loss" else misses, cfg.micro_batch_size):
            found += results
        return [cost for _, cost in sorted(found)]  # ranks hand theirs in one after the other

    for size in sizes[len(records) - 1:]:
        found = np.array([costs(size, factor) for factor in cfg.factors])
        records.append({"length": size, "best": best(cfg.factors, found),
                        "interval": interval(cfg.factors, found),
                        "cost": found.mean(1).round(5).tolist()})
        runtime.write_lines(out, records)
    return records[1:]


def main():
    cfg = configure(TemperatureConfig)
    device = runtime.setup(cfg.device)
    for path in cfg.files:
        for record in measure(cfg, path, device):
            low, high = record["interval"]
            print0(f"{path}: {record['length']:>7,} tokens: best factor {record['best']:.3f} "
                   f"({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    runtime.launch(main)
