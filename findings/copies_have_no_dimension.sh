#!/usr/bin/env bash
# scikit-dimension: one copy among 1,000 points makes the intrinsic dimension 0 by MLE, 200 of them .15 by TwoNN
# Versions: scikit-dimension 0.5.0, numpy 2.4.6 (1,000 points in a space of 5 dimensions within 64).
# Guess: equal points are left out or change little: the dimension is that of the points.
# True: a copy is a neighbour at distance 0. For MLE the dimension at such a point is 0, and the harmonic mean of
#   all points is 0 as well; MiND_ML says 1. TwoNN divides the second distance by the first and leaves out the tenth of
#   the points with the largest ratios: copies beyond it pull the fit towards 0. Copies that differ in the last digits
#   do nearly the same. lPCA, CorrInt and FisherS do not change. There is no warning.
# Hurt: dimensions of hidden states and embeddings by layer or by model, with repeated texts, or tokens at the start of
#   a text, which have equal states in all texts; layers look as if they collapsed.
# Output seen:
#     0 copies: MLE 4.96, MiND_ML 4.98, TwoNN 5.22, lPCA 5.00, CorrInt 4.55, FisherS 5.01
#     1 copies: MLE 0.00, MiND_ML 1.00, TwoNN 5.23, lPCA 5.00, CorrInt 4.54, FisherS 5.01
#    50 copies: MLE 0.00, MiND_ML 1.00, TwoNN 4.89, lPCA 5.00, CorrInt 4.55, FisherS 5.00
#   100 copies: MLE 0.00, MiND_ML 1.00, TwoNN 4.37, lPCA 5.00, CorrInt 4.53, FisherS 5.00
#   200 copies: MLE 0.00, MiND_ML 1.00, TwoNN 0.15, lPCA 5.00, CorrInt 4.58, FisherS 4.98
#   200 near copies: MLE 2.26, MiND_ML 2.00, TwoNN 0.12, lPCA 5.00, CorrInt 4.58, FisherS 4.98
. "$(dirname "$0")/common.sh"
venv scikit-dimension==0.5.0 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
import skdim

rng = np.random.default_rng(0)
points = rng.normal(size=(1000, 5)) @ rng.normal(size=(5, 64))
names = "MLE", "MiND_ML", "TwoNN", "lPCA", "CorrInt", "FisherS"
seen = {}
for copies, noise in ((0, 0), (1, 0), (50, 0), (100, 0), (200, 0), (200, 1e-6)):
    more = points[:copies] + noise * rng.normal(size=(copies, 64))
    data = np.concatenate([points, more])
    seen[copies, noise] = [getattr(skdim.id, name)().fit(data).dimension_ for name in names]
    print(f"{copies:3} {'near copies' if noise else 'copies'}: "
          + ", ".join(f"{name} {value:.2f}" for name, value in zip(names, seen[copies, noise])))
assert all(4.4 < value < 5.5 for row in seen.values() for value in row[3:])
assert all(4.4 < value < 5.5 for value in seen[0, 0]) and seen[1, 0][0] == 0 and seen[1, 0][1] == 1
assert seen[200, 0][2] < 0.5 and seen[200, 1e-6][2] < 0.5
PY
