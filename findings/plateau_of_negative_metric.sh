#!/usr/bin/env bash
# ReduceLROnPlateau never lowers the rate while the metric is negative, even if the metric becomes worse
# Versions: torch 2.13.0 (patience 3, 40 epochs).
# Guess: after `patience` epochs without an improvement the rate falls by the factor, whatever the metric's sign.
# True: the default threshold is relative: in mode "max" an improvement is a value above best * (1 + 1e-4). For a best
#   of -2 that is -2.0002, below the best: the same value again counts as an improvement, and so does a slightly worse
#   one, which becomes the best. threshold_mode="abs" is right.
# Hurt: who watches a log-likelihood, a reward or a score with its sign turned: the rate stays at its start for ever.
# Output seen:
#   perplexity 7.4, minimised: rate 1e-08, with threshold_mode='abs' 1e-08; from 7.4 to 7.4000, best 7.4000
#   loss 2, minimised: rate 1e-08, with threshold_mode='abs' 1e-08; from 2.0 to 2.0000, best 2.0000
#   loss 2 and rising, minimised: rate 1e-08, with threshold_mode='abs' 1e-08; from 2.0 to 2.0039, best 2.0000
#   log-likelihood -2, maximised: rate 1e+00, with threshold_mode='abs' 1e-08; from -2.0 to -2.0000, best -2.0000
#   log-likelihood -2 and falling, maximised: rate 1e+00, with threshold_mode='abs' 1e-08; from -2.0 to -2.0039, best -2.0039
#   accuracy -0.6, minimised: rate 1e+00, with threshold_mode='abs' 1e-08; from -0.6 to -0.6000, best -0.6000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
def rate(mode, values, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=3, **options)
    for value in values:
        schedule.step(value)
    return schedule.get_last_lr()[0], schedule.best
drop = [-0.0001 * epoch for epoch in range(40)]
cases = {"perplexity 7.4, minimised": ("min", [7.4] * 40), "loss 2, minimised": ("min", [2.0] * 40),
         "loss 2 and rising, minimised": ("min", [2.0 - worse for worse in drop]),
         "log-likelihood -2, maximised": ("max", [-2.0] * 40),
         "log-likelihood -2 and falling, maximised": ("max", [-2.0 + worse for worse in drop]),
         "accuracy -0.6, minimised": ("min", [-0.6] * 40)}
for name, case in cases.items():
    (relative, best), (absolute, _) = rate(*case), rate(*case, threshold_mode="abs")
    print(f"{name}: rate {relative:.0e}, with threshold_mode='abs' {absolute:.0e}; from {case[1][0]} to {case[1][-1]:.4f}, "
          f"best {best:.4f}")
    assert absolute < 1e-6 and (relative == 1) == (case[1][0] < 0)
    assert ("falling" in name) == (best != case[1][0])
PY
