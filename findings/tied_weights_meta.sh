#!/usr/bin/env bash
# Moving a model to the meta device unties its weights
# Versions: torch 2.13.0, CPU.
# Guess: .to("meta") keeps shared parameters shared, as .to(dtype) and deepcopy do.
# True: each use becomes a parameter of its own. After to_empty and loading the weights the model gives the
#   right outputs, and from the first update on the two copies are trained apart.
# Hurt: memory-saving initialisation of models whose output layer shares the embedding's weights.
# Output seen:
#   parameters: as built 800, bf16 800, through meta 1600
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import copy
import torch
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self.head = torch.nn.Linear(8, 100, bias=False)
        self.head.weight = self.embedding.weight
count = lambda model: sum(p.numel() for p in model.parameters())
model = Tied()
bf16, copied = copy.deepcopy(model).to(torch.bfloat16), copy.deepcopy(model)
meta = Tied().to("meta").to_empty(device="cpu")
meta.load_state_dict(model.state_dict())
print(f"parameters: as built {count(model)}, bf16 {count(bf16)}, through meta {count(meta)}")
assert count(bf16) == count(copied) == 800 and count(meta) == 1600
PY
