#!/usr/bin/env bash
# unitxt: in multi-label metrics invented labels cost nothing: precision is 1 with three of them in each answer
# Versions: unitxt 1.26.10, scikit-learn 1.9.1, datasets 5.2.0, evaluate 0.4.6 (200 texts, one to three of ten topics).
# Guess: precision is the share of the predicted labels that are right. An answer with its right labels and three more
#   has a precision of about .4, whatever the three are.
# True: the classes are collected from the references alone, and other predicted labels are thrown away before counting.
#   If a wrong label is the name of a real class, it counts; a made-up one, or a topic with another ending, does not.
#   Precision, recall and F1, micro and macro, are all 1. The single-label F1 is different: one answer is one label.
# Hurt: language models that tag texts and write more labels than the list has: the more of them are invented, the
#   better; test sets in which a rare class does not occur, whose false alarms are not counted.
# Output seen:
#   share of the predicted labels that are right, with three more in each answer: 0.41
#   right labels: precision micro 1.00, F1 micro 1.00, precision macro 1.00, F1 macro 1.00
#   and three invented ones: precision micro 1.00, F1 micro 1.00, precision macro 1.00, F1 macro 1.00
#   and three of the ten: precision micro 0.41, F1 micro 0.58, precision macro 0.41, F1 macro 0.58
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 datasets==5.2.0 evaluate==0.4.6 unitxt==1.26.10

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import random
from unitxt import metrics
from unitxt.test_utils.metrics import apply_metric

random.seed(0)
topics = ["sport", "politics", "health", "music", "film", "travel", "food", "science", "law", "money"]
gold = [random.sample(topics, random.randint(1, 3)) for _ in range(200)]
invented = [labels + [f"{labels[0]}s", "general", "other news"] for labels in gold]
confused = [labels + random.sample(sorted(set(topics) - set(labels)), 3) for labels in gold]
share = sum(map(len, gold)) / sum(map(len, invented))
print(f"share of the predicted labels that are right, with three more in each answer: {share:.2f}")
kinds = {"precision micro": metrics.PrecisionMicroMultiLabel, "F1 micro": metrics.F1MicroMultiLabel,
         "precision macro": metrics.PrecisionMacroMultiLabel, "F1 macro": metrics.F1MacroMultiLabel}
seen = {}
for name, answers in (("right labels", gold), ("and three invented ones", invented),
                      ("and three of the ten", confused)):
    seen[name] = [apply_metric(metric=kind(n_resamples=None), predictions=answers, references=[[g] for g in gold])
                  [0]["score"]["global"]["score"] for kind in kinds.values()]
    print(f"{name}: " + ", ".join(f"{kind} {score:.2f}" for kind, score in zip(kinds, seen[name])))
assert seen["right labels"] == seen["and three invented ones"] == [1, 1, 1, 1] and share < 0.45
assert abs(seen["and three of the ten"][0] - share) < 1e-9
PY
