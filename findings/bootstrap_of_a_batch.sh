#!/usr/bin/env bash
# With multinomial sampling, torchmetrics' bootstrap gives an error of 0 if the batches have one row
# Versions: torchmetrics 1.9.0, torch 2.13.0 (CPU; 64 answers, half of them right, 100 bootstraps).
# Guess: BootStrapper gives the standard error of the score over all rows, however they are split into batches.
# True: with sampling_strategy="multinomial", the usual bootstrap, each call of update draws as many rows as it is
#   given, from its own rows alone. A batch of one row always draws that row, so that the error is 0 and the interval is
#   a point. With batches of b rows the variance is (b - 1) / b of the right one. In sorted data, as by subject or by
#   length, the rows of a batch are alike, and the error is 0 for longer batches too. The default, "poisson", is right
#   for each batch size.
# Hurt: error bars of evaluations with one long text at a time, or with sorted texts: each difference is significant.
# Output seen:
#   rows in random order, poisson: standard error for batches of 1, 2, 8, 64 rows: 0.0563 0.0582 0.0592 0.0696
#   rows in random order, multinomial: standard error for batches of 1, 2, 8, 64 rows: 0.0000 0.0471 0.0593 0.0514
#   rows sorted by right and wrong, poisson: standard error for batches of 1, 2, 8, 64 rows: 0.0591 0.0693 0.0606 0.0586
#   rows sorted by right and wrong, multinomial: standard error for batches of 1, 2, 8, 64 rows: 0.0000 0.0000 0.0000 0.0661
#   theory: 0.0625
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

"$python" - <<'PY'
import torch
from torchmetrics import BootStrapper
from torchmetrics.classification import BinaryAccuracy
torch.manual_seed(0)
predictions = torch.randint(2, (64,))
half = torch.arange(64) < 32
orders = {"rows in random order": half[torch.randperm(64)], "rows sorted by right and wrong": half}
sizes = 1, 2, 8, 64
errors = {}
for order, right in orders.items():
    targets = torch.where(right, predictions, 1 - predictions)
    for strategy in ("poisson", "multinomial"):
        for size in sizes:
            metric = BootStrapper(BinaryAccuracy(), num_bootstraps=100, sampling_strategy=strategy)
            for start in range(0, 64, size):
                metric.update(predictions[start:start + size], targets[start:start + size])
            errors[order, strategy, size] = metric.compute()["std"].item()
        print(f"{order}, {strategy}: standard error for batches of 1, 2, 8, 64 rows:",
              *(f"{errors[order, strategy, size]:.4f}" for size in sizes))
truth = (0.25 / 64) ** 0.5
print(f"theory: {truth:.4f}")
for order in orders:
    assert errors[order, "multinomial", 1] == 0
    assert all(abs(errors[order, "poisson", size] / truth - 1) < 0.35 for size in sizes)
    assert abs(errors[order, "multinomial", 64] / truth - 1) < 0.35
assert errors["rows in random order", "multinomial", 2] < 0.85 * truth
assert errors["rows sorted by right and wrong", "multinomial", 8] == 0
PY
