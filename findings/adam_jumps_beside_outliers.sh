#!/usr/bin/env bash
# torchao's 8-bit and fp8 AdamW: a weight beside a gradient 1,000 times larger jumps by thousands of learning rates
# Versions: torchao 0.18.0, torch 2.13.0 (CPU, the updates without compilation; a matrix of 64 x 256, 400 updates).
# Guess: moments in 8 bits cost a little accuracy. An update of Adam is about one learning rate, whatever the gradients.
# True: moments are stored by blocks of 256 neighbours, relative to the largest of the block. Beside a gradient 1,000
#   times larger the second moment, a square, is a millionth of the largest and becomes 0, while the first moment stays.
#   Then the update is divided by eps = 1e-8: it is up to 35,000 learning rates. AdamW4bit has no 0 for the second
#   moment and makes no jumps, but hardly moves such weights.
# Hurt: fine-tuning to save memory: in large language models a few channels of some activations are a hundred or
#   thousands of times larger than the others, and so are the gradients of their column. The loss explodes at a learning
#   rate that is right in 32 bits. Small models without such channels show nothing of it.
# Output seen:
#   update in learning rates, gradient 1 beside 1: AdamW 1.0, AdamW8bit 1.1, AdamWFp8 1.1, AdamW4bit 1.4
#   update in learning rates, gradient 0.01 beside 1: AdamW 1.0, AdamW8bit 22.8, AdamWFp8 77.1, AdamW4bit 1.3
#   update in learning rates, gradient 0.001 beside 1: AdamW 1.0, AdamW8bit 8526.5, AdamWFp8 35531.7, AdamW4bit 1.3
#   loss at the end, one input of 1: AdamW 0.6, AdamW8bit 0.6, AdamWFp8 0.7, AdamW4bit 0.7
#   loss at the end, one input of 100: AdamW 0.6, AdamW8bit 0.5, AdamWFp8 0.5, AdamW4bit 1.5
#   loss at the end, one input of 1,000: AdamW 0.6, AdamW8bit 168.5, AdamWFp8 22382.0, AdamW4bit 1.6
. "$(dirname "$0")/common.sh"
venv torchao==0.18.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import torch
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8

kinds = torch.optim.AdamW, AdamW8bit, AdamWFp8, AdamW4bit

def step(optimizer):
    with torch.compiler.set_stance("force_eager"):
        optimizer.step()

def largest_update(kind, ratio):
    """The largest update, in learning rates, of weights whose gradient is this part of the first column's."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(64, 256))
    optimizer = kind([weight], lr=1e-3, weight_decay=0.0)
    largest = 0
    for _ in range(20):
        weight.grad = torch.randn(64, 256)
        weight.grad[:, 1:] *= ratio
        before = weight.detach().clone()
        step(optimizer)
        largest = max(largest, (weight.detach() - before)[:, 1:].abs().max().item() / 1e-3)
    return largest

def last_loss(kind, size):
    """The loss of a linear layer after 400 updates, if one of its 256 inputs is larger than the others."""
    torch.manual_seed(0)
    target, layer = torch.randn(255, 64) / 10, torch.nn.Linear(256, 64, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = kind([layer.weight], lr=3e-4, weight_decay=0.0)
    losses = []
    for _ in range(400):
        x = torch.randn(256, 256)
        x[:, 0] = size * (1 + x[:, 0] / 10)
        loss = (layer(x) - x[:, 1:] @ target).square().mean()
        layer.zero_grad()
        loss.backward()
        step(optimizer)
        losses.append(loss.item())
    return sum(losses[-20:]) / 20

def line(values):
    return ", ".join(f"{kind.__name__} {value:.1f}" for kind, value in zip(kinds, values))

updates, losses = {}, {}
for ratio in (1, 0.01, 0.001):
    updates[ratio] = [largest_update(kind, ratio) for kind in kinds]
    print(f"update in learning rates, gradient {ratio:g} beside 1: {line(updates[ratio])}")
for size in (1, 100, 1000):
    losses[size] = [last_loss(kind, size) for kind in kinds]
    print(f"loss at the end, one input of {size:,}: {line(losses[size])}")
assert max(updates[1]) < 2 and min(updates[0.01][1:3]) > 10 and min(updates[0.001][1:3]) > 1000
assert max(updates[0.001][::3]) < 2 and max(losses[1]) < 0.8 and losses[1000][0] < 0.8 and losses[1000][3] < 2
assert losses[1000][1] > 50 and losses[1000][2] > 5000
PY
