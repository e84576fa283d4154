#!/usr/bin/env bash
# scipy: the smoothed curve of right and wrong answers is 0 everywhere, and one NaN ends uniform_filter1d for good
# Versions: scipy 1.17.1, numpy 2.4.6 (1,000 answers by length of the text, of which 90 % are right, then 50 %).
# Guess: gaussian_filter1d and uniform_filter1d of 0 and 1 give the share of right answers around each place, as
#   np.convolve does, and a NaN spoils the windows that contain it.
# True: the result has the type of the input and is cut to it, not rounded: answers of 0 and 1 become 0 unless the whole
#   window is right, and scores of 1 to 5 lose half a point on average. uniform_filter1d keeps a running sum: after one
#   NaN or infinity all values are NaN up to the end, and after one loss of 1e17 all are wrong.
# Hurt: accuracy by position or length, such as found needles; smoothed losses, router loads and scores of judges.
# Output seen:
#   float, gaussian_filter1d: at 100, 250, 400, 750 [0.78, 0.88, 0.87, 0.49], mean 0.69 of 0.69
#   float, uniform_filter1d: at 100, 250, 400, 750 [0.76, 0.9, 0.86, 0.45], mean 0.69 of 0.69
#   int, gaussian_filter1d: at 100, 250, 400, 750 [0, 0, 0, 0], mean 0.00 of 0.69
#   int, uniform_filter1d: at 100, 250, 400, 750 [0, 0, 0, 0], mean 0.00 of 0.69
#   scores of 1 to 5: mean 3.04, smoothed 2.59 and 2.60
#   NaN at step 200, gaussian_filter1d: 41 of 1,000 steps off, at the end 2.00
#   NaN at step 200, uniform_filter1d: 810 of 1,000 steps off, at the end nan
#   infinity at step 200, gaussian_filter1d: 41 of 1,000 steps off, at the end 2.00
#   infinity at step 200, uniform_filter1d: 810 of 1,000 steps off, at the end nan
#   1e17 at step 200, gaussian_filter1d: 41 of 1,000 steps off, at the end 2.00
#   1e17 at step 200, uniform_filter1d: 810 of 1,000 steps off, at the end 2.26
. "$(dirname "$0")/common.sh"
venv scipy==1.17.1 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from scipy.ndimage import gaussian_filter1d, uniform_filter1d

rng = np.random.default_rng(0)
right = rng.random(1000) < np.where(np.arange(1000) < 500, 0.9, 0.5)
seen = {}
for kind in (float, int):
    for smooth, width in ((gaussian_filter1d, 20), (uniform_filter1d, 51)):
        curve = smooth(right.astype(kind), width)
        seen[kind, smooth] = curve
        print(f"{kind.__name__}, {smooth.__name__}: at 100, 250, 400, 750 "
              f"{curve[[100, 250, 400, 750]].round(2).tolist()}, mean {curve.mean():.2f} of {right.mean():.2f}")

scores = rng.integers(1, 6, 1000)
means = [smooth(scores, width).mean() for smooth, width in ((gaussian_filter1d, 20), (uniform_filter1d, 51))]
print(f"scores of 1 to 5: mean {scores.mean():.2f}, smoothed {means[0]:.2f} and {means[1]:.2f}")

lost = {}
for name, value in (("NaN", np.nan), ("infinity", np.inf), ("1e17", 1e17)):
    losses = np.linspace(3, 2, 1000)
    losses[200] = value
    for smooth, width in ((gaussian_filter1d, 5), (uniform_filter1d, 21)):
        curve = smooth(losses, width)
        wrong = ~(np.abs(curve - np.linspace(3, 2, 1000)) < 0.1)
        lost[name, smooth] = wrong.sum()
        print(f"{name} at step 200, {smooth.__name__}: {wrong.sum()} of 1,000 steps off, at the end {curve[-1]:.2f}")
for smooth in (gaussian_filter1d, uniform_filter1d):
    assert seen[float, smooth][:450].min() > 0.7
    assert seen[int, smooth].mean() < 0.05
assert max(means) < scores.mean() - 0.4
assert all(lost[name, uniform_filter1d] > 750 for name in ("NaN", "infinity", "1e17"))
assert all(lost[name, gaussian_filter1d] < 100 for name in ("NaN", "infinity", "1e17"))
PY
