#!/usr/bin/env bash
# scikit-posthocs: posthoc_wilcoxon pairs the rows of a long table by their place: its p-value follows from the sorting
# Versions: scikit-posthocs 0.17.1, pandas 3.1.1, scipy 1.17.1, numpy 2.4.6.
# Guess: a paired test of a long table takes a column that says what belongs together, as posthoc_conover_friedman does,
#   or sort=True restores the pairs.
# True: there is no such argument. The first row of one model is paired with the first one of the other, whatever they
#   are about: a shuffled table hides a difference, and one sorted by score lowers its p-value. sort=True sorts by
#   model alone. After pivot(index="prompt", columns="model") and melt() it is right.
# Hurt: records that parallel workers wrote in the order in which they ended, and leaderboards sorted by score.
# Output seen:
#   scipy, prompt by prompt     p = 5e-05
#   posthoc_wilcoxon, in order  p = 5e-05
#   shuffled                    p = 0.3
#   shuffled, sort=True         p = 0.3
#   sorted by score             p = 7e-10
#   pivot and melt              p = 5e-05
. "$(dirname "$0")/common.sh"
venv scikit-posthocs==0.17.1 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
import pandas as pd
from scikit_posthocs import posthoc_conover_friedman, posthoc_wilcoxon
from scipy.stats import wilcoxon

rng, n = np.random.default_rng(0), 40
old = rng.normal(size=n)  # prompts differ by 1, the models by .1
new = old + 0.1 + 0.2 * rng.normal(size=n)
table = pd.DataFrame({
    "prompt": [*range(n), *range(n)], "model": ["old"] * n + ["new"] * n, "score": np.concatenate((old, new))})

def p_value(rows, **options):
    return posthoc_wilcoxon(rows, val_col="score", group_col="model", **options).loc["old", "new"]

wide = table.pivot(index="prompt", columns="model", values="score")
shuffled = table.sample(frac=1, random_state=0)
found = {
    "scipy, prompt by prompt": wilcoxon(old, new).pvalue,
    "posthoc_wilcoxon, in order": p_value(table),
    "shuffled": p_value(shuffled),
    "shuffled, sort=True": p_value(shuffled, sort=True),
    "sorted by score": p_value(table.sort_values("score")),
    "pivot and melt": posthoc_wilcoxon(wide.melt(), val_col="value", group_col="model").loc["old", "new"]}
for name, value in found.items():
    print(name.ljust(28) + f"p = {value:.1g}")
truth, in_order, mixed, sorted_by_model, by_score, from_wide = found.values()
assert in_order == truth == from_wide and mixed == sorted_by_model > 0.2 and by_score < truth / 1000

named = {"y_col": "score", "block_col": "prompt", "block_id_col": "prompt", "group_col": "model", "melted": True}
for rows in (table, shuffled):
    assert np.isclose(posthoc_conover_friedman(rows, **named).loc["old", "new"], 0.0003, atol=0.01)
PY
