#!/usr/bin/env bash
# numpy's nanmean of 20,000 float16 rows is a quarter of the mean, without a NaN in them
# Versions: numpy 2.4.6 (20,000 rows of 64 numbers around 1).
# Guess: without a NaN nanmean is mean, and average with equal weights is mean.
# True: mean of float16 adds in float32. nanmean and average with float16 weights call `sum`, which
#   adds in float16: down the rows it stops at some thousands, where adding 1 changes nothing, and is divided by the
#   number of rows. There is no warning. The same numbers in Fortran's order, or dtype=np.float32, give the right mean.
#   A note at the end of nanmean's page says that it computes in the input's precision.
#   std adds in float16, too, and is wrong as nanstd is.
# Hurt: means of stored hidden states and embeddings (centering, steering vectors, mean pooling), and of log-probabilities
#   in float16; the more rows, the smaller the mean.
# Output seen:
#    1,000 rows: mean 1.001, nanmean 1.001, average with equal weights 1.001, std 0.497, nanstd 0.497
#    5,000 rows: mean 1.000, nanmean 0.836, average with equal weights 0.836, std 0.498, nanstd 0.498
#   20,000 rows: mean 1.000, nanmean 0.278, average with equal weights 0.278, std 0.643, nanstd 0.643
#   20,000 rows: nanmean of contiguous columns 1.000, with dtype=np.float32 1.000
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6

"$python" - <<'PY'
import warnings
import numpy as np
warnings.simplefilter("error")
hidden = (1 + 0.5 * np.random.default_rng(0).standard_normal((20_000, 64))).astype(np.float16)
weights = np.ones(len(hidden), np.float16)
for rows in (1_000, 5_000, 20_000):
    part = hidden[:rows]
    means = part.mean(0), np.nanmean(part, 0), np.average(part, 0, weights=weights[:rows])
    print(f"{rows:6,} rows: mean {means[0].mean():.3f}, nanmean {means[1].mean():.3f}, average with equal weights "
          f"{means[2].mean():.3f}, std {part.std(0).mean():.3f}, nanstd {np.nanstd(part, 0).mean():.3f}")
cured = np.nanmean(np.asfortranarray(hidden), 0), np.nanmean(hidden, 0, dtype=np.float32)
print(f"{len(hidden):6,} rows: nanmean of contiguous columns {cured[0].mean():.3f}, with dtype=np.float32 {cured[1].mean():.3f}")
assert abs(means[0] - 1).max() < 0.02 and max(means[1].max(), means[2].max()) < 0.5
assert all(abs(mean - 1).max() < 0.02 for mean in cured)
PY
