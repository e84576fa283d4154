#!/usr/bin/env bash
# lighteval: the F1 of CommitmentBank is 1/3 if a model is always wrong, and .56 if it always says the same
# Versions: lighteval 0.13.0, scikit-learn 1.9.1, torch 2.13.0 (CPU).
# Guess: multi_f1_numeric is the F1 of several classes, as in SuperGLUE: 0 if all answers are wrong.
# True: for each of the three classes it counts "is this class" and "is not" alike (micro average), so a wrong answer is
#   right about one class of three. The number is 1/3 + 2/3 of the accuracy, whatever the classes are. With
#   average="macro" an always wrong model has .25.
# Hurt: super_glue:cb in lighteval beside papers and lm-eval's F1 (macro over classes); differences of models, which
#   shrink by a third; weak models, which look better than chance.
# Output seen:
#   always right: accuracy 1.00, F1 (macro over classes) 1.00, lighteval's mf1 1.00
#   right in half: accuracy 0.50, F1 (macro over classes) 0.50, lighteval's mf1 0.67
#   always 0: accuracy 0.33, F1 (macro over classes) 0.17, lighteval's mf1 0.56
#   always wrong: accuracy 0.00, F1 (macro over classes) 0.00, lighteval's mf1 0.33
. "$(dirname "$0")/common.sh"
venv lighteval==0.13.0 scikit-learn==1.9.1 torch==2.13.0 transformers==5.24.0

"$python" - 2> /dev/null <<'PY'
import numpy as np
from lighteval.metrics.metrics import Metrics
from lighteval.metrics.sample_preparator import LogprobCorpusMetricInput
from sklearn.metrics import f1_score

mf1 = Metrics.multi_f1_numeric.value.corpus_level_fn
gold = np.array([0, 1, 2] * 20)
half = np.where(np.arange(60) < 30, gold, (gold + 1) % 3)
models = {"always right": gold, "right in half": half, "always 0": 0 * gold, "always wrong": (gold + 1) % 3}
for name, answers in models.items():
    pairs = zip(gold.tolist(), answers.tolist())
    found = mf1.compute_corpus([LogprobCorpusMetricInput(golds=g, preds=p) for g, p in pairs])
    accuracy, macro = (gold == answers).mean(), f1_score(gold, answers, average="macro")
    print(f"{name}: accuracy {accuracy:.2f}, F1 (macro over classes) {macro:.2f}, lighteval's mf1 {found:.2f}")
    assert np.isclose(found, 1 / 3 + 2 / 3 * accuracy)
PY
