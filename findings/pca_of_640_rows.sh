#!/usr/bin/env bash
# PCA of float32 numbers finds components that are not there from ten rows a feature on, and more with more rows
# Versions: scikit-learn 1.9.1, numpy 2.4.6 (64 features of deviations 5, 4, 3 and then 1, three of them around 3,000).
# Guess: PCA subtracts the mean before it computes a covariance ("on centered data", says its documentation), so
#   constants in three features change nothing. More rows make the components more exact.
# True: with ten rows a feature, the default solver becomes covariance_eigh. It subtracts the mean from the finished
#   covariance, and what float32 rounds away there is taken for variance: 6,746 for 25 at 50,000 rows. 639 rows,
#   float64, or svd_solver="full" are right.
# Hurt: PCA of hidden states: language models have dimensions with means of thousands.
# Output seen:
#   auto, 639 rows, constants of 3000: variances [25.6, 16.0, 9.2], in float64 [25.6, 16.0, 9.2]; cosines of the components [1.0, 1.0, 1.0]
#   auto, 640 rows, constants of 0: variances [25.6, 16.0, 9.2], in float64 [25.6, 16.0, 9.2]; cosines of the components [1.0, 1.0, 1.0]
#   full, 50,000 rows, constants of 3000: variances [25.0, 16.0, 9.1], in float64 [25.0, 16.0, 9.1]; cosines of the components [1.0, 1.0, 1.0]
#   auto, 640 rows, constants of 3000: variances [25.6, 19.2, 16.0], in float64 [25.6, 16.0, 9.2]; cosines of the components [1.0, 0.0, 0.0]
#   auto, 50,000 rows, constants of 3000: variances [6746.1, 25.0, 16.0], in float64 [25.0, 16.0, 9.1]; cosines of the components [0.0, 0.0, 0.0]
. "$(dirname "$0")/common.sh"
venv scikit-learn==1.9.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from sklearn.decomposition import PCA
def compare(rows, constant, solver="auto"):
    states = np.random.default_rng(0).normal(size=(rows, 64)) * np.array([5, 4, 3] + [1] * 61)
    states[:, 10:13] += constant * np.array([1, 1.1, 1.2])
    single, double = (PCA(3, svd_solver=solver).fit(states.astype(dtype)) for dtype in ("float32", "float64"))
    cosines = np.abs((single.components_ * double.components_).sum(1))
    variances, expected = ([round(float(v), 1) for v in pca.explained_variance_] for pca in (single, double))
    print(f"{solver}, {rows:,} rows, constants of {constant}: variances {variances}, in float64 {expected};",
          f"cosines of the components {[round(float(c), 1) for c in cosines]}")
    return cosines.min() > 0.95
assert compare(639, 3000) and compare(640, 0) and compare(50_000, 3000, "full")
assert not compare(640, 3000) and not compare(50_000, 3000)
PY
