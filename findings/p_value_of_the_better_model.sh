#!/usr/bin/env bash
# mlxtend's test of two accuracies: the p-value of 90 % against 50 % is 1, and of equal models .5
# Versions: mlxtend 0.25.0, statsmodels 0.15.0, scipy 1.17.1.
# Guess: proportion_difference returns the two-sided p-value of a difference, as statsmodels' proportions_ztest does.
# True: it returns norm.cdf(z): the chance of a lower z. If the better model comes first, a clearer difference has a larger
#   p-value, up to 1. If it comes second, p is half of the two-sided one: 80 % and 69 % of 100 items, which are not
#   significant, are so in one order. The docstring says "the z-score and the p-value".
# Hurt: comparisons of models by accuracy: a new model that comes first is never significant, one that comes second
#   is too often.
# Output seen:
#   90.0 % and 50.0 % of 100 items: mlxtend p 1.00000, swapped 0.00000; statsmodels p 0.00000, swapped 0.00000
#   80.0 % and 69.0 % of 100 items: mlxtend p 0.96399, swapped 0.03601; statsmodels p 0.07433, swapped 0.07433
#   70.0 % and 70.0 % of 100 items: mlxtend p 0.50000, swapped 0.50000; statsmodels p 1.00000, swapped 1.00000
#   two equal models of 70 %, 500 items, 10,000 times: p below .05 in one of the orders 9.9%, in statsmodels 4.6%
. "$(dirname "$0")/common.sh"
venv mlxtend==0.25.0 statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6 pandas==3.1.1

"$python" - <<'PY'
import numpy as np
from mlxtend.evaluate import proportion_difference
from statsmodels.stats.proportion import proportions_ztest

def ours(a, b, n):
    return proportion_difference(a, b, n)[1]

def theirs(a, b, n):
    return proportions_ztest([a * n, b * n], [n, n])[1]

values = []
for a, b, n in ((0.9, 0.5, 100), (0.8, 0.69, 100), (0.7, 0.7, 100)):
    values.append([test(*pair, n) for test in (ours, theirs) for pair in ((a, b), (b, a))])
    print("{:.1f} % and {:.1f} % of {} items: mlxtend p {:.5f}, swapped {:.5f}; statsmodels p {:.5f}, swapped {:.5f}".format(
        100 * a, 100 * b, n, *values[-1]))
rng = np.random.default_rng(0)
pairs = rng.binomial(500, 0.7, (10_000, 2)) / 500
either = np.mean([min(ours(a, b, 500), ours(b, a, 500)) < 0.05 for a, b in pairs])
once = np.mean([theirs(a, b, 500) < 0.05 for a, b in pairs])
print(f"two equal models of 70 %, 500 items, 10,000 times: p below .05 in one of the orders {either:.1%}, in statsmodels "
      f"{once:.1%}")
assert values[0][0] > 0.999 and values[0][1] < 0.001 > values[0][2] and values[2][:2] == [0.5, 0.5]
assert values[1][0] > 0.95 and values[1][1] < 0.05 < values[1][2] and either > 0.08 and once < 0.06
PY
