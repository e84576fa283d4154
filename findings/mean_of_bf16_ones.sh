#!/usr/bin/env bash
# In numpy the mean of 10,000 ones in bf16 is 0.0256, and normal noise has a standard deviation of 0.04
# Versions: numpy 2.4.6, ml_dtypes 0.6.0.
# Guess: numpy adds bf16 up in float32, as it does for the mean of float16.
# True: numpy widens its own float16 alone. bf16, which comes from ml_dtypes, is added up number by number in bf16,
#   where 256 + 1 is 256. sum, mean, std and var stop; std is that of no data. max and matmul are right.
# Hurt: statistics of weights, losses and activations in bf16 that come from jax or flax by np.asarray.
# Output seen:
#   ones: sum 256.0 mean 0.0256, in float16 sum 10000.0 mean 1.0000
#   normal weights: type bfloat16 std 0.0442 mean size 0.0005, cast to float32 std 0.9998 mean size 0.7976
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 ml_dtypes==0.6.0

"$python" - <<'PY'
import ml_dtypes, numpy as np
ones, half = np.ones(10_000, ml_dtypes.bfloat16), np.ones(10_000, np.float16)
print(f"ones: sum {float(ones.sum())} mean {float(ones.mean()):.4f}, "
      f"in float16 sum {float(half.sum())} mean {float(half.mean()):.4f}")
assert ones.sum() == 256 and half.mean() == 1
weights = np.random.default_rng(0).standard_normal((4096, 1024)).astype(ml_dtypes.bfloat16)
wide = weights.astype(np.float32)
print(f"normal weights: type {weights.dtype} std {float(weights.std()):.4f} mean size {float(np.abs(weights).mean()):.4f}, "
      f"cast to float32 std {wide.std():.4f} mean size {np.abs(wide).mean():.4f}")
assert weights.std() < 0.1 and np.abs(weights).mean() < 0.01 and abs(wide.std() - 1) < 0.01
PY
