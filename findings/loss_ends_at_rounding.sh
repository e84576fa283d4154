#!/usr/bin/env bash
# scikit-learn: `log_loss` of float16 probabilities has no loss above 6.93, of float32 ones none above 15.94
# Versions: scikit-learn 1.9.1, numpy 2.4.6.
# Guess: a probability of .0001 is a number in float16, and has its loss of 9.21; a small type costs the last digits.
# True: log_loss raises probabilities to the eps of their type, the distance from 1 to the next number: .00098 in
#   float16, 1.2e-7 in float32, though both types hold far smaller ones. A uniform guess among 8,192 tokens has a loss
#   of 6.93 in float16, as has one among 1,024. A wrong answer by a model that is sure costs 6.93 instead of 18.41, so
#   that the better one of two models changes.
# Hurt: losses of language models and of classifiers of many classes from stored probabilities, which are float16 or
#   float32; comparisons of calibration, and temperatures chosen by this loss.
# Output seen:
#   uniform guess among 1,024 tokens: float64 6.93, float32 6.93, float16 6.93
#   uniform guess among 8,192 tokens: float64 9.01, float32 9.01, float16 6.93
#   a token of probability 1e-12: float64 27.63, float32 15.94, float16 6.93
#   70 % right, sure by 1 - 1e-6: float64 5.52, float32 4.78, float16 2.08
#   30 % right, sure by .3: float64 3.83, float32 3.83, float16 3.83
. "$(dirname "$0")/common.sh"
venv scikit-learn==1.9.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from sklearn.metrics import log_loss

kinds = np.float64, np.float32, np.float16

def losses(name, labels, probabilities):
    seen = [log_loss(labels, probabilities.astype(kind), labels=np.arange(probabilities.shape[1])) for kind in kinds]
    print(f"{name}: " + ", ".join(f"{kind.__name__} {loss:.2f}" for kind, loss in zip(kinds, seen)))
    return seen

def answers(share, top):                                       # 100 classes, `share` of 200 answers right
    rows = np.full((200, 100), (1 - top) / 99)
    rows[np.arange(200), np.where(np.arange(200) < 200 * share, labels, (labels + 1) % 100)] = top
    return rows

labels = np.arange(200) % 100
few = losses("uniform guess among 1,024 tokens", np.arange(50), np.full((50, 1024), 1 / 1024))
many = losses("uniform guess among 8,192 tokens", np.arange(50), np.full((50, 8192), 1 / 8192))
rare = losses("a token of probability 1e-12", [0, 0], np.array([[1e-12, 1 - 1e-12]] * 2))
sure = losses("70 % right, sure by 1 - 1e-6", labels, answers(0.7, 1 - 1e-6))
modest = losses("30 % right, sure by .3", labels, answers(0.3, 0.3))
assert abs(many[0] - np.log(8192)) < 1e-6 and abs(many[2] - few[2]) < 1e-6
assert abs(rare[0] - 27.631) < 0.001 and abs(rare[1] - 15.942) < 0.001
assert sure[0] > modest[0] + 1 and sure[2] < modest[2] - 1
PY
