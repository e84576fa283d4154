#!/usr/bin/env bash
# confidenceinterval: the 95 % interval of macro precision or recall holds the true value in half of the cases
# Versions: confidenceinterval 1.0.5, scikit-learn 1.9.1, numpy 2.4.6 (200 repetitions of an evaluation with 500
#   answers).
# Guess: precision_score(y, p, average="macro") gives the score and an interval that holds the true score in 95 %.
# True: the derivatives of precision and recall lack the division by the share of the class for the right answers, and
#   the covariances of the cells are left out (p * p.T of a flat array is no outer product). With 10 classes and 30 %
#   right answers the interval has .4 of the right width, and holds the true value in half of the cases. That of macro
#   F1 is up to twice too wide. With average="micro" all is right.
# Hurt: tables with error bars; weak models and many classes above all: differences seem certain that are noise.
# Output seen:
#   how often the interval holds the true value (its width / the right width)
#   3 classes, 0.3 right:
#     macro precision 0.69 (0.57), macro recall 0.68 (0.53), macro f1 1.00 (1.72), micro precision 0.92 (0.96)
#   3 classes, 0.9 right:
#     macro precision 0.97 (1.23), macro recall 0.96 (1.09), macro f1 1.00 (2.01), micro precision 0.94 (0.94)
#   10 classes, 0.3 right:
#     macro precision 0.53 (0.38), macro recall 0.51 (0.35), macro f1 0.91 (0.86), micro precision 0.94 (1.06)
#   10 classes, 0.9 right:
#     macro precision 0.99 (1.24), macro recall 0.97 (1.19), macro f1 0.98 (1.14), micro precision 0.94 (0.97)
. "$(dirname "$0")/common.sh"
venv confidenceinterval==1.0.5 scikit-learn==1.9.1 numpy==2.4.6

"$python" - <<'PY'
import confidenceinterval
import numpy as np

print("how often the interval holds the true value (its width / the right width)")
rng = np.random.default_rng(0)
seen = {}
for classes in (3, 10):
    for accuracy in (0.3, 0.9):
        cells = np.full((classes, classes), (1 - accuracy) / (classes - 1) / classes)
        np.fill_diagonal(cells, accuracy / classes)            # precision, recall and F1 of each class are the accuracy
        row = {}
        for name, average in (("precision", "macro"), ("recall", "macro"), ("f1", "macro"), ("precision", "micro")):
            held, widths, scores = 0, [], []
            for _ in range(200):
                right, told = np.divmod(rng.choice(classes ** 2, 500, p=cells.ravel()), classes)
                measure = getattr(confidenceinterval, name + "_score")
                score, (low, high) = measure(right.tolist(), told.tolist(), average=average)
                held += low <= accuracy <= high
                widths.append(high - low)
                scores.append(score)
            row[f"{average} {name}"] = held / 200, np.mean(widths) / (2 * 1.96 * np.std(scores))
        seen[classes, accuracy] = row
        print(f"{classes} classes, {accuracy:.1f} right:\n  "
              + ", ".join(f"{name} {held:.2f} ({width:.2f})" for name, (held, width) in row.items()))
        assert row["micro precision"][0] > 0.91
for name in ("macro precision", "macro recall"):
    assert seen[10, 0.3][name][0] < 0.6 and seen[3, 0.3][name][0] < 0.8
assert seen[3, 0.9]["macro f1"][1] > 1.7
PY
