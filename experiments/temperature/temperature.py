"""
Which f(n) does a trained model want? For each context size, find the constant factor on the query
that is best there: for the loss in the last tenth of the positions, or for needles at any depth.

    python -m experiments.temperature.temperature out/a out/b --data_dir=data/slimpajama
    python -m experiments.temperature.temperature out/a config/quick_niah.py --what=needles

If the log n of (b) is right, the best factor of (b) stays 1, and that of (a) grows like log n.
RoPE's theta matters: by default it is 50 times that of training, and --rope_factor=1 keeps that of
training. The result is temperature[-tag].jsonl, with a line for each size, beside the checkpoint or
where --out says. experiments.temperature.figure draws it.
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
    what: Literal["loss", "needles"] = "loss"  # measure: loss in the last tenth, or needles found
    context_sizes: tuple = (1024, 2048, 4096, 8192, 16384)  # tokens
    factors: tuple = tuple(round(2 ** (i / 4), 3) for i in range(-4, 9))  # factors to try
    n_samples: int = 20  # windows or needles per size, the same for each factor

    def __post_init__(self):
        super().__post_init__()
        if self.what == "loss" and self.haystack:
            raise ValueError("--haystack has no effect on the loss, which is measured on "
                             "--data_dir: leave --haystack out, or give --what=needles")
        if self.trials or self.dump:
            raise ValueError("trials and dump are settings of eval_niah.py: leave them out")
        good = all(type(x) in (int, float) and x > 0 for x in self.factors)
        if not good or len(self.factors) < 3 or list(self.factors) != sorted(set(self.factors)):
            raise ValueError("factors must be three or more positive numbers in rising order")


def best(factors, costs):
    """
    Return the factor with the least mean cost, by a parabola in its logarithm. NaN if all factors
    cost the same.

    factors: rising numbers. costs: (factors, samples).
    """
    mean, x = costs.mean(1), np.log(factors)
    least = np.flatnonzero(mean < mean.min() + 1e-9)  # several factors may find all needles
    if len(least) == len(x):
        return math.nan
    if len(least) > 1 or least[0] in (0, len(x) - 1):  # a plateau, or no neighbour
        return float(np.exp(x[least].mean()))
    near = slice(least[0] - 1, least[0] + 2)  # farther away the costs do not follow a parabola
    a, b, _ = np.polyfit(x[near], mean[near], 2)
    return float(np.exp(-b / (2 * a)))


def interval(factors, costs):
    """Return the 95 % interval of `best` by bootstrap over the samples."""
    # Each draw has the same samples for all factors, because windows differ more than factors do.
    rng = np.random.default_rng(0)  # the same interval whenever it is asked for
    drawn = rng.integers(costs.shape[1], size=(400, costs.shape[1]))
    bests = [x for rows in drawn if (x := best(factors, costs[:, rows])) == x]  # NaN != NaN
    return np.quantile(bests or [math.nan], (0.025, 0.975)).tolist()


@torch.no_grad()
def measure(cfg, path, device):
    """Return the records of one checkpoint, one for each size. Its file keeps finished ones."""
    sizes = cfg.context_sizes
    model, state = evaluate.open_for_context(cfg, path, device, max(sizes))
    vocab = state["vocab"]
    hay, data = open_haystack(cfg, vocab)
    if cfg.what == "loss" and len(hay) <= max(sizes):
        raise UserError(f"split {cfg.split} has only {len(hay):,} tokens; choose smaller "
                        "--context_sizes")
    if cfg.what == "needles":
        eval_niah.check_room(cfg, path, model, make_sample(cfg, vocab, hay, max(sizes), None, 0))
    out, records = evaluate.begin(
        cfg, path, model, state, data, "temperature.jsonl", [measure, eval_niah.answer], len(sizes))
    # Only layers that see all keys get a factor. Inside of a window n is constant, and the layer is
    # plain softmax.
    layers = [block.attn for block in model.blocks if math.isinf(block.attn.reach)]
    # each factor is applied to these values, and not on top of the factor before
    learned = [(attn.s.clone(), attn.b.clone()) for attn in layers]

    # losses and misses return [(number of the sample, cost)] for jobs of one size
    def losses(jobs):
        size, numbers = jobs[0][0], [i for _, i in jobs]
        # the same windows for every factor, so that nothing but the factor differs
        starts = random_starts(cfg.seed, "temperature", size, cfg.n_samples, len(hay) - size)
        window = torch.from_numpy(hay.read(starts[numbers], size + 1)).to(device)
        chunk = runtime.logits_at_once(device, model.config.vocab_size)
        with runtime.autocast(device, cfg.dtype, cache=False):
            by_token = token_losses(model, window[:, :-1], window[:, 1:], chunk)
        # Only the last tenth counts: there every query sees about `size` keys. A mean over all
        # positions would blur the curve.
        means = by_token[:, size - max(1, size // 10):].mean(1).tolist()
        return list(zip(numbers, means, strict=True))

    def misses(jobs):
        batch = [make_sample(cfg, vocab, hay, size, None, i) for size, i in jobs]
        records = eval_niah.answer(cfg, model, vocab, batch, device)
        return [(record["i"], 1.0 - record["exact"]) for record in records]  # lower is better

    def costs(size, factor):
        """Return the costs of all samples, in their order."""
        # Every type multiplies the query by s f(n)^g + b, so we multiply s and b by the factor.
        for attn, (s, b) in zip(layers, learned, strict=True):
            attn.s.copy_(factor * s)
            attn.b.copy_(factor * b)
        pairs = []
        for _, results in evaluate.work(
                device, f"{path}, {size:,}, factor {factor}",
                [(size, i) for i in range(cfg.n_samples)],
                losses if cfg.what == "loss" else misses, cfg.micro_batch_size):
            pairs += results
        return [cost for _, cost in sorted(pairs)]  # sorted: results come rank by rank

    for size in sizes[len(records) - 1:]:
        by_factor = np.array([costs(size, factor) for factor in cfg.factors])  # (factors, samples)
        records.append({"length": size, "best": best(cfg.factors, by_factor),
                        "interval": interval(cfg.factors, by_factor),
                        "cost": by_factor.mean(1).round(5).tolist()})
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
