#!/usr/bin/env bash
# torchmetrics takes documents with a score below 0 as not relevant: MAP of a perfect search is 0
# Versions: torchmetrics 1.9.0, torch 2.13.0 (CPU; 100 queries of 50 documents, random scores, five relevant ones).
# Guess: retrieval metrics depend on the order of the scores alone: logits, log-probabilities, dot products or negative
#   distances give what their probabilities give.
# True: RetrievalMAP, RetrievalMRR, RetrievalPrecision and RetrievalRecall set the relevance to 0 where the score is 0
#   or below. Log-probabilities and negative distances give 0 for each search. Logits around 0 lose the relevant
#   documents below 0, also from the number that MAP divides by, so that MAP is too high. The rank of the rest stays.
#   Hit rate, fall-out, nDCG, R-precision and AUROC look at the order alone, and so contradict the others in the same
#   table. The docstrings speak of probabilities, and nothing checks it.
# Hurt: rerankers and dense retrieval, whose scores are logits, dot products or distances.
# Output seen:
#   probabilities: MAP 0.679, MRR 0.905, precision@5 0.584, recall@5 0.584, hit rate@5 1.000, nDCG 0.845
#   logits: MAP 0.753, MRR 0.905, precision@5 0.584, recall@5 0.584, hit rate@5 1.000, nDCG 0.845
#   logits - 1: MAP 0.854, MRR 0.893, precision@5 0.460, recall@5 0.460, hit rate@5 1.000, nDCG 0.845
#   log-probabilities: MAP 0.000, MRR 0.000, precision@5 0.000, recall@5 0.000, hit rate@5 1.000, nDCG 0.845
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

"$python" - <<'PY'
import torch
from torchmetrics.retrieval import (RetrievalHitRate, RetrievalMAP, RetrievalMRR, RetrievalNormalizedDCG,
                                    RetrievalPrecision, RetrievalRecall)
torch.manual_seed(0)
relevant = torch.zeros(100, 50, dtype=torch.long)
relevant[:, :5] = 1
probabilities = torch.sigmoid(torch.randn(100, 50) + 2 * relevant - 1)
scores = {"probabilities": probabilities, "logits": probabilities.logit(), "logits - 1": probabilities.logit() - 1,
          "log-probabilities": probabilities.log()}
queries = torch.arange(100)[:, None].expand(100, 50)
metrics = {"MAP": RetrievalMAP(), "MRR": RetrievalMRR(), "precision@5": RetrievalPrecision(top_k=5),
           "recall@5": RetrievalRecall(top_k=5), "hit rate@5": RetrievalHitRate(top_k=5),
           "nDCG": RetrievalNormalizedDCG()}
results = {}
for name, values in scores.items():
    results[name] = {metric: function(values.flatten(), relevant.flatten(), indexes=queries.flatten()).item()
                     for metric, function in metrics.items()}
    print(f"{name}:", ", ".join(f"{metric} {value:.3f}" for metric, value in results[name].items()))
right, logits, shifted, negative = results.values()
for metric in metrics:
    if metric in ("hit rate@5", "nDCG"):
        assert max(abs(values[metric] - right[metric]) for values in results.values()) < 1e-6
    else:
        assert right[metric] > 0.5 and negative[metric] == 0
assert logits["MAP"] > right["MAP"] + 0.02 and shifted["recall@5"] < right["recall@5"] - 0.1
PY
