#!/usr/bin/env bash
# evalica's eigenvector ranking is upside down: the best score belongs to the model that loses most
# Versions: evalica 0.4.2, pandas 3.1.1, numpy 2.4.6.
# Guess: eigen, a ranking like bradley_terry and pagerank, gives the largest score to the strongest model.
# True: eigen multiplies the scores by the transposed matrix of wins (matrix.T @ scores, where matrix[i, j] counts the wins
#   of i over j), so that a model gets the scores of those to which it lost. pagerank calls the same function with a matrix
#   that is transposed once more, and is right. The Rust solver and the naive one agree. The result is sorted, best first.
# Hurt: arenas and judges' comparisons that are ranked by eigen; tables that compare ranking methods.
# Output seen:
#   average_win_rate  large 0.90, medium 0.50, small 0.10
#   bradley_terry     large 5.12, medium 1.00, small 0.20
#   pagerank          large 0.41, medium 0.33, small 0.25
#   eigen             small 0.88, medium 0.42, large 0.20
#   eigen, winners exchanged: large 0.88, medium 0.42, small 0.20
#   eigenvector of the matrix of wins: large 0.88, medium 0.42, small 0.20
. "$(dirname "$0")/common.sh"
venv evalica==0.4.2 pandas==3.1.1 numpy==2.4.6

"$python" - <<'PY'
import evalica
import numpy as np
from evalica import Winner

models = ["large", "medium", "small"]
pairs = (("large", "medium"), ("medium", "small"), ("large", "small"))
first = [pair[0] for pair in pairs for _ in range(10)]
second = [pair[1] for pair in pairs for _ in range(10)]
winners = ([Winner.X] * 9 + [Winner.Y]) * 3                    # the larger one wins 9 of 10
exchanged = ([Winner.Y] * 9 + [Winner.X]) * 3

def line(scores):
    return ", ".join(f"{model} {score:.2f}" for model, score in scores.items())

orders = {}
for name in ("average_win_rate", "bradley_terry", "pagerank", "eigen"):
    scores = getattr(evalica, name)(first, second, winners).scores
    orders[name] = list(scores.index)
    print(f"{name:17} {line(scores)}")
for solver in ("pyo3", "naive"):
    assert list(evalica.eigen(first, second, winners, solver=solver).scores.index) == models[::-1]
swapped = evalica.eigen(first, second, exchanged).scores
print(f"eigen, winners exchanged: {line(swapped)}")
values, vectors = np.linalg.eig(np.array([[0, 9, 9], [1, 0, 9], [1, 1, 0]], float))
wanted = np.abs(vectors[:, values.real.argmax()].real)
print(f"eigenvector of the matrix of wins: {line(dict(zip(models, wanted)))}")
assert orders["average_win_rate"] == orders["bradley_terry"] == orders["pagerank"] == models
assert orders["eigen"] == models[::-1] and list(swapped.index) == models and np.allclose(swapped, wanted, atol=1e-3)
PY
