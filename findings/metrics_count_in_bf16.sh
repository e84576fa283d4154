#!/usr/bin/env bash
# model.to(torch.bfloat16) makes torchmetrics count in bf16: a perplexity of 15 becomes 54
# Versions: torchmetrics 1.9.0, torch 2.13.0 (CPU; 400 batches of one line, metrics as attributes of a model).
# Guess: the documentation says that a metric does not follow the model's dtype: model.bfloat16() and half() leave its
#   states alone, and set_dtype alone changes them.
# True: the guard looks for the names "Module.bfloat16", "Module.half" and so on in the function that casts. model.to()
#   has another name and passes it. The sums of words, n-grams, losses and their counts are in bf16 from then on,
#   without an error: adding 7 to 2,048 changes nothing. Each sum stops at another time, so that the quotient is too
#   large or too small. Counts that are integers, as in accuracy, are not touched.
# Hurt: validation in bf16: transformers' and one's own model.to(torch.bfloat16), and Lightning's precision="bf16-true",
#   which calls it. Each batch alone, and the first few dozen, are right.
# Output seen:
#   no cast: mean loss 3.00, perplexity 15.0, word error rate 0.50, BLEU 0.42; states in torch.float32
#   model.bfloat16(): mean loss 3.00, perplexity 15.0, word error rate 0.50, BLEU 0.42; states in torch.float32
#   model.to(torch.bfloat16): mean loss 4.00, perplexity 54.5, word error rate 0.83, BLEU 1.00; states in torch.bfloat16
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

"$python" - <<'PY'
import torch
from torchmetrics import MeanMetric
from torchmetrics.text import BLEUScore, Perplexity, WordErrorRate
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.loss, self.perplexity, self.errors, self.bleu = MeanMetric(), Perplexity(), WordErrorRate(), BLEUScore()
right, near, far = "the cat sat on the mat here", "the cat sat on the mat there", "a dog lay in the long grass"
casts = {"no cast": lambda model: model, "model.bfloat16()": lambda model: model.bfloat16(),
         "model.to(torch.bfloat16)": lambda model: model.to(torch.bfloat16)}
results = {}
for cast, apply in casts.items():
    model = apply(Model())
    torch.manual_seed(0)
    for batch in range(400):
        model.loss.update(torch.tensor(2.0 if batch < 200 else 4.0))
        model.perplexity.update(torch.randn(1, 8, 10), torch.randint(10, (1, 8)))
        model.errors.update([right], [near if batch < 200 else far])
        model.bleu.update([right], [[near if batch < 200 else far]])
    results[cast] = [metric.compute().item() for metric in (model.loss, model.perplexity, model.errors, model.bleu)]
    print(f"{cast}: mean loss {results[cast][0]:.2f}, perplexity {results[cast][1]:.1f}, word error rate "
          f"{results[cast][2]:.2f}, BLEU {results[cast][3]:.2f}; states in {model.loss.weight.dtype}")
plain, guarded, cast = results.values()
assert plain == guarded
assert cast[0] > 1.3 * plain[0] and cast[1] > 3 * plain[1] and cast[2] > 1.4 * plain[2] and cast[3] > 1.5 * plain[3]
PY
