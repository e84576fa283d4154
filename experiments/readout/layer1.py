"""
Does attention fade in layer 1, where no needle is looked up? (README.md, "In layer 1")

    python -m experiments.readout.layer1 out/mini/main/a_softmax-{1..5} --out=experiments/readout
    python -m experiments.readout.layer1 experiments/readout     from the stored numbers

The models are of softmax, with RoPE in every layer. Their positional head is the head of layer 1
that looks most at the last 8 tokens, at the training length with RoPE as trained. By context size
we measure its share of attention on these tokens and its effective keys, exp(entropy). The query is
the last of a needle prompt. RoPE is stretched in two ways, with and without SSMax swapped in.
"""
import dataclasses
import json
import sys
from pathlib import Path

import torch

import eval_niah
from experiments.verdicts import Prediction, markdown, minus, print_verdicts, spread
from lib import checkpoint, runtime
from lib.config import configure
from lib.tasks import make_sample, open_haystack

LAST = 8  # tokens that the positional head looks at
STRETCHES = {"theta x 50": {"rope_scaling": "theta", "rope_factor": 50.0},
             "YaRN": {"rope_scaling": "yarn", "rope_factor": 16.0}}
FACTORS = {"(a) softmax": {}, "(e)": {"attention_type": "ssmax"}}


@dataclasses.dataclass(frozen=True)
class Layer1Config(eval_niah.NiahConfig):
    # output
    out: str = ""  # folder of layer1.json, to which the results are added


@torch.no_grad()
def look(cfg, path, settings):
    """Return (share on the last 8 tokens, effective keys), each (sizes, heads), of layer 1."""
    model, state = checkpoint.load_model(path, **settings)
    hay, _ = open_haystack(cfg, state["vocab"])
    shares, effective = [], []
    for size in cfg.context_sizes:
        for i in range(cfg.n_samples):
            sample = make_sample(cfg, state["vocab"], hay, size, None, i)
            z, _ = next(model.last_queries(torch.tensor([sample["prompt"]])))
            w = z[0, :, 0].double().softmax(-1)
            shares.append(w[:, -LAST:].sum(-1))
            effective.append(torch.special.entr(w).sum(-1).exp())
    return [torch.stack(rows).unflatten(0, (-1, cfg.n_samples)).mean(1).numpy()
            for rows in (shares, effective)]


def measure(cfg, path):
    """Return {stretch: {factor: {size: {"share": ..., "effective": ...}}}} of that head."""
    head = int(look(cfg, path, {})[0][0].argmax())
    measured = {}
    for stretch, rope in STRETCHES.items():
        for factor, swap in FACTORS.items():
            share, effective = look(cfg, path, rope | swap)
            measured.setdefault(stretch, {})[factor] = {
                str(size): {"share": round(float(share[i, head]), 4),
                            "effective": round(float(effective[i, head]), 2)}
                for i, size in enumerate(cfg.context_sizes)}
    return measured


def get(seeds, stretch, factor, size, key="share"):
    """Return {seed: number}."""
    return {seed: run[stretch][factor][str(size)][key] for seed, run in seeds.items()}


def predictions(seeds):
    """15 to 18 of README.md."""
    softmax, swapped = FACTORS
    at_end = {factor: get(seeds, "YaRN", factor, 2048) for factor in FACTORS}
    at_begin = {factor: get(seeds, "YaRN", factor, 128) for factor in FACTORS}
    said = [
        (15, "YaRN, 16x: the share is larger with (e) than with softmax",
         minus(at_end[swapped], at_end[softmax])),
        (16, "YaRN: softmax's share falls from 1x to 16x",
         minus(at_begin[softmax], at_end[softmax])),
        (17, "YaRN: (e)'s share does not fall from 1x to 16x",
         minus(at_end[swapped], at_begin[swapped])),
        *((18, f"theta x 50, 16x: the share of {factor} is below .2",
           {seed: 0.2 - share for seed, share in
            get(seeds, "theta x 50", factor, 2048).items()}) for factor in FACTORS)]
    return [Prediction(claim, text, "share", values) for claim, text, values in said]


def print_tables(seeds):
    print_verdicts(predictions(seeds), " about layer 1")
    sizes = [int(size) for size in next(iter(seeds.values()))["YaRN"]["(e)"]]
    for key, title, digits in (("share", f"share of attention on the last {LAST} tokens", 2),
                               ("effective", "effective keys", 1)):
        rows = [[stretch, factor, *(spread(get(seeds, stretch, factor, size, key), digits)
                                    for size in sizes)]
                for stretch in STRETCHES for factor in FACTORS]
        markdown(f"The positional head of layer 1: {title}, {len(seeds)} seeds: mean "
                 "(least–largest)", ["", "", *(f"{size:,}" for size in sizes)], rows)


def main():
    cfg = configure(Layer1Config, [
        "config/quick_niah.py", "--context_sizes=(128, 512, 1024, 2048)", "--n_samples=50",
        *sys.argv[1:]])
    seeds, paths = {}, []
    for path in map(Path, cfg.files):
        if (path / "layer1.json").exists():
            seeds |= json.loads((path / "layer1.json").read_text())
        else:
            paths.append(path)
    for path in paths:
        seeds[path.name.rpartition("-")[2]] = measure(cfg, path)
        print(f"{path} measured", file=sys.stderr, flush=True)
    print_tables(seeds)
    if cfg.out:
        runtime.write_json(Path(cfg.out) / "layer1.json", seeds)


if __name__ == "__main__":
    runtime.launch(main)
