#!/usr/bin/env bash
# lm-polygraph: its ECE is 0, a perfect calibration, for its own uncertainties, even of a model that is always wrong
# Versions: lm-polygraph 0.7.0, numpy 2.4.6, scikit-learn 1.9.1 (2,000 answers of one token, with probabilities p).
# Guess: the metric is given uncertainties, as all metrics of ue_metrics are, and makes confidences of them. -log p, as
#   MaximumSequenceProbability and Perplexity return it, or 1 - p give the ECE of p, or an error says that they cannot.
# True: the confidence is the uncertainty times -1. Twenty bins from 0 to 1 are filled with it, and what is outside, all
#   of these, is in no bin, and adds nothing: 0.0. Only an uncertainty of -p is scored. normalize=True stretches the
#   scores, so that the least certain answer has the confidence 0 and the most certain 1: -log p of a calibrated model
#   has .19.
# Hurt: tables of uncertainty methods: those with -log p, entropies or 1 - p look perfectly calibrated.
# Output seen:
#   calibrated, normalize=False: -log p 0.000, 1 - p 0.000, -p 0.038
#   calibrated, normalize=True: -log p 0.189, 1 - p 0.042, -p 0.042
#   always right, normalize=False: -log p 0.000, 1 - p 0.000, -p 0.481
#   always right, normalize=True: -log p 0.285, 1 - p 0.501, -p 0.501
#   always wrong, normalize=False: -log p 0.000, 1 - p 0.000, -p 0.519
#   always wrong, normalize=True: -log p 0.715, 1 - p 0.499, -p 0.499
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scikit-learn==1.9.1
# Without the models, which the metric does not need
"$python" -m pip install --quiet --no-compile --no-deps --target "$work/polygraph" lm-polygraph==0.7.0

PYTHONPATH="$work/polygraph" "$python" - <<'PY'
import importlib.util
import sys
from types import ModuleType
import numpy as np

root = importlib.util.find_spec("lm_polygraph").submodule_search_locations[0]
for name in ("", ".utils"):                                    # these two load all models
    package = ModuleType("lm_polygraph" + name)
    package.__path__ = [root + name.replace(".", "/")]
    sys.modules[package.__name__] = package
from lm_polygraph.ue_metrics import ECE

rng = np.random.default_rng(0)
p = rng.uniform(0.05, 0.99, 2000)
models = {"calibrated": rng.random(2000) < p, "always right": np.ones(2000), "always wrong": np.zeros(2000)}
uncertainties = {"-log p": -np.log(p), "1 - p": 1 - p, "-p": -p}
seen = {}
for name, right in models.items():
    for normalize in (False, True):
        seen[name, normalize] = [ECE(normalize=normalize)(u, right.astype(float)) for u in uncertainties.values()]
        print(f"{name}, normalize={normalize}:",
              ", ".join(f"{kind} {value:.3f}" for kind, value in zip(uncertainties, seen[name, normalize])))
assert all(seen[name, False][:2] == [0, 0] for name in models)
assert seen["calibrated", False][2] < 0.05 and seen["always wrong", False][2] > 0.4
assert seen["calibrated", True][0] > 0.15 and abs(seen["calibrated", True][1] - seen["calibrated", True][2]) < 1e-9
PY
