"""
Does attention fade in layer 1, where no needle is looked up? (see "Layer 1" in README.md)

    python -m experiments.readout.layer1 out/mini/main/a_softmax-{1..5} \
        --data_dir=data/almanac-0 --out=experiments/readout
    python -m experiments.readout.layer1 experiments/readout     from the stored numbers

The models are of softmax, with two layers and RoPE in both. Their positional head is the head of
layer 1 that looks most at the last 8 tokens, at the training length with RoPE as trained. We
measure

    - by context size, that head's share of attention on these tokens, and its effective keys,
      exp(entropy), at the last query of needle prompts;
    - at 16 times the training length, needles found and needles ranked first, where the stretch of
      RoPE and the factor of SSMax are put into single layers or heads. Ranked first means that a
      retrieval head of softmax with YaRN gives the needle the largest logit (lib/readout.py).
"""
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eval_niah import NiahConfig
from experiments.mini_cpu.mechanism import needles_found
from experiments.verdicts import Prediction, markdown, minus, print_verdicts, spread
from lib import checkpoint, runtime
from lib.config import configure
from lib.readout import readout, retrieval_heads
from lib.runtime import UserError
from lib.tasks import make_sample, open_haystack

SIZES = (128, 512, 1024, 2048)  # the first is the training length
END = SIZES[-1]
LAST = 8  # tokens that the positional head looks at
STRETCHES = {"theta x 50": {"rope_scaling": "theta", "rope_factor": 50.0},
             "YaRN": {"rope_scaling": "yarn", "rope_factor": 16.0}}
FACTORS = {"(a) softmax": {}, "(e)": {"attention_type": "ssmax"}}
WHERE = ("nowhere", "the positional head", "the other head of layer 1", "layer 1", "layer 2",
         "both layers")
MIXED = {f"{first} in layer 1, {second} in layer 2": (first, second)
         for first in STRETCHES for second in STRETCHES}


@dataclass(frozen=True)
class Layer1Config(NiahConfig):
    # output
    out: str = ""  # folder of layer1.json, to which the results are added


def load(path, stretch=None, swapped=False):
    """Return a model of the checkpoint: RoPE stretched or as trained, with SSMax swapped in."""
    settings = {**STRETCHES.get(stretch, {}), **FACTORS["(e)" if swapped else "(a) softmax"]}
    return checkpoint.load_model(path, **settings)[0]


def put_into(model, layer, other):
    """Replace the attention of one layer by that of `other`, with its RoPE and its factor."""
    attn = other.blocks[layer].attn
    attn.kind = "other"  # layers of one kind would share their RoPE
    model.blocks[layer].attn = attn


@torch.no_grad()
def with_factor(path, stretch, where, head):
    """Return the model with the factor of SSMax in a place of WHERE; head: the positional one."""
    if where in ("nowhere", "both layers"):
        return load(path, stretch, swapped=where == "both layers")
    model, swapped = load(path, stretch), load(path, stretch, swapped=True)
    layer = 1 if where == "layer 2" else 0
    put_into(model, layer, swapped)
    if "head" in where:  # the factor of one of two heads is 1
        plain = 1 - head if where == "the positional head" else head
        attn = model.blocks[0].attn
        attn.s[plain], attn.b[plain] = 0, 1
    return model


def mixed(path, stretches):
    """Return the model with SSMax in both layers, and with another stretch of RoPE in each."""
    model = load(path, stretches[0], swapped=True)
    put_into(model, 1, load(path, stretches[1], swapped=True))
    return model


