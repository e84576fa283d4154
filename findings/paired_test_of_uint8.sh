#!/usr/bin/env bash
# scipy's paired t-test of two models' 0/1 answers is significant if they are uint8: 0 - 1 is 255
# Versions: scipy 1.17.1, numpy 2.4.6.
# Guess: the type of the 0s and 1s does not matter for a test, as it does not for the mean.
# True: ttest_rel subtracts before it converts. In a type without sign 0 - 1 is the largest number, and the differences
#   are positive alone. The same arrays are tested well as int8, and by wilcoxon and ttest_ind. As bool it is an error.
# Hurt: comparisons of models by item: correct answers kept as uint8, lengths as uint32 (polars' lengths are uint32).
# Output seen:
#   accuracies 0.552 and 0.515
#   int8: ttest_rel p 0.29 t 1.06, ttest_ind p 0.29, wilcoxon p 0.29
#   uint8: ttest_rel p 5.6e-25 t 11.06, ttest_ind p 0.29, wilcoxon p 0.29
#   the worse model first, uint8: ttest_rel p 2.5e-29 t 12.20
#   equal lengths but for noise, uint32: ttest_rel p 2.4e-55, as int64: p 0.21
. "$(dirname "$0")/common.sh"
venv scipy==1.17.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from scipy import stats
rng = np.random.default_rng(0)
a, b = rng.integers(0, 2, (2, 400))
print(f"accuracies {a.mean():.3f} and {b.mean():.3f}")
values = {}
for kind in ("int8", "uint8"):
    x, y = a.astype(kind), b.astype(kind)
    paired = stats.ttest_rel(x, y)
    values[kind] = paired.pvalue, stats.ttest_ind(x, y).pvalue, stats.wilcoxon(x, y).pvalue
    print(f"{kind}: ttest_rel p {paired.pvalue:.2g} t {paired.statistic:.2f}, ttest_ind p {values[kind][1]:.2g}, "
          f"wilcoxon p {values[kind][2]:.2g}")
swapped = stats.ttest_rel(b.astype("uint8"), a.astype("uint8"))
print(f"the worse model first, uint8: ttest_rel p {swapped.pvalue:.2g} t {swapped.statistic:.2f}")
assert values["int8"][0] > 0.2 and values["uint8"][0] < 1e-10 and swapped.pvalue < 1e-10 and swapped.statistic > 0
assert np.allclose(values["int8"][1:], values["uint8"][1:])
x = rng.integers(100, 1000, 400)
y = x + rng.integers(-5, 6, 400)
narrow, wide = (stats.ttest_rel(x.astype(kind), y.astype(kind)).pvalue for kind in ("uint32", "int64"))
print(f"equal lengths but for noise, uint32: ttest_rel p {narrow:.2g}, as int64: p {wide:.2g}")
assert narrow < 1e-10 < wide
PY
