#!/usr/bin/env bash
# Tied weights that are loaded with assign=True are updated twice in each step
# Versions: torch 2.13.0, CPU.
# Guess: load_state_dict(assign=True) saves a copy. An embedding that shares its weight with the head stays
#   shared.
# True: the two names become two parameters, over the same memory. The outputs are right, and saving shows
#   nothing. AdamW has both of them in its list, so the shared memory gets two updates in each step.
# Hurt: training that continues from a checkpoint loaded with assign=True (to spare memory, or with mmap=True):
#   the embedding and the head learn at twice their rate.
# Output seen:
#   assign=False: 1 parameters, largest change after an update at .001: 0.0010
#   assign=True: 2 parameters, largest change after an update at .001: 0.0020
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import io
import torch
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, ids):
        return self.head(self.embedding(ids))
torch.manual_seed(0)
file, ids = io.BytesIO(), torch.arange(10)
saved = Tied()
torch.save(saved.state_dict(), file)
moved = {}
for assign in (False, True):
    file.seek(0)
    model = Tied()
    model.load_state_dict(torch.load(file), assign=assign)
    assert model(ids).equal(saved(ids)) and model.embedding.weight.data_ptr() == model.head.weight.data_ptr()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.0)
    torch.nn.functional.cross_entropy(model(ids), ids).backward()
    optimizer.step()
    moved[assign] = (model.head.weight - saved.head.weight).abs().max().item()
    print(f"assign={assign}: {len(list(model.parameters()))} parameters, largest change after an update at .001: {moved[assign]:.4f}")
assert abs(moved[False] - 0.001) < 1e-5 and abs(moved[True] - 0.002) < 1e-5
PY
