#!/usr/bin/env bash
# On a CPU mlx's softmax of bf16 scores does not sum to 1: 1.8 for 2,048 keys, 8 for a vocabulary
# Versions: mlx 0.32.4 (mlx-cpu, x86), numpy 2.4.6 (random normal scores, and equal ones).
# Guess: the weights of a softmax sum to 1, but for their rounding: within 1 % in bf16.
# True: the sum of the exponentials is added up one after the other in the type of the scores. In bf16 it stops growing
#   as soon as a term is below 1/256 of it: n equal scores have weights of 1/256, and sum to n/256. In float16 it stops
#   at 2,048. precise=True, which is not the default, adds in float32; logsumexp, the losses and
#   mx.fast.scaled_dot_product_attention are right.
# Hurt: attention that is written out, as for a new score function, in bf16 from 256 keys on: outputs are too large, by
#   more the longer the text, as if the model could not extrapolate. Probabilities from bf16 logits.
# Output seen:
#   128 normal scores: weights sum to 1.01 (bf16) 1.00 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   128 equal scores: weights sum to 1.00 (bf16) 1.00 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   512 normal scores: weights sum to 1.14 (bf16) 1.00 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   512 equal scores: weights sum to 2.00 (bf16) 1.00 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   2048 normal scores: weights sum to 1.78 (bf16) 1.04 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   2048 equal scores: weights sum to 8.00 (bf16) 1.00 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   32000 normal scores: weights sum to 8.42 (bf16) 2.43 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   32000 equal scores: weights sum to 125.00 (bf16) 15.62 (float16) 1.00 (float32) 1.00 (bf16 precise)
#   attention over 2048 keys in bf16: off by 1% in mx.fast, by 78% written out
. "$(dirname "$0")/common.sh"
venv mlx==0.32.4 mlx-cpu==0.32.4 numpy==2.4.6

"$python" - <<'PY'
import mlx.core as mx
import numpy as np
mx.set_default_device(mx.cpu)
random = np.random.default_rng(0)
sums = {}
for length in (128, 512, 2048, 32000):
    for name, scores in (("normal", random.standard_normal((64, length))), ("equal", np.zeros((1, length)))):
        scores = mx.array(scores.astype(np.float32))
        for kind, dtype, precise in (("bf16", mx.bfloat16, False), ("float16", mx.float16, False),
                                     ("float32", mx.float32, False), ("bf16 precise", mx.bfloat16, True)):
            weights = mx.softmax(scores.astype(dtype), axis=-1, precise=precise).astype(mx.float32)
            sums[length, name, kind] = mx.mean(mx.sum(weights, axis=-1)).item()
        print(f"{length} {name} scores: weights sum to", *(f"{sums[length, name, kind]:.2f} ({kind})" for kind in
                                                           ("bf16", "float16", "float32", "bf16 precise")))
for (length, name, kind), value in sums.items():
    if kind in ("float32", "bf16 precise"):
        assert abs(value - 1) < 0.01
assert sums[2048, "normal", "bf16"] > 1.5 and sums[32000, "normal", "bf16"] > 5 and sums[2048, "equal", "bf16"] == 8
q, k, v = (mx.array(random.standard_normal((1, 1, 2048, 64)).astype(np.float32)) for _ in range(3))
def distance(a, b):
    return (mx.linalg.norm((a.astype(mx.float32) - b).flatten()) / mx.linalg.norm(b.flatten())).item()
true = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125)
q, k, v = (array.astype(mx.bfloat16) for array in (q, k, v))
fused = distance(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125), true)
written = distance(mx.softmax(q @ k.swapaxes(-1, -2) * 0.125, axis=-1) @ v, true)
print(f"attention over 2048 keys in bf16: off by {fused:.0%} in mx.fast, by {written:.0%} written out")
assert fused < 0.02 and written > 0.5
PY
