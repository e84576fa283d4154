#!/usr/bin/env bash
# nltk: weighted kappa with the largest distance of the scale is -.41 for two judges whose kappa is .91
# Versions: nltk 3.10.4, scikit-learn 1.9.1, numpy 2.4.6 (300 answers, scores of 1 to 5 by two judges).
# Guess: weighted_kappa(max_distance=16) tells the largest squared distance of a scale of 1 to 5; as kappa is a quotient
#   of two disagreements, this changes nothing.
# True: the expected disagreement is divided by max_distance, the observed one is not. With the right value the kappa of
#   good judges is negative; only without it, whatever the scale is, the number is that of scikit-learn. The larger the
#   scale, the worse the judges.
# Hurt: agreement of judges and annotators on ordered scales, and comparisons across scales.
# Output seen:
#   scores of 1 to 2, linear: nltk with max_distance=1 0.60, without 0.60, scikit-learn 0.60
#   scores of 1 to 2, quadratic: nltk with max_distance=1 0.60, without 0.60, scikit-learn 0.60
#   scores of 1 to 3, linear: nltk with max_distance=2 0.46, without 0.73, scikit-learn 0.73
#   scores of 1 to 3, quadratic: nltk with max_distance=4 0.27, without 0.82, scikit-learn 0.82
#   scores of 1 to 5, linear: nltk with max_distance=4 0.12, without 0.78, scikit-learn 0.78
#   scores of 1 to 5, quadratic: nltk with max_distance=16 -0.41, without 0.91, scikit-learn 0.91
#   scores of 1 to 10, linear: nltk with max_distance=9 -0.17, without 0.87, scikit-learn 0.87
#   scores of 1 to 10, quadratic: nltk with max_distance=81 -1.09, without 0.97, scikit-learn 0.97
. "$(dirname "$0")/common.sh"
venv nltk==3.10.4 scikit-learn==1.9.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from nltk.metrics.agreement import AnnotationTask
from sklearn.metrics import cohen_kappa_score

rng = np.random.default_rng(0)
for top in (2, 3, 5, 10):
    first = rng.integers(1, top + 1, 300)
    second = np.clip(first + rng.choice([-1, 0, 0, 0, 1], 300), 1, top)
    rows = [(name, str(i), int(score)) for name, scores in (("a", first), ("b", second))
            for i, score in enumerate(scores)]
    for kind, distance, largest in (("linear", lambda x, y: abs(x - y), top - 1),
                                    ("quadratic", lambda x, y: (x - y) ** 2, (top - 1) ** 2)):
        task = AnnotationTask(rows, distance=distance)
        told, plain = task.weighted_kappa(max_distance=largest), task.weighted_kappa()
        right = cohen_kappa_score(first, second, weights=kind)
        print(f"scores of 1 to {top}, {kind}: nltk with max_distance={largest} {told:.2f}, without {plain:.2f}, "
              f"scikit-learn {right:.2f}")
        assert abs(plain - right) < 1e-9 and abs(told - (1 - largest * (1 - right))) < 1e-9
PY
