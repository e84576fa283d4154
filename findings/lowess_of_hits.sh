#!/usr/bin/env bash
# statsmodels: lowess of right and wrong answers is 1.00 everywhere for a model that is right in 80 %
# Versions: statsmodels 0.15.0, numpy 2.4.6, seaborn 0.13.2 (1,000 answers, 1 if right, against the length of the
#   prompt).
# Guess: lowess is a local mean: where 80 % of the answers are right, the curve is near .8.
# True: by default it refits three times and takes weight from points far from the curve (it=3). The wrong answers are
#   such points: the more often a model is right, the more they count as outliers, and the curve goes to 1. Below a half
#   it is the right answers that vanish. A fall from .95 to .05 gets too steep. seaborn's regplot(lowess=True) takes
#   this default. With it=0 the curve is right.
# Hurt: accuracy against length, position, training steps or confidence; calibration curves: models look perfect.
# Output seen:
#   right in 0.952: lowess 1.00 to 1.00, it=0 0.93 to 0.98
#   right in 0.897: lowess 1.00 to 1.00, it=0 0.87 to 0.95
#   right in 0.799: lowess 1.00 to 1.00, it=0 0.78 to 0.83
#   right in 0.707: lowess 0.85 to 0.92, it=0 0.68 to 0.76
#   right in 0.476: lowess 0.44 to 0.54, it=0 0.45 to 0.53
#   right in 0.195: lowess 0.00 to 0.00, it=0 0.17 to 0.21
#   a fall from .95 to .05, at 100, 300, 500, 700, 900:
#     it=0     0.88  0.72  0.53  0.32  0.12
#     lowess   0.96  0.81  0.55  0.25  0.04
#     seaborn  0.96  0.81  0.55  0.25  0.04
. "$(dirname "$0")/common.sh"
venv statsmodels==0.15.0 numpy==2.4.6 seaborn==0.13.2 matplotlib==3.10.8

"$python" - <<'PY'
import matplotlib
matplotlib.use("agg")
import numpy as np
import seaborn
from statsmodels.nonparametric.smoothers_lowess import lowess

rng = np.random.default_rng(0)
length = np.arange(1000.0)
seen = {}
for p in (0.95, 0.9, 0.8, 0.7, 0.5, 0.2):
    right = (rng.random(1000) < p).astype(float)
    seen[p] = right.mean(), lowess(right, length)[:, 1], lowess(right, length, it=0)[:, 1]
    print(f"right in {right.mean():.3f}: lowess {seen[p][1].min():.2f} to {seen[p][1].max():.2f}, "
          f"it=0 {seen[p][2].min():.2f} to {seen[p][2].max():.2f}")
    assert abs(seen[p][2].mean() - right.mean()) < 0.02
falling = (rng.random(1000) < np.linspace(0.95, 0.05, 1000)).astype(float)
curves = {"it=0": lowess(falling, length, it=0)[:, 1], "lowess": lowess(falling, length)[:, 1],
          "seaborn": seaborn.regplot(x=length, y=falling, lowess=True, ci=None).lines[0].get_ydata()}
print("a fall from .95 to .05, at 100, 300, 500, 700, 900:")
for name, curve in curves.items():
    print(f"  {name:7} " + " ".join(f"{curve[i]:5.2f}" for i in (100, 300, 500, 700, 900)))
assert all(seen[p][1].min() > 0.99 for p in (0.95, 0.9, 0.8)) and seen[0.2][1].max() < 0.01
assert np.allclose(curves["lowess"], curves["seaborn"])
PY
