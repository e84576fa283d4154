#!/usr/bin/env bash
# In bf16 optax's global norm stops growing with the number of leaves, so that clipping clips too little
# Versions: optax 0.2.8, jax 0.10.2 (on a CPU).
# Guess: clip_by_global_norm(1) leaves a gradient of norm 1, up to bf16's rounding of .4 %. jnp.sum adds bf16 in fp32.
# True: the sums of the leaves are added by Python's sum, each step rounded to bf16. Beside a sum 256 times as large
#   a leaf adds nothing: equal leaves stop at 512, and all leaves after a large one (an embedding) may count as none.
#   Of one array of the same numbers the norm is right.
# Hurt: pure bf16 training of models with hundreds of leaves (12 to a layer): the clip lets through a multiple of what
#   it should, and logged norms hide a growing gradient.
# Output seen:
#   1 leaf of 1,048,576: norm 1023, in bf16 100% of it; clipped to 1: 1.00
#   12 leaves: norm 111, in bf16 100% of it; clipped to 1: 1.00
#   400 leaves: norm 640, in bf16 98% of it; clipped to 1: 1.03
#   1,024 leaves: norm 1023, in bf16 71% of it; clipped to 1: 1.41
#   400 leaves after one of 23 times their size: norm 965, in bf16 75% of it; clipped to 1: 1.33
. "$(dirname "$0")/common.sh"
venv optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

"$python" - <<'PY'
import jax
import jax.numpy as jnp
import optax
def clipped(leaves):  # the true norm after clipping to 1
    clip = optax.clip_by_global_norm(1.0)
    leaves, _ = clip.update(leaves, clip.init(leaves))
    return float(optax.global_norm([leaf.astype(jnp.float32) for leaf in leaves]))
def gradient(sizes):
    return [jax.random.normal(jax.random.key(i), (1024,)).astype(jnp.bfloat16) * size for i, size in enumerate(sizes)]
cases = {"1 leaf of 1,048,576": [jnp.concatenate(gradient([1.0] * 1024))], "12 leaves": gradient([1.0] * 12),
         "400 leaves": gradient([1.0] * 400), "1,024 leaves": gradient([1.0] * 1024),
         "400 leaves after one of 23 times their size": gradient([23.0] + [1.0] * 400)}
seen = {}
for name, leaves in cases.items():
    true = float(optax.global_norm([leaf.astype(jnp.float32) for leaf in leaves]))
    seen[name] = float(optax.global_norm(leaves)) / true, clipped(leaves)
    print(f"{name}: norm {true:.0f}, in bf16 {seen[name][0]:.0%} of it; clipped to 1: {seen[name][1]:.2f}")
assert all(abs(seen[name][1] - 1) < 0.02 for name in ("1 leaf of 1,048,576", "12 leaves"))
assert seen["1,024 leaves"][1] > 1.3 and seen["400 leaves after one of 23 times their size"][1] > 1.3
PY