class Prompts:
    """The prompts of one size, and what the heads of a model do with them."""

    def __init__(self, cfg, vocab, hay, size, first=0):
        self.samples = [make_sample(cfg, vocab, hay, size, None, first + i)
                        for i in range(cfg.n_samples)]

    def layers(self, model):
        """Yield the sample and, for each layer, the last query's (logits (H, T), values)."""
        for sample in self.samples:
            queries = model.last_queries(torch.tensor([sample["prompt"]]))
            yield sample, [(z[0, :, 0], v[0]) for z, v in queries]

    @torch.no_grad()
    def in_layer_1(self, model):
        """Return {"share": on the last tokens, "effective": keys}, each a number for each head."""
        shares, effective = [], []
        for sample, layers in self.layers(model):
            shares.append(layers[0][0].double().softmax(-1)[:, -LAST:].sum(-1))
            effective.append(readout(*layers[0], sample["spans"])["effective"])
        return {"share": torch.stack(shares).mean(0), "effective": torch.stack(effective).mean(0)}

    @torch.no_grad()
    def retrieval(self, model):
        """Return the retrieval heads, [(layer, head)]."""
        return retrieval_heads([
            {"scores": [readout(*layer, sample["spans"])["score"].tolist() for layer in layers]}
            for sample, layers in self.layers(model)])

    @torch.no_grad()
    def ranked_first(self, model, heads):
        """Return the share of the prompts in which one of the heads ranks the needle first."""
        first = []
        for sample, layers in self.layers(model):
            ranks = [readout(*layer, sample["spans"])["rank"].tolist() for layer in layers]
            first.append(any(ranks[layer][head] == 1 for layer, head in heads))
        return float(np.mean(first))


def measure(cfg, path):
    """
    Return what was measured of one checkpoint: {"in layer 1": {stretch: {factor: {size: {"share":
    ..., "effective": ...}}}}, "factor in": {place: {"ranked first": ..., "found": ...}}, "stretch
    in": the same for MIXED}.
    """
    model, state = checkpoint.load_model(path)
    shape = model.config
    if (shape.attention_type, shape.n_layer, shape.n_head, shape.block_size) != (
            "softmax", 2, 2, SIZES[0]):
        raise UserError(f"{path} must be of softmax, with two layers of two heads and a training "
                        f"length of {SIZES[0]}; experiments/mini_cpu/run.sh trains such models")
    vocab = state["vocab"]
    hay, _ = open_haystack(cfg, vocab)
    prompts = {size: Prompts(cfg, vocab, hay, size) for size in SIZES}
    head = int(prompts[SIZES[0]].in_layer_1(model)["share"].argmax())
    in_layer_1 = {}
    for stretch in STRETCHES:
        for factor in FACTORS:
            model = load(path, stretch, swapped=factor == "(e)")
            of_sizes = in_layer_1.setdefault(stretch, {}).setdefault(factor, {})
            for size in SIZES:
                numbers = prompts[size].in_layer_1(model)
                of_sizes[str(size)] = {key: round(float(of_heads[head]), 4)
                                       for key, of_heads in numbers.items()}
    # heads are chosen on prompts that are not measured
    choosing = Prompts(cfg, vocab, hay, SIZES[0], first=cfg.n_samples)
    heads = choosing.retrieval(load(path, "YaRN"))

    def needles(model):
        return {"ranked first": prompts[END].ranked_first(model, heads),
                "found": float(needles_found(cfg, model, vocab, hay, END))}

    return {
        "in layer 1": in_layer_1,
        "factor in": {where: needles(with_factor(path, "YaRN", where, head)) for where in WHERE},
        "stretch in": {name: needles(mixed(path, both)) for name, both in MIXED.items()}}


# -----------------------------------------------------------------------------
# verdicts and tables


def share(seeds, stretch, factor, size, key="share"):
    """Return {seed: number}."""
    return {seed: run["in layer 1"][stretch][factor][str(size)][key] for seed, run in seeds.items()}


def of_place(seeds, what, place, key):
    """Return {seed: number}."""
    return {seed: run[what][place][key] for seed, run in seeds.items()}


