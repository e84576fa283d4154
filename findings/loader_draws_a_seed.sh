#!/usr/bin/env bash
# An evaluation whose loader does not shuffle changes the training that follows
# Versions: torch 2.13.0, CPU.
# Guess: a DataLoader that does not shuffle and has no workers leaves torch's random numbers alone.
# True: each iteration over it draws a seed for workers from the default generator. Dropout, shuffling and
#   sampling after an evaluation are others than without it. With a generator of its own the loader does not touch
#   them.
# Hurt: comparisons of runs that differ in how often they evaluate; the result depends on eval_interval.
# Output seen:
#   loss after 20 updates: no evaluation 0.7062, evaluation 0.7147, evaluation with its own generator 0.7062
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
def train(loader):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in [data[:]] * 20:
        if loader is not None:
            for _ in loader:  # an evaluation, which computes nothing here
                pass
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return (model.eval()(data[:][0]) - data[:][1]).square().mean().item()
losses = {"no evaluation": train(None), "evaluation": train(DataLoader(data, batch_size=16)),
    "evaluation with its own generator": train(DataLoader(data, batch_size=16, generator=torch.Generator()))}
print("loss after 20 updates:", ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))
plain, evaluated, own = losses.values()
assert plain == own != evaluated
PY
