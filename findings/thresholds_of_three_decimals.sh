#!/usr/bin/env bash
# unitxt: the best F1 over all thresholds tries three decimals alone: perfect scores below .0005 have .67, as no model
# Versions: unitxt 1.26.10, scikit-learn 1.9.1, datasets 5.2.0, evaluate 0.4.6 (400 rows, half of them positive).
# Guess: BinaryMaxF1 "tests all possible thresholds". It depends on the order of the scores alone, as does its sister
#   BinaryMaxAccuracy: if all positive rows have larger scores than the negative ones it is 1.
# True: the thresholds are the scores, rounded to three decimals. Probabilities of a token such as " yes" among all
#   tokens, or of a rare class, all become .0, and only "all positive" is tried: .67. Near 1 it is the same: .9991 to
#   .9999 become .999 and 1.0.
# Hurt: detectors and guardrails whose probabilities are small or near 1; comparisons of a model before and after a
#   change of temperature, which does not change the order.
# Output seen:
#   perfect, 0 to 1: F1 1.00 at a threshold of 0.499, accuracy 1.00 at 0.5012
#   perfect, 0 to .0005: F1 0.67 at a threshold of 0, accuracy 1.00 at 0.0002506
#   perfect, .9991 to .9999: F1 0.67 at a threshold of 0.999, accuracy 1.00 at 0.9995
#   no model, 0 to 1: F1 0.67 at a threshold of 0.014, accuracy 0.55 at 0.6987
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 datasets==5.2.0 evaluate==0.4.6 unitxt==1.26.10

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import numpy as np
from unitxt import metrics
from unitxt.test_utils.metrics import apply_metric

rng = np.random.default_rng(0)
rows = rng.permutation(400)
scores = (rows + 0.5) / 400                                    # the 200 positive rows have the larger ones
gold = [[float(row >= 200)] for row in rows]
useless = rng.permutation(scores)

def best(kind, predictions):
    return apply_metric(metric=kind(n_resamples=None), predictions=predictions.tolist(),
                        references=gold)[0]["score"]["global"]

seen = {}
for name, values in (("perfect, 0 to 1", scores), ("perfect, 0 to .0005", scores * 0.0005),
                     ("perfect, .9991 to .9999", 0.9991 + scores * 0.0008), ("no model, 0 to 1", useless)):
    f1, accuracy = best(metrics.BinaryMaxF1, values), best(metrics.BinaryMaxAccuracy, values)
    seen[name] = f1["score"], accuracy["score"]
    print(f"{name}: F1 {f1['score']:.2f} at a threshold of {f1['best_thr_maxf1']:.4g},",
          f"accuracy {accuracy['score']:.2f} at {accuracy['best_thr_max_acc']:.4g}")
assert seen["perfect, 0 to 1"] == (1, 1)
assert abs(seen["perfect, 0 to .0005"][0] - 2 / 3) < 1e-9 and seen["perfect, 0 to .0005"][1] == 1
assert seen["perfect, .9991 to .9999"][0] < 0.9 and seen["perfect, .9991 to .9999"][1] == 1
assert abs(seen["no model, 0 to 1"][0] - 2 / 3) < 0.02
PY
