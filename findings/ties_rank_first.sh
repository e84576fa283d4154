#!/usr/bin/env bash
# torcheval ranks the right one before all that have its score: a search that finds nothing has an MRR of 1
# Versions: torcheval 0.0.7, torch 2.13.0 (CPU), numpy 2.4.6 (500 queries, 1,000 documents of 30 words of 5,000, ranked
#   by words in common).
# Guess: reciprocal_rank of equal scores is that of some order of them, about .007 among 1,000. hit_rate and accuracy
#   with k take no more than k.
# True: the rank of the right one is the number of larger scores. If all are equal it is first: reciprocal_rank,
#   hit_rate and multiclass_accuracy with k are 1. A search by words in common, where many documents have the same
#   score, has an MRR of .91 instead of .16, and the worse it is, the better it scores: queries without any known word
#   have 1.
# Hurt: keyword baselines, rounded or quantized scores, rerankers and reward models that collapse to one score.
# Output seen:
#   torcheval (and with ties in random order)
#   0 % of the queries without known words: MRR 0.91 (0.16), hit rate at 10 1.00 (0.42), accuracy with k=2 0.98 (0.09)
#   50 % of the queries without known words: MRR 0.95 (0.08), hit rate at 10 1.00 (0.24), accuracy with k=2 0.99 (0.03)
#   80 % of the queries without known words: MRR 0.98 (0.05), hit rate at 10 1.00 (0.11), accuracy with k=2 1.00 (0.03)
#   100 % of the queries without known words: MRR 1.00 (0.00), hit rate at 10 1.00 (0.00), accuracy with k=2 1.00 (0.00)
. "$(dirname "$0")/common.sh"
venv torcheval==0.0.7 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torcheval.metrics.functional import hit_rate, multiclass_accuracy, reciprocal_rank

torch.manual_seed(0)
documents = torch.zeros(1000, 5000).scatter_(1, torch.randint(5000, (1000, 30)), 1.0)
right = torch.randint(1000, (500,))
seen = {}
print("torcheval (and with ties in random order)")
for unknown in (0, 0.5, 0.8, 1):
    words = torch.cat([documents[right].multinomial(1), torch.randint(5000, (500, 3))], 1)   # one is in the document
    queries = torch.zeros(500, 5000).scatter_(1, words, 1.0) * (torch.rand(500, 1) >= unknown)
    scores = queries @ documents.T
    order = (scores + torch.rand(500, 1000) / 2).argsort(1, descending=True)   # equal scores in random order
    ranks = (order == right[:, None]).int().argmax(1) + 1
    seen[unknown] = (reciprocal_rank(scores, right).mean().item(), (1 / ranks).mean().item(),
                     hit_rate(scores, right, k=10).mean().item(), (ranks <= 10).float().mean().item(),
                     multiclass_accuracy(scores, right, k=2).item(), (ranks <= 2).float().mean().item())
    print("{:.0f} % of the queries without known words: MRR {:.2f} ({:.2f}), hit rate at 10 {:.2f} ({:.2f}), "
          "accuracy with k=2 {:.2f} ({:.2f})".format(100 * unknown, *seen[unknown]))
assert all(abs(value - 1) < 1e-6 for value in seen[1][::2]) and max(seen[1][1::2]) < 0.05
assert all(seen[0.8][i] > seen[0][i] and seen[0.8][i + 1] < seen[0][i + 1] for i in (0, 4))
assert seen[0][0] - seen[0][1] > 0.6
PY
