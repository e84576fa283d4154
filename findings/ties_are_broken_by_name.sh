#!/usr/bin/env bash
# pytrec_eval rounds scores to float32 and sorts ties by name: a model of equal scores has an MRR of 1
# Versions: pytrec_eval-terrier 0.5.11, numpy 2.4.6 (200 queries, each with one relevant document of 100).
# Guess: scores are compared as the float64 numbers that they are, and documents of equal scores keep their order.
# True: trec_eval, which is inside, keeps scores as C floats and sorts equal ones by the names of the documents, backwards
#   (comp_sim_docno). A model that gives all documents .5 has an MRR of 1, if the relevant ones are called pos and the
#   others neg, and of .01 with the names gold and hard. Probabilities of a reranker that is sure of each document are
#   equal in float32: a perfect order is made of a bad one, or lost. Scores in bf16 are often equal from the start.
# Hurt: rerankers that are evaluated by probabilities or in bf16, with pytrec_eval itself or the benchmarks that use it,
#   such as beir; data whose names tell what is relevant, as in sets of positives and negatives.
# Output seen:
#   all scores .5: MRR 0.01 to 1.00, by the order of ties; pos and neg 1.00, gold and hard 0.01
#   logits: MRR 0.65 to 0.65, by the order of ties; pos and neg 0.65, gold and hard 0.65
#   probabilities of the logits: MRR 0.65 to 0.65, by the order of ties; pos and neg 0.65, gold and hard 0.65
#   probabilities of the logits + 18: MRR 0.65 to 0.65, by the order of ties; pos and neg 1.00, gold and hard 0.01
#   probabilities of the logits + 3 in bf16: MRR 0.50 to 0.76, by the order of ties; pos and neg 0.76, gold and hard 0.50
. "$(dirname "$0")/common.sh"
venv pytrec_eval-terrier==0.5.11 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
import pytrec_eval

def mrr(scores, names):
    judged = {f"q{i}": {names[0] + "0": 1} for i in range(len(scores))}
    run = {f"q{i}": {names[j > 0] + str(j): float(score) for j, score in enumerate(row)} for i, row in enumerate(scores)}
    found = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(run)
    return np.mean([query["recip_rank"] for query in found.values()])

def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))

def bf16(scores):
    bits = scores.astype(np.float32).view(np.uint32) + 0x8000
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)

logits = np.random.default_rng(0).normal(size=(200, 100))
logits[:, 0] += 2.5                                            # the relevant document
seen = {}
for name, scores in (("all scores .5", np.full((200, 100), 0.5)), ("logits", logits),
                     ("probabilities of the logits", sigmoid(logits)),
                     ("probabilities of the logits + 18", sigmoid(logits + 18)),
                     ("probabilities of the logits + 3 in bf16", bf16(sigmoid(logits + 3)))):
    worst = np.mean(1 / (scores >= scores[:, :1]).sum(1))
    best = np.mean(1 / (1 + (scores > scores[:, :1]).sum(1)))
    seen[name] = worst, best, mrr(scores, ("pos", "neg")), mrr(scores, ("gold", "hard"))
    print("{}: MRR {:.2f} to {:.2f}, by the order of ties; pos and neg {:.2f}, gold and hard {:.2f}".format(name, *seen[name]))
_, plain, same, saturated, rounded = seen.values()
assert np.allclose(plain, plain[0]) and np.allclose(same, plain) and np.allclose(seen["all scores .5"], (0.01, 1, 1, 0.01))
assert saturated[0] == saturated[1] == plain[0] and saturated[2] > 0.98 and saturated[3] < 0.02
assert rounded[2] - rounded[3] > 0.2
PY
