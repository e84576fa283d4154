#!/usr/bin/env bash
# torchmetrics' accuracy of logits depends on the batch size
# Versions: torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6 (1,000 logits of deviation .7, labels drawn from them).
# Guess: BinaryAccuracy takes logits or probabilities, as its page says, and batches do not matter.
# True: each call of update decides anew. A batch whose logits all lie between 0 and 1 is taken for probabilities:
#   it gets no sigmoid, and a logit of .4 counts as class 0. The smaller the batch, the more often this happens.
#   AUROC, which should not mind, then ranks sigmoids and logits together.
# Hurt: evaluation of classifiers and of reward margins in small batches, and a last batch that is small.
# Output seen:
#   batches of 1: accuracy 0.586, AUROC 0.615
#   batches of 2: accuracy 0.615, AUROC 0.655
#   batches of 4: accuracy 0.636, AUROC 0.685
#   batches of 1000: accuracy 0.639, AUROC 0.691
#   (logit > 0) == label: 0.639; probabilities in batches of 1: 0.639
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

"$python" - <<'PY'
import torch
from torchmetrics.classification import BinaryAUROC, BinaryAccuracy
torch.manual_seed(0)
logits = torch.randn(1000) * 0.7
labels = (torch.rand(1000) < logits.sigmoid()).long()
def score(metric, size, values):
    for batch, right in zip(values.split(size), labels.split(size)):
        metric.update(batch, right)
    return metric.compute().item()
true = ((logits > 0) == labels).float().mean().item()
accuracy, auroc = {}, {}
for size in (1, 2, 4, 1000):
    accuracy[size], auroc[size] = score(BinaryAccuracy(), size, logits), score(BinaryAUROC(), size, logits)
    print(f"batches of {size}: accuracy {accuracy[size]:.3f}, AUROC {auroc[size]:.3f}")
safe = score(BinaryAccuracy(), 1, logits.sigmoid())
print(f"(logit > 0) == label: {true:.3f}; probabilities in batches of 1: {safe:.3f}")
assert abs(accuracy[1000] - true) < 1e-6 and abs(safe - true) < 1e-6 and accuracy[1] < true - 0.02
PY
