#!/usr/bin/env bash
# deepsig: for two models multi_aso always says 1, never better; and its correction shrinks with more comparisons
# Versions: deepsig 1.2.8, numpy 2.4.6, scipy 1.17.1, pandas 3.1.1 (20 scores a model).
# Guess: multi_aso of two models is aso in both directions: there is one comparison, and nothing to correct. With m
#   comparisons the confidence level is 1 - .05/m, so that more comparisons give a larger eps_min.
# True: the level is .95 + .05/m. For one comparison it is 1, whose quantile is infinite: eps_min is 1 in both
#   directions, and no warning comes. (Of scores that do not overlap it is NaN, with a warning of numpy.) Here aso with
#   num_comparisons=1 leaves the step out. For two the level is .975, which is right, and from there on it falls: with
#   45 comparisons it is .951, as good as no correction.
# Hurt: two models compared by multi_aso are never different; in tables of many models the error over all comparisons
#   is that of no correction, while the text says "with Bonferroni correction".
# Output seen:
#   aso: 0.069, the other way 1.000
#   multi_aso of the two: 1.000, the other way 1.000; use_bonferroni=False: 0.069 and 1.000
#   multi_aso, the better one better by .01 more: 1.000, the other way 1.000
#   aso, num_comparisons=1: 0.0690, at a level of 1 - .05/1: 0.0690
#   aso, num_comparisons=2: 0.0816, at a level of 1 - .05/2: 0.0816
#   aso, num_comparisons=3: 0.0765, at a level of 1 - .05/3: 0.0883
#   aso, num_comparisons=10: 0.0710, at a level of 1 - .05/10: 0.1063
#   aso, num_comparisons=45: 0.0694, at a level of 1 - .05/45: 0.1256
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 deepsig==1.2.8

"$python" - <<'PY'
import warnings
import numpy as np
from deepsig import aso, multi_aso

warnings.simplefilter("error")                                 # none comes
rng = np.random.default_rng(0)
better, worse = rng.normal(0.72, 0.02, 20), rng.normal(0.70, 0.02, 20)
settings = dict(seed=1, show_progress=False, num_bootstrap_iterations=100, dt=0.02)
one = aso(better, worse, **settings)
print(f"aso: {one:.3f}, the other way {aso(worse, better, **settings):.3f}")
two = multi_aso(np.array([better, worse]), **settings)
plain = multi_aso(np.array([better, worse]), use_bonferroni=False, **settings)
print(f"multi_aso of the two: {two[0, 1]:.3f}, the other way {two[1, 0]:.3f};",
      f"use_bonferroni=False: {plain[0, 1]:.3f} and {plain[1, 0]:.3f}")
wrong = multi_aso(np.array([better + 0.01, worse]), **settings)
print(f"multi_aso, the better one better by .01 more: {wrong[0, 1]:.3f}, the other way {wrong[1, 0]:.3f}")
seen = {}
for m in (1, 2, 3, 10, 45):
    seen[m] = aso(better, worse, num_comparisons=m, **settings), aso(better, worse, 1 - 0.05 / m, **settings)
    print(f"aso, num_comparisons={m}: {seen[m][0]:.4f}, at a level of 1 - .05/{m}: {seen[m][1]:.4f}")
assert two[0, 1] == two[1, 0] == wrong[0, 1] == 1 and abs(plain[0, 1] - one) < 1e-9 and one < 0.5
assert np.isclose(*seen[2]) and seen[2][0] > seen[3][0] > seen[10][0] > seen[45][0] > seen[1][0]
assert seen[45][1] > seen[3][1] > seen[2][1] and seen[45][0] - one < 0.1 * (seen[45][1] - one)
PY
