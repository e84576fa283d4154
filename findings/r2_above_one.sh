#!/usr/bin/env bash
# torchmetrics' R2Score of a useless model is about 1 if the targets lie far from 0
# Versions: torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6 (1,000 targets with a deviation of 1).
# Guess: R2Score is 1 minus the squared errors by the variance of the targets, whatever their mean, as in
#   scikit-learn: 0 for a model that always predicts the mean. PearsonCorrCoef of the same library is right.
# True: it keeps the sum of the targets and of their squares in fp32, and takes their difference in the end. With
#   targets around 10,000 what is left is rounding, also more than 1, and it depends on the batch size.
#   ExplainedVariance and RelativeSquaredError do the same.
# Hurt: regression of years, prices, energies or times that are not centred: early stopping and tables by R2.
# Output seen:
#   mean 0: R2 in one batch -0.000, in batches of 10 0.000; in float64 0.000
#   mean 1000: R2 in one batch -0.133, in batches of 10 0.134; in float64 0.000
#   mean 10000: R2 in one batch 0.943, in batches of 10 1.057; in float64 0.000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

"$python" - <<'PY'
import torch
from torchmetrics.regression import R2Score
torch.manual_seed(0)
def r2(targets, size):
    metric = R2Score()
    for batch in targets.split(size):
        metric.update(torch.full_like(batch, targets.double().mean().item()), batch)
    return metric.compute().item()
for mean in (0, 1000, 10000):
    targets = torch.randn(1000) + mean
    once, tens, exact = r2(targets, 1000), r2(targets, 10), r2(targets.double(), 1000)
    print(f"mean {mean}: R2 in one batch {once:.3f}, in batches of 10 {tens:.3f}; in float64 {exact:.3f}")
    assert abs(exact) < 1e-3 and (abs(once) < 1e-3) == (mean == 0)
assert once > 0.5 and tens > 0.5
PY
