#!/usr/bin/env bash
# uncertainty-toolbox: recalibrated quantiles of a biased predictor go the wrong way, and their error is shown as 0
# Versions: uncertainty-toolbox 0.1.1, numpy 2.4.6, scipy 1.17.1, scikit-learn 1.9.1 (2,000 rows, and 2,000 held out).
# Guess: get_proportion_under_quantile is the share of the true values below the predicted quantile. The recalibrator,
#   fitted on rows where the predictions are too low by one standard deviation, raises them: 50 % lie below the median.
# True: the residual is the prediction minus the truth, so that the share above the mirrored quantile is counted. The
#   predicted median has 17 % of the values below it, and the function says 83 %. The recalibrator lowers what is too
#   low: 2 % are below the new median, 24 % below the .9 quantile. mean_absolute_calibration_error has the same sign and
#   falls from .26 to .01. Without a bias both signs agree. Centered intervals, prop_type="interval", do not have it.
# Hurt: quantiles of predicted losses, answer lengths, run times or ratings; plots that say too low for too high.
# Output seen:
#   too low by 1: below the predicted median 0.17, get_proportion_under_quantile 0.83
#     below the quantiles of .1, .5, .9, held out: before 0.01 0.16 0.61 recalibrated 0.00 0.02 0.24
#     mean_absolute_calibration_error: before 0.26, recalibrated 0.01
#   unbiased: below the predicted median 0.52, get_proportion_under_quantile 0.48
#     below the quantiles of .1, .5, .9, held out: before 0.09 0.51 0.89 recalibrated 0.09 0.52 0.90
#     mean_absolute_calibration_error: before 0.01, recalibrated 0.01
#   too high by 1: below the predicted median 0.84, get_proportion_under_quantile 0.15
#     below the quantiles of .1, .5, .9, held out: before 0.40 0.84 0.99 recalibrated 0.77 0.98 1.00
#     mean_absolute_calibration_error: before 0.26, recalibrated 0.01
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 matplotlib==3.11.2 uncertainty-toolbox==0.1.1
export MPLCONFIGDIR="$work" MPLBACKEND=agg

"$python" - <<'PY'
import numpy as np
from scipy.stats import norm
from uncertainty_toolbox import metrics_calibration as calibration
from uncertainty_toolbox.recalibration import get_quantile_recalibrator, iso_recal

rng = np.random.default_rng(0)
fit, held_out = rng.normal(0, 1, (2, 2000))
std = np.ones(2000)
seen = {}
for name, bias in (("too low by 1", -1.0), ("unbiased", 0.0), ("too high by 1", 1.0)):
    predicted = np.full(2000, bias)
    below = (fit <= predicted).mean()
    says = calibration.get_proportion_under_quantile(predicted, std, fit, 0.5)
    recalibrate = get_quantile_recalibrator(predicted, std, fit)
    shares = [[(held_out <= predicted + norm.ppf(q)).mean(), (held_out <= recalibrate(predicted, std, q)).mean()]
              for q in (0.1, 0.5, 0.9)]
    model = iso_recal(*calibration.get_proportion_lists_vectorized(predicted, std, fit, prop_type="quantile"))
    errors = [calibration.mean_absolute_calibration_error(predicted, std, held_out, prop_type="quantile", recal_model=m)
              for m in (None, model)]
    seen[name] = below, says, *shares[1], *errors
    print(f"{name}: below the predicted median {below:.2f}, get_proportion_under_quantile {says:.2f}")
    print("  below the quantiles of .1, .5, .9, held out: before", *(f"{before:.2f}" for before, _ in shares),
          "recalibrated", *(f"{after:.2f}" for _, after in shares))
    print(f"  mean_absolute_calibration_error: before {errors[0]:.2f}, recalibrated {errors[1]:.2f}")
low, none, high = seen.values()
assert abs(low[0] + low[1] - 1) < 1e-9 and low[0] < 0.2 and high[0] > 0.8 and abs(none[3] - 0.5) < 0.05
assert low[3] < low[2] / 2 and high[3] > high[2] + 0.1 and low[4] > 0.2 and max(low[5], high[5]) < 0.03
PY
