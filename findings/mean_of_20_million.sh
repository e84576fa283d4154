#!/usr/bin/env bash
# mlx on a CPU: a sum over a whole array stops growing, so that the mean of 20 million ones is .84
# Versions: mlx 0.32.4, mlx-cpu 0.32.4, numpy 2.4.6 (Linux, CPU).
# Guess: sums in float32 are right to five digits or more, as in numpy, which adds in pairs.
# True: one float32 sum runs through the whole array. From 16,777,216 on, adding 1 changes nothing, and before that each
#   number is rounded more and more. The norm of a gradient is 1.4 % too low for 4,096 x 4,096 numbers, 9 % for a
#   vocabulary of 32,000 x 2,048, 20 % for 128,256 x 1,024. Means of
#   rows, and then of them, and means of True and False are right. Sums of int32 stay int32 and wrap.
# Hurt: clipping by norm, which clips too little; statistics of large weights or gradients; the share of right tokens in
#   a large evaluation; counts of a corpus.
# Output seen:
#   mean of ones, 10 million: 1.000, 20 million: 0.839, 50 million: 0.336; mean of means of rows: 1.000
#   norm of a gradient of 4,096 x 4,096: clip_grad_norm -1.4 %, numpy -0.003 %
#   norm of a gradient of 32,000 x 2,048: clip_grad_norm -9.2 %, numpy -0.023 %
#   norm of a gradient of 128,256 x 1,024: clip_grad_norm -19.8 %, numpy -0.066 %
#   90 % of 40 million tokens are right: mean 0.419; three corpora of 1,073,741,824 tokens: sum -1,073,741,824
. "$(dirname "$0")/common.sh"
venv mlx==0.32.4 mlx-cpu==0.32.4 numpy==2.4.6

"$python" - <<'PY'
import mlx.core as mx
import numpy as np
from mlx.optimizers import clip_grad_norm

mx.set_default_device(mx.cpu)
means = [mx.mean(mx.ones(millions * 1_000_000)).item() for millions in (10, 20, 50)]
by_rows = mx.mean(mx.mean(mx.ones((5_000, 10_000)), axis=1)).item()
print("mean of ones, 10 million: {:.3f}, 20 million: {:.3f}, 50 million: {:.3f}; mean of means of rows: {:.3f}".format(
    *means, by_rows))
rng = np.random.default_rng(0)
errors = []
for rows, columns in ((4_096, 4_096), (32_000, 2_048), (128_256, 1_024)):
    gradient = rng.standard_normal((rows, columns), dtype=np.float32) / 1000
    true = np.sqrt(sum(np.square(row, dtype=np.float64).sum() for row in gradient))
    _, norm = clip_grad_norm({"weight": mx.array(gradient)}, 1.0)
    errors.append((norm.item() / true - 1, np.linalg.norm(gradient) / true - 1))
    print("norm of a gradient of {:,} x {:,}: clip_grad_norm {:.1%}, numpy {:.3%}".format(rows, columns, *errors[-1])
          .replace("%", " %"))
right = np.arange(40_000_000) % 10 > 0
accuracy = mx.mean(mx.array(right, dtype=mx.float32)).item()
tokens = mx.sum(mx.array([2 ** 30] * 3)).item()
print(f"90 % of 40 million tokens are right: mean {accuracy:.3f}; three corpora of {2 ** 30:,} tokens: sum {tokens:,}")
assert right.mean() == 0.9 and accuracy < 0.5 and tokens == -2 ** 30
assert means[0] > 0.999 and means[1] < 0.9 and means[2] < 0.4 and abs(by_rows - 1) < 1e-4
assert all(error < -0.01 and abs(numpy) < 0.001 for error, numpy in errors) and errors[2][0] < -0.15
PY
