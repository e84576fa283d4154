#!/usr/bin/env bash
# pingouin: the power and the effect size of a paired t-test leave out the pairing: p = .002 beside a power of .29
# Versions: pingouin 0.7.0, numpy 2.4.6, scipy 1.17.1, pandas 3.1.1.
# Guess: ttest(x, y, paired=True) tells the power of the test that it made, and its effect size plans the next one.
# True: cohen_d divides the mean difference by the spread of the scores, not by that of the differences, and the power
#   is computed from it. (power_ttest wants the other one for contrast="paired".) The more alike the pairs, the more wrong:
#   here the test finds the effect in all of 2,000 repetitions, and power says .29.
# Hurt: two models on the same prompts or seeds: experiments are called underpowered, or planned five times too large.
# Output seen:
#   paired t-test of ten prompts: t = -4.20, p = 0.0023, cohen_d 0.50, power 0.29
#   effect size of the differences: 1.33, power 0.96
#   the same experiment 2,000 times: p < .05 in 100 %
#   prompts for a power of .8: 34 by cohen_d, 7 by the differences
. "$(dirname "$0")/common.sh"
venv pingouin==0.7.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1

"$python" - <<'PY'
import math
import numpy as np
import pingouin
from scipy.stats import ttest_rel

rng = np.random.default_rng(0)

def losses(*shape):
    """Prompts differ by 1; the second model is .5 above the first, with a noise of .3."""
    x = rng.normal(size=shape)
    return x, x + 0.5 + 0.3 * rng.normal(size=shape)

x, y = losses(10)
found = pingouin.ttest(x, y, paired=True).iloc[0]
print(f"paired t-test of ten prompts: t = {found['T']:.2f}, p = {found['p_val']:.4f}, "
      f"cohen_d {found['cohen_d']:.2f}, power {found['power']:.2f}")

d_z = abs((x - y).mean()) / (x - y).std(ddof=1)
power = pingouin.power_ttest(d=d_z, n=10, contrast="paired")
print(f"effect size of the differences: {d_z:.2f}, power {power:.2f}")

repeated = (ttest_rel(*losses(2000, 10), axis=1).pvalue < 0.05).mean()
print(f"the same experiment 2,000 times: p < .05 in {repeated:.0%}".replace("%", " %"))

n_told, n_needed = (math.ceil(pingouin.power_ttest(d=d, power=0.8, contrast="paired")) for d in (found["cohen_d"], d_z))
print(f"prompts for a power of .8: {n_told} by cohen_d, {n_needed} by the differences")
assert found["power"] < 0.4 < 0.9 < min(power, repeated) and n_told > 4 * n_needed
PY
