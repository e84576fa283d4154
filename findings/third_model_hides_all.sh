#!/usr/bin/env bash
# autorank: a difference with p = 1e-14 between two models is gone once a third model is in the table
# Versions: autorank 1.3.0, statsmodels 0.15.0, scipy 1.17.1, pandas 3.1.1, numpy 2.4.6 (20 data sets).
# Guess: the rows are paired, as the manual says. With two models the paired t-test finds b better than a on each of 20
#   data sets; with a model c the repeated-measures ANOVA and its post-hoc test find it, too, with a small correction.
# True: the ANOVA is paired, with p = 1e-31. The Tukey test after it is not: it takes the scores as three independent
#   groups, and the spread between easy and hard data sets as noise. All intervals overlap, and the report says that
#   there are no significant differences within a, b and c. If one column fails the test of normality, the paired
#   Friedman and Nemenyi tests come instead, and find all of them.
# Hurt: comparisons over data sets or languages of different difficulty, where a clear winner is reported as a tie.
# Output seen:
#   data sets on which b beats a, and c beats b: 20 20
#   a, b: ttest, p = 7.8e-15, post hoc None
#     the mean value of b is significantly larger than the mean value of a with a negligible effect size (d=-0.106).
#   a, b, c: anova, p = 1.5e-31, post hoc tukeyhsd
#     there are no significant differences within the following groups: a, b, and c
#   a, b, c, nonparametric: friedman, p = 2.1e-09, post hoc nemenyi
#     all differences between the populations are significant.
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 statsmodels==0.15.0 matplotlib==3.11.2 autorank==1.3.0
export MPLCONFIGDIR="$work" MPLBACKEND=agg

"$python" - <<'PY'
import contextlib
import io
import numpy as np
import pandas as pd
from autorank import autorank, create_report

rng = np.random.default_rng(0)
difficulty = rng.uniform(0.3, 0.9, 20)
data = pd.DataFrame({model: difficulty + gain + rng.normal(0, 0.003, 20)
                     for model, gain in (("a", 0), ("b", 0.02), ("c", 0.04))})
print("data sets on which b beats a, and c beats b:", (data.b > data.a).sum(), (data.c > data.b).sum())
results = {}
for name, columns, mode in (("a, b", ["a", "b"], None), ("a, b, c", ["a", "b", "c"], None),
                            ("a, b, c, nonparametric", ["a", "b", "c"], "nonparametric")):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        result = autorank(data[columns], force_mode=mode)
        create_report(result)
    results[name] = result, text.getvalue().strip().splitlines()[-1]
    print(f"{name}: {result.omnibus}, p = {result.pvalue:.1e}, post hoc {result.posthoc}")
    print(" ", results[name][1].split("we assume that ")[1].split(". ")[0])
two, three, ranks = results.values()
assert two[0].pvalue < 1e-13 and three[0].omnibus == "anova" and three[0].pvalue < 1e-30
assert "no significant differences within the following groups: a, b, and c" in three[1]
assert "all differences between the populations are significant" in ranks[1]
PY
