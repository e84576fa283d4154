"""
Draw where the last query of a needle prompt looks, for each layer and head, against the context
size: at the needle's number, the last 8 tokens, the first token, or the rest. recipe.md in this
folder discusses the picture.

    python -m experiments.mini_cpu.attention out/mini/main/b_ssmax-1 ... --out=experiments/mini_cpu
"""
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eval_niah import NiahConfig
from lib import evaluate
from lib.config import configure
from lib.rows import label_of
from lib.runtime import atomic_write, launch, write_json
from lib.tasks import make_sample, open_haystack
from plot import Figure  # with the style of all figures

PARTS = {"the needle": "#0072B2", "last 8 tokens": "#E69F00", "first token": "#009E73",
         "the rest": "#D9D9D9"}
QUICK = "config/quick_niah.py"  # needle and hay of the quick run


@dataclass(frozen=True)
class AttentionConfig(NiahConfig):
    # output
    out: str = "experiments/mini_cpu"  # folder of attention.png and attention.json


def shares(cfg, model, vocab, hay):
    """Return the mean share of the last query's attention, (sizes, layers, heads, PARTS)."""
    parts = []
    for size in cfg.context_sizes:
        for i in range(cfg.n_samples):
            sample = make_sample(cfg, vocab, hay, size, None, i)
            w = model.last_query_attention(torch.tensor([sample["prompt"]]))[0]
            needle, last = w[..., slice(*sample["spans"][0])].sum(-1), w[..., -8:].sum(-1)
            rest = 1 - needle - last - w[..., 0]
            parts.append(torch.stack((needle, last, w[..., 0], rest), dim=-1))
    parts = torch.stack(parts).unflatten(0, (-1, cfg.n_samples))
    return parts.mean(1).numpy()


def main():
    cfg = configure(AttentionConfig, [
        QUICK, "--context_sizes=(128, 256, 512, 768, 1024, 1280, 1536, 2048)", "--n_samples=24",
        *sys.argv[1:]])
    rows = {}
    for path in cfg.files:
        model, state = evaluate.open_for_context(cfg, path, "cpu", max(cfg.context_sizes))
        hay, _ = open_haystack(cfg, state["vocab"])
        rows[f"{label_of(state['variant'])}\n{Path(path).name}"] = shares(
            cfg, model, state["vocab"], hay)
    layers, heads = next(iter(rows.values())).shape[1:3]
    figure = Figure(figsize=(2.1 * layers * heads + 1.5, 1.7 * len(rows) + 0.8),
                    layout="constrained")
    axes = figure.subplots(len(rows), layers * heads, sharex=True, sharey=True, squeeze=False)
    for (name, measured), line in zip(rows.items(), axes, strict=True):
        for i, axis in enumerate(line):
            layer, head = divmod(i, heads)
            axis.stackplot(cfg.context_sizes, measured[:, layer, head].T, colors=PARTS.values(),
                           labels=PARTS)
            axis.set(ylim=(0, 1), xlim=(cfg.context_sizes[0], cfg.context_sizes[-1]))
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.set_title(f"layer {layer + 1}, head {head + 1}")
            axis.grid(False)
        line[0].set_ylabel(name)
    figure.supxlabel("context size (tokens); trained at 128")
    figure.supylabel("share of the last query's attention")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    content = {name: measured.round(4).tolist() for name, measured in rows.items()}
    write_json(Path(cfg.out) / "attention.json", {"sizes": cfg.context_sizes, "parts": [*PARTS],
                                                  "shares of (size, layer, head, part)": content})
    with atomic_write(Path(cfg.out) / "attention.png") as file:
        figure.savefig(file, format="png")
    print(json.dumps({name: np.round(measured[[0, -1], :, :, 1], 2).tolist()
                      for name, measured in rows.items()}))


if __name__ == "__main__":
    launch(main)
