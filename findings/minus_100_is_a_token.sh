#!/usr/bin/env bash
# optax and mlx: a target of -100 is the 100th token from the end, and in keras its loss is 0 and counts in the mean
# Versions: optax 0.2.8, jax 0.10.2, mlx 0.32.4, mlx-cpu 0.32.4, keras 3.15.1, numpy 2.4.6.
# Guess: -100, which transformers' collators write for prompt and padding, is ignored, as in torch, or refused.
# True: optax and mlx index the logits with it, and negative indices count from the end: without a warning the model is
#   trained to write token V-100 at every masked position. In Llama 3 that is a reserved token. keras gives 0, and its
#   mean counts these positions, so the loss is lower the more of them there are; ignore_class=-100 mends it.
# Hurt: labels of DataCollatorForLanguageModeling or of SFT data in JAX, MLX and keras; losses beside those of torch.
# Output seen:
#   losses of two right targets, and of token V-100: 6.968 7.207 6.948 6.015
#   optax:  6.968 7.207 6.948 6.015
#   mlx:    6.968 7.207 6.948 6.015
#   keras:  6.968 7.207 0.000 0.000
#   token that optax's gradient raises most at a target of -100, of 1000: 900
#   keras, mean of four: 3.544; with ignore_class=-100: 7.088
. "$(dirname "$0")/common.sh"
venv optax==0.2.8 jax==0.10.2 mlx==0.32.4 mlx-cpu==0.32.4 keras==3.15.1 numpy==2.4.6

KERAS_BACKEND=jax "$python" - <<'PY'
import jax
import keras
import mlx.core as mx
import mlx.nn
import numpy as np
import optax

V = 1000
logits = np.random.default_rng(0).normal(size=(4, V)).astype("float32")
targets = np.array([5, 7, -100, -100])

def shown(losses):
    return " ".join(f"{abs(float(loss)):.3f}" for loss in losses)

def optax_losses(z):
    return optax.softmax_cross_entropy_with_integer_labels(z, targets)

expected = -np.array(jax.nn.log_softmax(logits))[range(4), [5, 7, V - 100, V - 100]]
print(f"losses of two right targets, and of token V-100: {shown(expected)}")
losses = {
    "optax": optax_losses(logits),
    "mlx": mlx.nn.losses.cross_entropy(mx.array(logits), mx.array(targets)).tolist(),
    "keras": keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)}
for name, of_name in losses.items():
    print(f"{name}:".ljust(8) + shown(of_name))
assert np.allclose(losses["optax"], expected, atol=1e-5) and np.allclose(losses["mlx"], expected, atol=1e-5)
assert np.allclose(losses["keras"][2:], 0)

raised = int(jax.grad(lambda z: optax_losses(z).sum())(logits)[2].argmin())
print(f"token that optax's gradient raises most at a target of -100, of {V}: {raised}")
assert raised == V - 100

means = [float(keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)(targets, logits))
         for ignored in (None, -100)]
print(f"keras, mean of four: {means[0]:.3f}; with ignore_class=-100: {means[1]:.3f}")
assert np.allclose(2 * means[0], means[1])
PY