def predictions(seeds):
    """15 to 21 of README.md."""
    softmax, swapped = FACTORS
    at_end = {factor: share(seeds, "YaRN", factor, END) for factor in FACTORS}
    at_begin = {factor: share(seeds, "YaRN", factor, SIZES[0]) for factor in FACTORS}

    def factor_in(place, key):
        return of_place(seeds, "factor in", place, key)

    def stretched(first, second):
        return of_place(seeds, "stretch in", f"{first} in layer 1, {second} in layer 2",
                        "ranked first")

    return [
        Prediction(15, "YaRN, 16x: the share is larger with (e) than with softmax", "share",
                   minus(at_end[swapped], at_end[softmax])),
        Prediction(16, "YaRN: softmax's share falls from 1x to 16x", "share",
                   minus(at_begin[softmax], at_end[softmax])),
        Prediction(17, "YaRN: (e)'s share does not fall from 1x to 16x", "share",
                   minus(at_end[swapped], at_begin[swapped])),
        *(Prediction(18, f"theta x 50, 16x: the share of {factor} is below .2", "share",
                     {seed: 0.2 - x for seed, x in
                      share(seeds, "theta x 50", factor, END).items()}) for factor in FACTORS),
        Prediction(19, "YaRN, 16x: the factor in the positional head alone ranks more needles "
                   "first than in the other head of layer 1", "share of prompts",
                   minus(factor_in("the positional head", "ranked first"),
                         factor_in("the other head of layer 1", "ranked first"))),
        Prediction(20, "YaRN, 16x: the factor in layer 1 alone finds more than in layer 2 alone",
                   "share of prompts",
                   minus(factor_in("layer 1", "found"), factor_in("layer 2", "found"))),
        Prediction(21, "(e), 16x: YaRN in layer 1 with theta x 50 in layer 2 ranks more needles "
                   "first than the reverse", "share of prompts", minus(
                       stretched("YaRN", "theta x 50"), stretched("theta x 50", "YaRN")))]


def print_tables(seeds):
    print_verdicts(predictions(seeds), " about layer 1")
    for key, title, digits in (("share", f"share of attention on the last {LAST} tokens", 2),
                               ("effective", "effective keys", 1)):
        rows = [[stretch, factor, *(spread(share(seeds, stretch, factor, size, key), digits)
                                    for size in SIZES)]
                for stretch in STRETCHES for factor in FACTORS]
        markdown(f"The positional head of layer 1: {title}, {len(seeds)} seeds: mean "
                 "(least–largest)", ["", "", *(f"{size:,}" for size in SIZES)], rows)
    for what, places, title in (
            ("factor in", WHERE, "YaRN, with the factor of SSMax in one place"),
            ("stretch in", MIXED, "SSMax in both layers, with a stretch of RoPE for each")):
        rows = [[place, *(spread(of_place(seeds, what, place, key))
                          for key in ("ranked first", "found"))] for place in places]
        markdown(f"{title}, {END:,} tokens, {len(seeds)} seeds: mean (least–largest)",
                 ["", "ranked first", "found"], rows)


def main():
    cfg = configure(Layer1Config, ["config/quick_niah.py", "--n_samples=50", *sys.argv[1:]])
    if not cfg.files:
        raise UserError("name checkpoints of softmax, such as out/mini/main/a_softmax-1, or the "
                        "folder of layer1.json")
    seeds, paths = {}, []
    for path in map(Path, (*filter(None, [cfg.out]), *cfg.files)):
        if (path / "layer1.json").exists():
            seeds |= json.loads((path / "layer1.json").read_text())
        elif str(path) != cfg.out:
            paths.append(path)
    for path in paths:
        seed = path.name.rpartition("-")[2]
        if seed in seeds:
            print(f"{path} is not measured again: seed {seed} is in layer1.json", file=sys.stderr)
            continue
        seeds[seed] = measure(cfg, path)
        if cfg.out:
            runtime.write_json(Path(cfg.out) / "layer1.json", seeds)
        print(f"{path} measured", file=sys.stderr, flush=True)
    print_tables(seeds)


if __name__ == "__main__":
    runtime.launch(main)
