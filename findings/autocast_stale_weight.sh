#!/usr/bin/env bash
# Inside one autocast block, an updated weight is not seen
# Versions: torch 2.13.0, CPU, autocast to bfloat16.
# Guess: a forward pass uses the current weights.
# True: autocast caches the bf16 copy of each weight that needs a gradient until the block is left. After
#   optimizer.step() inside the block the next forward pass still uses the old weight: the loss stands
#   still and the fp32 weight moves. Leaving the block between the passes cures it.
# Hurt: training loops, test-time training and adaptation written under one autocast block.
# Output seen:
#   losses, one block: [1.3029, 1.3029, 1.3029, 1.3029] a block for each step: [1.3029, 0.9781, 0.7482, 0.5866]
#   weight times 3: output times 1.00 inside the block, times 2.98 in the next
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
def losses(one_block):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    values = []
    def step():
        loss = (layer(x).float() - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(round(loss.item(), 4))
    if one_block:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(4):
                step()
    else:
        for _ in range(4):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                step()
    return values
torch.manual_seed(0)
layer, x = torch.nn.Linear(4, 4, bias=False), torch.randn(2, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(3)
    inside = layer(x)
with torch.autocast("cpu", dtype=torch.bfloat16):
    outside = layer(x)
print("losses, one block:", losses(True), "a block for each step:", losses(False))
inside, outside = [(y.sum() / before.sum()).item() for y in (inside, outside)]
print(f"weight times 3: output times {inside:.2f} inside the block, times {outside:.2f} in the next")
assert inside == 1 and outside > 2.9
PY
