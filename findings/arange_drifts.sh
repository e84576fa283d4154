#!/usr/bin/env bash
# On a CPU mlx's arange adds its step up: interpolated positions drift by 25, bf16 ones stop at 256
# Versions: mlx 0.32.4 (mlx-cpu, x86), numpy 2.4.6.
# Guess: element i of arange is start + i * step, rounded once, as in numpy, torch and jax.
# True: each element is the one before it plus the step, in the type of the array. In float32 a step of 1/3 or 1/10, as
#   of positions that are interpolated for a longer context, is off by 14 to 26 positions at token 131,072. 100,001
#   points from 0 to 1 end at 1.0010. In bf16 whole positions stop at 256 and in float16 at 2,048, where others go on in
#   steps of 2 and more. arange(n) * step in float32 is right, and linspace is.
# Hurt: RoPE with interpolated positions, time steps of diffusion, and schedules, if they are computed on a CPU.
# Output seen:
#   8192 tokens, step 1/3: off by up to 0.10, arange(n) * step by 0.0002
#   32768 tokens, step 1/10: off by up to 0.85, arange(n) * step by 0.0001
#   131072 tokens, step 1/3: off by up to 25.53, arange(n) * step by 0.0026
#   131072 tokens, step 1/10: off by up to 13.58, arange(n) * step by 0.0006
#   last of 100001 points from 0 to 1 in steps of 1/100000: 1.0010
#   bf16: positions 255, 300, 2047, 3000 and 4095 are 255 256 256 256 256 and rounded 255 300 2048 3008 4096
#   float16: positions 255, 300, 2047, 3000 and 4095 are 255 300 2047 2048 2048 and rounded 255 300 2047 3000 4096
. "$(dirname "$0")/common.sh"
venv mlx==0.32.4 mlx-cpu==0.32.4 numpy==2.4.6

"$python" - <<'PY'
import mlx.core as mx
import numpy as np
mx.set_default_device(mx.cpu)
for tokens, factor in ((8192, 3), (32768, 10), (131072, 3), (131072, 10)):
    positions = np.array(mx.arange(0, tokens / factor, 1 / factor))[:tokens]
    product = np.array(mx.arange(tokens) * (1 / factor))
    exact = np.arange(len(positions)) / factor
    off, off_product = np.abs(positions - exact).max(), np.abs(product[:len(exact)] - exact).max()
    print(f"{tokens} tokens, step 1/{factor}: off by up to {off:.2f}, arange(n) * step by {off_product:.4f}")
    assert off_product < 0.01 and (off > 10 or tokens < 131072)
grid = np.array(mx.arange(0, 1 + 5e-6, 1e-5))
print(f"last of {len(grid)} points from 0 to 1 in steps of 1/100000: {grid[-1]:.4f}")
assert abs(grid[-1] - 1) > 5e-4
for name, dtype in (("bf16", mx.bfloat16), ("float16", mx.float16)):
    positions = np.array(mx.arange(4096, dtype=dtype).astype(mx.float32))
    rounded = np.array(mx.arange(4096).astype(dtype).astype(mx.float32))
    shown = 255, 300, 2047, 3000, 4095
    print(f"{name}: positions 255, 300, 2047, 3000 and 4095 are", *(f"{positions[i]:.0f}" for i in shown),
          "and rounded", *(f"{rounded[i]:.0f}" for i in shown))
    assert positions.max() == (256 if name == "bf16" else 2048) and rounded.max() == 4096
PY
