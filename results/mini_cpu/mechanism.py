"""
Is it the first layer's positional head that ends a model's reach? (results/recipe.md)

    python results/mini_cpu/mechanism.py out/mini/main/{a_softmax,b_ssmax,head_scale}-{1..10}

The positional head is that head of the first layer which looks most at the last 8 tokens at the
training length. Its share, the needles found and the loss are measured against the context size
under other RoPEs, with this head broken (its logits times 0: uniform attention), with the other
head of its layer broken, and with its attention held within the last 128 tokens.
"""
import dataclasses
import functools
import sys
from pathlib import Path

import numpy as np
import torch
from attention import AttentionConfig, shares

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the root of the repository

import eval_niah  # noqa: E402
from lib import checkpoint, runtime  # noqa: E402
from lib.config import configure  # noqa: E402
from lib.data import Tokens, random_starts  # noqa: E402
from lib.tasks import make_sample, open_haystack  # noqa: E402

AS_PAPER = {"rope_theta": 500_000.0}
ROPES = {"theta x 1": {}, "theta x 10": {"rope_theta": 1e5}, "theta x 50": AS_PAPER,
         "theta x 100": {"rope_theta": 1e6}, "half the pairs turn": {"rope_fraction": 0.5},
         "half of theta x 50": {**AS_PAPER, "rope_fraction": 0.5}}
BROKEN = ("positional head broken", "other head broken", "held within 128 tokens")


@dataclasses.dataclass(frozen=True)
class MechanismConfig(AttentionConfig):
    # evaluation
    context_sizes: tuple = (128, 512, 1024, 1536, 2048)  # tokens
    n_samples: int = 40  # needles a size
    n_seqs: int = 12  # windows for the loss


def within(attn, head, reach, x, position, cache=None):
    """Attention.forward, but `head` sees the last `reach` keys alone; its log n is as before."""
    B, T, C = x.shape
    q, k, v = attn.queries_keys_values(x, position, cache)
    S = k.size(2)
    mask = torch.ones(attn.n_head, T, S, dtype=torch.bool).tril(S - T)
    mask[head] = mask[head].triu(S - T - reach + 1)
    y = attn.logits(q, k).masked_fill(~mask, -torch.inf).softmax(-1) @ v
    return attn.proj(y.transpose(1, 2).reshape(B, T, C))


def answers(cfg, model, vocab, hay, size):
    """Share of needles found."""
    batch = [make_sample(cfg, vocab, hay, size, None, i) for i in range(cfg.n_samples)]
    found = [eval_niah.answer(cfg, model, vocab, [sample], torch.device("cpu"))[0]["exact"]
             for sample in batch]
    return sum(found) / cfg.n_samples


def losses(cfg, model, tokens, sizes):
    """Loss in the last tenth before each size, of windows as long as the longest."""
    starts = random_starts(cfg.seed, "mechanism", 0, cfg.n_seqs, len(tokens) - sizes[-1])
    window = torch.from_numpy(tokens.read(starts.astype(np.int64), sizes[-1] + 1))
    rows = [model.loss(row[None, :-1], row[None, 1:], per_token=True)[0] for row in window]
    mean = torch.stack(rows).mean(0)
    return [mean[size - size // 10:size].mean().item() for size in sizes]


def breaks(attn, head, how):
    if how == "held within 128 tokens":
        attn.forward = functools.partial(within, attn, head, 128)
        return
    gone = head if how == "positional head broken" else 1 - head
    for factor in (attn.s, attn.b):
        factor[gone] = 0


@torch.no_grad()
def measure(cfg, path):
    """[(how, share of the head on the last 8, needles, loss), each by size]"""
    tokens, rows, head = Tokens(cfg.data_dir, "test"), [], None
    for how in (*ROPES, *BROKEN):
        model, state = checkpoint.load_model(path, **ROPES.get(how, AS_PAPER))
        hay, _ = open_haystack(cfg, state["vocab"])
        if how in BROKEN:
            breaks(model.blocks[0].attn, head, how)
        else:
            looked = dataclasses.replace(cfg, n_samples=16)
            share = shares(looked, model, state["vocab"], hay)[:, 0, :, 1]  # (sizes, heads)
            head = int(share[0].argmax()) if head is None else head
            share = share[:, head]
        found = [answers(cfg, model, state["vocab"], hay, size) for size in cfg.context_sizes]
        loss = losses(cfg, model, tokens, cfg.context_sizes)
        rows.append((how, share, found, loss))
    return rows


def main():
    cfg = configure(MechanismConfig)
    torch.set_num_threads(1)
    groups = {}
    for path in cfg.files:
        name = Path(path).name.rpartition("-")[0]
        groups.setdefault(name, []).append(measure(cfg, path))
        print(f"{path} measured", file=sys.stderr, flush=True)
    for name, runs in groups.items():
        sizes = " | ".join(f"{size:,}" for size in cfg.context_sizes)
        print(f"\n{name}, {len(runs)} seeds: mean (least to most)\n")
        print(f"| | | {sizes} |\n|---|---|{'---|' * len(cfg.context_sizes)}")
        for i, (how, *_) in enumerate(runs[0]):
            for j, what in enumerate(("last 8", "needles", "loss"), 1):
                numbers = np.array([run[i][j] for run in runs])
                if how in BROKEN and what == "last 8":
                    continue  # measured before it was broken: that of theta x 50
                cells = [f"{x.mean():.2f} ({x.min():.2f}-{x.max():.2f})" for x in numbers.T]
                print(f"| {how} | {what} | {' | '.join(cells)} |")


if __name__ == "__main__":
    runtime.launch(main)
