"""
Does the first layer's positional head limit a model's reach? (see experiments/mini_cpu/recipe.md)

    python -m experiments.mini_cpu.mechanism out/mini/main/{a_softmax,b_ssmax,head_scale}-{1..10}

The positional head is the head of the first layer that looks most at the last 8 tokens, at the
training length. By context size, we measure its share of attention on these tokens, the needles
found and the loss:

    - under several RoPEs;
    - with this head broken: its logits are multiplied by 0, so that its attention is uniform;
    - with the other head of its layer broken;
    - with its attention limited to the last 128 tokens.
"""
import dataclasses
import functools
import sys
from pathlib import Path

import numpy as np
import torch

import eval_niah
from experiments.mini_cpu.attention import QUICK, shares
from experiments.verdicts import markdown, spread
from lib import checkpoint, runtime
from lib.config import configure
from lib.data import Tokens, random_starts
from lib.loss import token_losses
from lib.tasks import make_sample, open_haystack

AS_PAPER = {"rope_scaling": "theta", "rope_factor": 50.0}
ROPES = {"theta x 1": {}, "theta x 10": {**AS_PAPER, "rope_factor": 10.0}, "theta x 50": AS_PAPER,
         "theta x 100": {**AS_PAPER, "rope_factor": 100.0},
         "half the pairs turn": {"rope_fraction": 0.5},
         "half of theta x 50": {**AS_PAPER, "rope_fraction": 0.5}}
BROKEN = ("positional head broken", "other head broken", "held within 128 tokens")


@dataclasses.dataclass(frozen=True)
class MechanismConfig(eval_niah.NiahConfig):
    # evaluation
    n_seqs: int = 12  # number of windows for the loss


def within(attn, head, reach, q, k, v, mask):
    """Attention.attend, but `head` sees only the last `reach` keys. Its log n stays as it was."""
    T, S = q.size(2), k.size(2)
    mask = torch.ones(attn.n_head, T, S, dtype=torch.bool).tril(S - T)
    mask[head] = mask[head].triu(S - T - reach + 1)
    return attn.logits(q, k).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def needles_found(cfg, model, vocab, hay, size):
    """Return the share of needles found."""
    records = []
    for i in range(cfg.n_samples):  # one at a time, because `within` needs size x size logits
        sample = make_sample(cfg, vocab, hay, size, None, i)
        records += eval_niah.answer(cfg, model, vocab, [sample], torch.device("cpu"))
    return np.mean([record["exact"] for record in records])


def losses(cfg, model, tokens):
    """Return the loss in the last tenth before each size, for windows of the largest size."""
    sizes = cfg.context_sizes
    starts = random_starts(cfg.seed, "mechanism", 0, cfg.n_seqs, len(tokens) - sizes[-1])
    window = torch.from_numpy(tokens.read(starts.astype(np.int64), sizes[-1] + 1))
    rows = [token_losses(model, row[None, :-1], row[None, 1:], 4096)[0] for row in window]
    mean = torch.stack(rows).mean(0)
    return [mean[size - size // 10:size].mean().item() for size in sizes]


def break_head(attn, head, arrangement):
    """Change the layer `attn` as one of BROKEN says; `head` is the positional head."""
    if arrangement == "held within 128 tokens":
        attn.attend = functools.partial(within, attn, head, 128)
    else:
        broken = head if arrangement == "positional head broken" else 1 - head
        attn.s[broken] = attn.b[broken] = 0


@torch.no_grad()
def measure(cfg, path):
    """Return {(RoPE or BROKEN, "last 8", "needles" or "loss"): [a number for each size]}."""
    tokens = Tokens(cfg.data_dir, "test")
    numbers, head = {}, None
    for arrangement in (*ROPES, *BROKEN):
        model, state = checkpoint.load_model(path, **ROPES.get(arrangement, AS_PAPER))
        vocab = state["vocab"]
        hay, _ = open_haystack(cfg, vocab)
        if arrangement in BROKEN:  # "last 8" is not measured again: it is that of theta x 50
            break_head(model.blocks[0].attn, head, arrangement)
        else:
            few_samples = dataclasses.replace(cfg, n_samples=16)
            share = shares(few_samples, model, vocab, hay)[:, 0, :, 1]  # (sizes, heads)
            head = int(share[0].argmax()) if head is None else head
            numbers[arrangement, "last 8"] = share[:, head]
        numbers[arrangement, "needles"] = [
            needles_found(cfg, model, vocab, hay, size) for size in cfg.context_sizes]
        numbers[arrangement, "loss"] = losses(cfg, model, tokens)
    return numbers


def main():
    cfg = configure(MechanismConfig, [
        QUICK, "--context_sizes=(128, 512, 1024, 1536, 2048)", "--n_samples=40", *sys.argv[1:]])
    torch.set_num_threads(1)
    groups = {}
    for path in cfg.files:
        name = Path(path).name.rpartition("-")[0]
        groups.setdefault(name, []).append(measure(cfg, path))
        print(f"{path} measured", file=sys.stderr, flush=True)
    for name, runs in groups.items():
        rows = []
        for key in runs[0]:
            by_size = np.array([run[key] for run in runs]).T
            rows.append([*key, *(spread(dict(enumerate(numbers))) for numbers in by_size)])
        markdown(f"{name}, {len(runs)} seeds: mean (least to most)",
                 ["", "", *(f"{size:,}" for size in cfg.context_sizes)], rows)


if __name__ == "__main__":
    runtime.launch(main)
