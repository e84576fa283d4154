#!/usr/bin/env bash
# deepsig: bonferroni_correction gives the corrected p-values to the wrong comparisons, and they are not Bonferroni's
# Versions: deepsig 1.2.8, numpy 2.4.6, scipy 1.17.1, pandas 3.1.1.
# Guess: Bonferroni multiplies each p-value by their number, and the result stands in the order of the input.
# True: the values are sorted, the smallest is multiplied by n, the next by n - 1, and so on. To bring them back the
#   function applies the sorting once more instead of its inverse. With two comparisons, or in an order that is its own
#   inverse, this is the same. Otherwise they change places: of .04, .2, .001 the second becomes .003, the third .08.
#   And as the factors fall, a larger p-value can become a smaller one: .0202 stays .0202 where .0200 becomes .06.
# Hurt: tables of a model on several data sets: significant where it is not, and the other way round.
# Output seen:
#   (0.001, 0.04, 0.2)   -> [0.003, 0.08, 0.2]
#   (0.001, 0.2, 0.04)   -> [0.003, 0.2, 0.08]
#   (0.04, 0.001, 0.2)   -> [0.08, 0.003, 0.2]
#   (0.04, 0.2, 0.001)   -> [0.2, 0.003, 0.08], in other places
#   (0.2, 0.001, 0.04)   -> [0.08, 0.2, 0.003], in other places
#   (0.2, 0.04, 0.001)   -> [0.2, 0.08, 0.003]
#   [0.02, 0.0201, 0.0202] -> [0.06, 0.0402, 0.0202]
#   two real differences among ten comparisons: 0.28 of them found, a false one in 0.95 of the tables
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 deepsig==1.2.8

"$python" - <<'PY'
from itertools import permutations
import numpy as np
from deepsig import bonferroni_correction

own = {0.001: 0.003, 0.04: 0.08, 0.2: 0.2}                     # what each one becomes in ascending order
kept = 0
for order in permutations(own):
    corrected = bonferroni_correction(list(order))
    right = np.allclose(corrected, [own[p] for p in order])
    kept += right
    print(f"{str(order):20} -> {np.round(corrected, 3).tolist()}{'' if right else ', in other places'}")
close = bonferroni_correction([0.0200, 0.0201, 0.0202])
print("[0.02, 0.0201, 0.0202] ->", np.round(close, 4).tolist())
rng = np.random.default_rng(0)
moved, false_alarm = [], []
for _ in range(1000):                                          # two of ten comparisons are real
    p = rng.uniform(size=10)
    real = rng.permutation(10)[:2]
    p[real] = 1e-5
    found = np.flatnonzero(bonferroni_correction(p.tolist()) <= 0.05)
    moved.append(np.isin(real, found).mean())
    false_alarm.append(np.isin(found, real, invert=True).any())
print(f"two real differences among ten comparisons: {np.mean(moved):.2f} of them found,",
      f"a false one in {np.mean(false_alarm):.2f} of the tables")
assert kept == 4 and np.allclose(bonferroni_correction([0.04, 0.2, 0.001]), [0.2, 0.003, 0.08])
assert np.allclose(close, [0.06, 0.0402, 0.0202]) and np.mean(moved) < 0.5 and np.mean(false_alarm) > 0.5
PY
