#!/usr/bin/env bash
# Metrics of a MetricCollection that agree on the first batch become one metric from then on
# Versions: torchmetrics 1.9.0, torch 2.13.0 (CPU).
# Guess: a collection gives the results that its metrics give one by one. "Compute groups" share the states of metrics
#   that have the same ones by their definition, such as precision and recall.
# True: after the first update the collection compares the numbers in the states, and not the classes or their settings.
#   Metrics whose numbers happen to be equal are merged for good: from then on only the first in alphabetical order is
#   updated, and the others show its numbers. reset() keeps the groups. compute_groups=False cures it.
# Hurt: a metric with ignore_index beside the one without, if the first batch has no padding; accuracies
#   at several thresholds, if the first batch is easy; WER, which becomes MER. The same batches in another order give
#   the right numbers, so that a test may find nothing.
# Output seen:
#   perplexity, first batch without padding: in a collection {'all': 242.7, 'text': 242.7} one by one {'all': 242.7, 'text': 89.1}
#   perplexity, first batch with padding: in a collection {'all': 242.7, 'text': 89.1} one by one {'all': 242.7, 'text': 89.1}
#   perplexity, compute_groups=False: in a collection {'all': 242.7, 'text': 89.1} one by one {'all': 242.7, 'text': 89.1}
#   perplexity, without padding, then reset(): in a collection {'all': 380.1, 'text': 380.1} one by one {'all': 380.1, 'text': 80.3}
#   accuracy at .5 and .9, first batch sure: in a collection {'at50': 0.875, 'at90': 0.875} one by one {'at50': 0.875, 'at90': 0.625}
#   error rates, first text without insertions: in a collection {'mer': 0.5, 'wer': 0.5} one by one {'mer': 0.5, 'wer': 0.857}
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

"$python" - <<'PY'
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy
from torchmetrics.text import MatchErrorRate, Perplexity, WordErrorRate
torch.manual_seed(0)
def texts(padding):  # logits and labels of 4 texts of 16 tokens; 0 is the padding, which the model finds unlikely
    logits, labels = torch.randn(4, 16, 50), torch.randint(1, 50, (4, 16))
    logits[..., 0] -= 3
    labels[:, 16 - padding:] = 0
    return logits, labels
def show(name, digits, make, batches, reset=False, **options):
    collection, alone = MetricCollection(make(), **options), make()
    if reset:
        collection.update(*batches[0])
        collection.reset()
        batches = batches[1:]
    for batch in batches:
        collection.update(*batch)
        for metric in alone.values():
            metric.update(*batch)
    together = {key: round(value.item(), digits) for key, value in collection.compute().items()}
    alone = {key: round(metric.compute().item(), digits) for key, metric in alone.items()}
    print(f"{name}: in a collection {together} one by one {alone}")
    return together, alone
def perplexities():
    return {"all": Perplexity(), "text": Perplexity(ignore_index=0)}
full, padded = texts(0), [texts(8), texts(8)]
wrong = [show("perplexity, first batch without padding", 1, perplexities, [full, *padded])]
right = [show("perplexity, first batch with padding", 1, perplexities, [*padded, full]),
         show("perplexity, compute_groups=False", 1, perplexities, [full, *padded], compute_groups=False)]
wrong.append(show("perplexity, without padding, then reset()", 1, perplexities, [full, *padded], reset=True))
answers = torch.tensor([1, 0, 1, 1])
wrong.append(show("accuracy at .5 and .9, first batch sure", 3,
                  lambda: {"at50": BinaryAccuracy(0.5), "at90": BinaryAccuracy(0.9)},
                  [(torch.tensor([0.99, 0.02, 0.97, 0.95]), answers), (torch.tensor([0.6, 0.7, 0.8, 0.6]), answers)]))
wrong.append(show("error rates, first text without insertions", 3, lambda: {"mer": MatchErrorRate(), "wer": WordErrorRate()},
                  [(["the cat sat"], ["the cat sat down"]), (["a b c d e f g h"], ["a b c"])]))
assert all(together == alone for together, alone in right)
for together, alone in wrong:
    first, second = together.values()
    assert first == second == list(alone.values())[0] != list(alone.values())[1]
PY
