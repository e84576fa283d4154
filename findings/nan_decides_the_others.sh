#!/usr/bin/env bash
# statsmodels: one NaN among the p-values counts as a test, and takes the corrected p-values of all others
# Versions: statsmodels 0.15.0, scipy 1.17.1, pandas 3.1.1, numpy 2.4.6 (six comparisons, and a model with itself).
# Guess: multipletests raises an error for a NaN, or leaves it out and corrects the others.
# True: NaN is sorted to the end as the largest p-value and counts as one more test. Holm and Bonferroni correct for it.
#   The methods that go on from the largest value (fdr_bh, fdr_by, hommel, simes-hochberg) give NaN to all, and still
#   decide: fdr_bh calls 3 of 6 significant instead of 4, hommel none instead of 2. nan_policy does not exist, and no
#   warning comes. The t-test of two models that give the same answers is such a NaN.
# Hurt: tables of many models and tasks, in which two of them agree or a run is missing.
# Output seen:
#   a model and its copy: p-value nan
#   bonferroni: significant 1 of 6, with the NaN 1; smallest corrected p 0.006, with the NaN 0.007; NaN are 0 of 6
#   holm: significant 2 of 6, with the NaN 1; smallest corrected p 0.006, with the NaN 0.007; NaN are 0 of 6
#   fdr_bh: significant 4 of 6, with the NaN 3; smallest corrected p 0.006, with the NaN nan; NaN are 6 of 6
#   fdr_by: significant 1 of 6, with the NaN 1; smallest corrected p 0.015, with the NaN nan; NaN are 6 of 6
#   simes-hochberg: significant 2 of 6, with the NaN 1; smallest corrected p 0.006, with the NaN nan; NaN are 6 of 6
#   hommel: significant 2 of 6, with the NaN 0; smallest corrected p 0.006, with the NaN nan; NaN are 6 of 6
. "$(dirname "$0")/common.sh"
venv statsmodels==0.15.0 scipy==1.17.1 pandas==3.1.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

p_values = [0.001, 0.01, 0.02, 0.03, 0.2, 0.5]
right = np.random.default_rng(0).random(500) < 0.7
same = stats.ttest_rel(right.astype(float), right.astype(float)).pvalue
print(f"a model and its copy: p-value {same}")
seen = {}
for method in ("bonferroni", "holm", "fdr_bh", "fdr_by", "simes-hochberg", "hommel"):
    reject, corrected, *_ = multipletests(p_values, method=method)
    with_nan, corrected_with_nan, *_ = multipletests([*p_values, same], method=method)
    seen[method] = reject.sum(), with_nan.sum(), np.isnan(corrected_with_nan[:6]).sum()
    print(f"{method}: significant {reject.sum()} of 6, with the NaN {with_nan.sum()}; smallest corrected p "
          f"{np.nanmin(corrected):.3f}, with the NaN {corrected_with_nan[0]:.3f}; NaN are {seen[method][2]} of 6")
assert np.isnan(same) and seen["fdr_bh"] == (4, 3, 6) and seen["hommel"] == (2, 0, 6) and seen["holm"] == (2, 1, 0)
PY
