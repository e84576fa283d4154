#!/usr/bin/env bash
# pandas: rolling, expanding and ewm leave out infinite values: the largest gradient norm in a window is a small one
# Versions: pandas 3.1.1, polars 2.1.0, numpy 2.4.6 (1,000 steps, of which 50 have an infinite gradient norm or loss).
# Guess: a window with an infinity in it has an infinite mean, sum and maximum, as the series itself and other libraries
#   have. A missing value is another thing: with min_periods one asks to leave that out.
# True: each window turns infinities into NaN before anything else. The maximum, the mean and the average of ewm() are
#   those of the finite values, and a sum lacks the rest, while count() counts all. cummax() gives infinity, where
#   expanding().max() gives 1.5. Without min_periods, rolling() shows NaN, as if nothing had been logged. No warning.
# Hurt: smoothed curves and alarms about gradient norms, losses and perplexities of runs in float16 or that diverge:
#   they look sound, and the more infinities a run has, the more of it is left out.
# Output seen:
#   the series: largest inf, mean inf, cummax() at the end inf
#   pandas, windows of 20: more than 10 in 0 by max(), 0 by mean(), 0 by sum() / count()
#     sum() / count() is 1.03 in the first half, 0.91 in the second
#     expanding() at the end: max 1.50, mean 1.02; ewm(alpha=0.1).mean() 0.97
#   polars, windows of 20: more than 10 in 441 by max, 441 by mean
#   perplexity at the end: of the smoothed loss 7.53, of the mean of the last 100 losses inf, of which 11 are infinite
. "$(dirname "$0")/common.sh"
venv pandas==3.1.1 polars==2.1.0 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
import pandas as pd
import polars as pl

rng = np.random.default_rng(0)
norms = rng.uniform(0.5, 1.5, 1000)
overflows = 500 + rng.choice(500, 50, replace=False)           # in the second half of the run
norms[overflows] = np.inf
series = pd.Series(norms)
print(f"the series: largest {series.max():.2f}, mean {series.mean():.2f}, cummax() at the end "
      f"{series.cummax().iloc[-1]:.2f}")

def alarms(values):
    return int((np.asarray(values) > 10).sum())

windows = series.rolling(20, min_periods=1)
print(f"pandas, windows of 20: more than 10 in {alarms(windows.max())} by max(), {alarms(windows.mean())} by mean(), "
      f"{alarms(windows.sum() / windows.count())} by sum() / count()")
shares = windows.sum() / windows.count()
first, second = shares.iloc[20:500].mean(), shares.iloc[500:].mean()
print(f"  sum() / count() is {first:.2f} in the first half, {second:.2f} in the second")
whole = series.expanding()
print(f"  expanding() at the end: max {whole.max().iloc[-1]:.2f}, mean {whole.mean().iloc[-1]:.2f}; "
      f"ewm(alpha=0.1).mean() {series.ewm(alpha=0.1).mean().iloc[-1]:.2f}")
other = pl.Series(norms)
print(f"polars, windows of 20: more than 10 in {alarms(other.rolling_max(20, min_samples=1))} by max, "
      f"{alarms(other.rolling_mean(20, min_samples=1))} by mean")

losses = pd.Series(np.where(np.isinf(norms), np.inf, np.linspace(3, 2, 1000)))
smooth = losses.ewm(alpha=0.05).mean()
print(f"perplexity at the end: of the smoothed loss {np.exp(smooth.iloc[-1]):.2f}, of the mean of the last 100 losses "
      f"{np.exp(losses.iloc[-100:].mean()):.2f}, of which {int(np.isinf(losses.iloc[-100:]).sum())} are infinite")
assert np.isinf(series.max()) and np.isinf(series.cummax().iloc[-1])
assert alarms(windows.max()) == alarms(windows.mean()) == 0 and whole.max().iloc[-1] < 1.5 and smooth.notna().all()
assert second < 0.95 < first and alarms(other.rolling_max(20, min_samples=1)) > 300
assert np.isinf(losses.iloc[-100:].mean())
PY
