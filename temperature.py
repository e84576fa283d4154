"""
Which f(n) does a trained model want? For each context length, the constant factor on the query that
is best there: for the loss of the last tenth of the positions before it, or for needles found.

    python temperature.py out/a_softmax out/b_ssmax --data_dir=data/slimpajama
    python temperature.py out/a_softmax config/quick_niah.py --what=needles --lengths=128,512

If (b)'s log n is right its curve stays at 1, and (a)'s grows as log n does. Beside each checkpoint:
temperature[-tag].jsonl, a line a length; `plot.py temperature` draws them.
"""
import itertools
import json
from dataclasses import dataclass

import numpy as np
import torch

import eval_niah
from lib import evaluate, runtime
from lib.config import configure
from lib.data import random_starts
from lib.runtime import UserError, print0
from lib.tasks import make_sample, open_haystack


@dataclass(frozen=True)
class TemperatureConfig(eval_niah.NiahConfig):
    # evaluation
    what: str = "loss"  # of the last tenth before a length; or needles
    lengths: tuple = (1024, 2048, 4096, 8192, 16384)  # tokens
    factors: tuple = tuple(round(2 ** (i / 4), 3) for i in range(-4, 9))  # 0.5 to 4
    n_samples: int = 20  # windows or needles a length, the same for each factor

    def __post_init__(self):
        super().__post_init__()
        if self.what not in ("loss", "needles"):
            raise ValueError("what must be loss or needles")
        if list(self.factors) != sorted(set(self.factors)) or not min(self.factors, default=0) > 0:
            raise ValueError("factors must be positive and rise")

    @property
    def longest(self):
        return max(self.lengths)


def best(factors, costs):
    """costs (factors, samples) -> the factor of the least mean cost, by a parabola in its log."""
    mean, x = costs.mean(1), np.log(factors)
    least = np.flatnonzero(mean == mean.min())  # several factors may find all needles
    least = least[len(least) // 2]
    i = int(np.clip(least, 1, len(x) - 2))  # an end of the list has no neighbour
    a, b, _ = np.polyfit(x[i - 1:i + 2], mean[i - 1:i + 2], 2)
    vertex = -b / (2 * a) if a > 0 else x[least]
    return float(np.exp(np.clip(vertex, x[i - 1], x[i + 1])))


def interval(factors, costs):
    """95 % of `best` over samples drawn again and again, as many as there are (bootstrap)."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(costs.shape[1], size=(400, costs.shape[1]))
    return np.quantile([best(factors, costs[:, rows]) for rows in drawn], (0.025, 0.975)).tolist()


@torch.no_grad()
def measure(cfg, path, device):
    """[record] of one checkpoint, a length each; finished ones are kept in its file."""
    model, state = evaluate.open_model(cfg, path, device, max(cfg.lengths))
    hay, data = open_haystack(cfg, state["vocab"])
    if cfg.haystack and cfg.what == "loss":
        raise UserError("the loss is of --data_dir: leave out --haystack, or --what=needles")
    about = evaluate.about(cfg, path, device, model, state, data)
    out = evaluate.result_path(path, "temperature", cfg.tag, ".jsonl")
    records, _ = evaluate.earlier(cfg, out, about, lambda found: len(found) > len(cfg.lengths))
    records = records or [about]
    learned = [(attn.s.clone(), attn.b.clone()) for attn in (block.attn for block in model.blocks)]

    def losses(length, samples):
        starts = random_starts(cfg.seed, "temperature", length, cfg.n_samples, len(hay) - length)
        window = torch.from_numpy(hay.read(starts[samples].astype(np.int64), length + 1)).to(device)
        chunk = runtime.logits_at_once(device, model.config.vocab_size)
        last = length - max(1, length // 10)
        with runtime.autocast(device, cfg.dtype, cache=False):
            found = model.loss(window[:, :-1], window[:, 1:], per_token=True, chunk=chunk)
        return found[:, last:].mean(1).tolist()

    def misses(length, samples):
        jobs = [(length, None, i) for i in samples]
        batch = [make_sample(cfg, state["vocab"], hay, *job) for job in jobs]
        found = eval_niah.answer(cfg, model, state["vocab"], batch, device)
        return [1.0 - record["exact"] for record in found]

    def costs(jobs):
        found = []
        for (length, factor), group in itertools.groupby(jobs, key=lambda job: job[:2]):
            for block, (s, b) in zip(model.blocks, learned, strict=True):
                block.attn.s.copy_(factor * s)
                block.attn.b.copy_(factor * b)
            cost = losses if cfg.what == "loss" else misses
            found += cost(length, [i for _, _, i in group])
        return found

    for length in cfg.lengths[len(records) - 1:]:
        found = []
        jobs = list(itertools.product([length], cfg.factors, range(cfg.n_samples)))
        evaluate.work(device, f"{path}, {length:,}", jobs, costs,
                      lambda _, results, found=found: found.extend(results), cfg.micro_batch_size)
        found = np.reshape(found, (len(cfg.factors), cfg.n_samples))
        records.append({"length": length, "best": best(cfg.factors, found),
                        "interval": interval(cfg.factors, found),
                        "cost": found.mean(1).round(5).tolist()})
        if runtime.RANK == 0:
            with runtime.atomic_write(out, "w") as f:
                f.writelines(json.dumps(record) + "\n" for record in records)
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
