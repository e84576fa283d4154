#!/usr/bin/env bash
# With accelerate the last update of each epoch has too small a gradient
# Versions: accelerate 1.15.0, torch 2.13.0.
# Guess: accumulate() divides by the number of micro-batches that an update has.
# True: each loss is divided by gradient_accumulation_steps. The loader's end closes the last window early: with 8
#   batches and 3 to an update, the third update has two thirds of the gradient.
# Hurt: small datasets with many accumulation steps: 9 batches at 8 to an update make every second update one
#   eighth.
# Output seen:
#   the same batch each time; gradient norms: 8 batches, 3 to an update [0.6447, 0.6447, 0.4298]; 9 batches, 8 to an update [0.6447, 0.0806]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - <<'PY'
import torch
from accelerate import Accelerator
def norms(batches, accumulation):
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, cpu=True)
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 1), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = torch.utils.data.DataLoader([x] * batches, batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    found = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            if accelerator.sync_gradients:
                found.append(round(accelerator.clip_grad_norm_(model.parameters(), 1e9).item(), 4))
            optimizer.step()
            optimizer.zero_grad()
    return found
three, eight = norms(8, 3), norms(9, 8)
print(f"the same batch each time; gradient norms: 8 batches, 3 to an update {three}; 9 batches, 8 to an update {eight}")
assert abs(three[-1] / three[0] - 2 / 3) < 1e-3 and abs(eight[-1] / eight[0] - 1 / 8) < 1e-3
PY
