#!/usr/bin/env bash
# scikit-learn's normalize of float16 hidden states gives rows of zeros if their norm is above 256
# Versions: scikit-learn 1.9.1, numpy 2.4.6.
# Guess: normalized rows have a norm of 1, in float16 to three digits.
# True: float16 is kept as it is, and the squares are summed in it: from 65,504 on the sum is infinity, and the row is
#   divided by infinity. There is no warning. cosine_similarity of the same rows is right, since it casts first.
# Hurt: hidden states kept in float16: 4,096 dimensions of size 5 are enough. Neighbours and clusters of zeros.
# Output seen:
#   size 3: norms after normalize 1.000 to 1.000, cosine of a row with itself 1.000
#   size 5: norms after normalize 0.000 to 0.000, cosine of a row with itself 1.000
. "$(dirname "$0")/common.sh"
venv scikit-learn==1.9.1 numpy==2.4.6

"$python" -W error - <<'PY'
import numpy as np
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import normalize
noise = np.random.default_rng(0).standard_normal((200, 4096))
for size in (3, 5):
    states = (noise * size).astype(np.float16)
    norms = np.linalg.norm(normalize(states).astype(np.float64), axis=1)
    cosine = cosine_similarity(states[:1])[0, 0]
    print(f"size {size}: norms after normalize {norms.min():.3f} to {norms.max():.3f}, cosine of a row with itself {cosine:.3f}")
    assert abs(cosine - 1) < 1e-3 and (abs(norms - 1).max() < 1e-2 if size == 3 else norms.max() == 0)
PY
