#!/usr/bin/env bash
# torchmetrics' MAP@k divides by what it finds: one of ten documents has 1.0, and more hits have less
# Versions: torchmetrics 1.9.0, torch 2.13.0, ranx 0.3.21, numba 0.68.1 (CPU; 10 of 100 documents are relevant).
# Guess: RetrievalMAP(top_k=10) divides the sum of the precisions by the number of relevant documents, as trec_eval and
#   ranx do, or by 10, if there are more.
# True: the list is cut to its first k before anything is counted, and the sum is divided by the number of relevant
#   documents among these k. What is missed costs nothing: the relevant document at rank 1 alone has 1.0, as the perfect
#   search. Each hit further down lowers the mean. A model that finds one document well beats a model that finds five.
# Hurt: tables of MAP@k, and models and checkpoints that are chosen by it, where queries have several relevant
#   documents.
# Output seen:
#   relevant documents at ranks [1]: MAP@10 1.000, in ranx 0.100
#   relevant documents at ranks [1, 10]: MAP@10 0.600, in ranx 0.120
#   relevant documents at ranks [1, 3, 5, 7, 9]: MAP@10 0.679, in ranx 0.339
#   relevant documents at ranks [1, 2, 3, 8, 9]: MAP@10 0.811, in ranx 0.406
#   relevant documents at ranks [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]: MAP@10 1.000, in ranx 1.000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0 ranx==0.3.21 numba==0.68.1 pandas==3.1.1

"$python" - <<'PY'
import torch
from ranx import Qrels, Run, evaluate
from torchmetrics.retrieval import RetrievalMAP
scores = torch.arange(100, 0, -1).float()
results = []
for hits in ([1], [1, 10], [1, 3, 5, 7, 9], [1, 2, 3, 8, 9], list(range(1, 11))):
    relevant = torch.zeros(100, dtype=torch.long)
    relevant[[hit - 1 for hit in hits]] = 1
    relevant[100 - (10 - len(hits)):] = len(hits) < 10         # the rest of the ten relevant documents is found last
    assert relevant.sum() == 10
    value = RetrievalMAP(top_k=10)(scores, relevant, indexes=torch.zeros(100, dtype=torch.long)).item()
    judged = Qrels({"q": {f"d{i}": 1 for i in relevant.nonzero().flatten().tolist()}})
    reference = evaluate(judged, Run({"q": {f"d{i}": scores[i].item() for i in range(100)}}), "map@10")
    results.append((value, reference))
    print(f"relevant documents at ranks {hits}: MAP@10 {value:.3f}, in ranx {reference:.3f}")
assert results[0][0] == results[-1][0] == 1 and min(value for value, _ in results[1:4]) < 0.61
references = [reference for _, reference in results]
assert references == sorted(references) and references[0] == 0.1
PY
