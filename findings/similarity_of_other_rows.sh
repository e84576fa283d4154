#!/usr/bin/env bash
# torch-cka: with a loader that shuffles, the similarity of a model to itself is 0
# Versions: torch-cka 0.21, torch 2.13.0 (CPU; three layers, 512 random rows, batches of 64).
# Guess: `compare(loader)` gives both models the same batches, and the order of the rows does not matter.
# True: it goes through the loader twice at the same time, zip(loader, loader), and each pass of a loader with
#   shuffle=True draws an order of its own: the two models see different rows, and the similarity of any two layers is
#   about 0, of a model to itself, too. Without shuffling the numbers are right.
# Hurt: who compares layers, checkpoints or models on training data by the loader of the training: all of them look
#   unrelated, and the picture has no error in it; models that are fine-tuned seem to have forgotten everything.
# Output seen:
#   similarity to itself, layer by layer: 1.00, 1.00, 1.00 in order, 0.01, 0.00, -0.01 shuffled
#   similarity to a tuned copy, layer by layer: 0.93, 0.93, 0.69 in order, -0.01, -0.01, 0.00 shuffled
#   similarity to a stranger, layer by layer: 0.66, 0.65, 0.28 in order, 0.00, 0.00, -0.01 shuffled
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 torch-cka==0.21 tqdm==4.70.1 matplotlib==3.11.2 numpy==2.4.6

"$python" - 2> /dev/null <<'PY'
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_cka import CKA

torch.manual_seed(0)
rows = TensorDataset(torch.randn(512, 32))
model, stranger = (nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(2))
tuned = copy.deepcopy(model)
with torch.no_grad():
    for weight in tuned.parameters():
        weight += 0.05 * torch.randn_like(weight)
layers = ["0", "1", "2"]
for name, other in (("itself", copy.deepcopy(model)), ("a tuned copy", tuned), ("a stranger", stranger)):
    seen = []
    for shuffle in (False, True):
        cka = CKA(*copy.deepcopy([model, other]), model1_layers=layers, model2_layers=layers, device="cpu")
        cka.compare(DataLoader(rows, batch_size=64, shuffle=shuffle))
        seen.append(cka.export()["CKA"].diagonal())
    plain, shuffled = (", ".join(f"{round(value, 2) + 0:.2f}" for value in values.tolist()) for values in seen)
    print(f"similarity to {name}, layer by layer: {plain} in order, {shuffled} shuffled")
    assert seen[0].min() > (0.99 if name == "itself" else 0.1) and seen[1].abs().max() < 0.03
PY
