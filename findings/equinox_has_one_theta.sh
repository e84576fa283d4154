#!/usr/bin/env bash
# equinox: all RoPE layers of one head size have one theta, that of the first call in the process
# Versions: equinox 0.13.8, jax 0.10.2, jaxlib 0.10.2 (CPU; heads of 64, one query and one key that are all ones).
# Guess: a layer with theta=1,000,000 rotates by this theta, whatever other layers do.
# True: the tables of cosines are kept in a global dictionary whose key is the head size and the dtype, without theta.
#   The first layer that is called fills it, and all other layers use its table, until a longer text comes: then the
#   layer that sees it first computes the table anew, with its own theta, for all. So a model's output also depends on
#   the models that ran before it in this process, and on their lengths. equinox.clear_caches() cures one model.
# Hurt: models with two thetas, such as Gemma 3 and ModernBERT (local and global layers); comparisons of thetas and
#   stretched contexts in one process; a model of Llama 3 that is evaluated after one of Llama 2.
# Output seen:
#   score of a key 2,000 tokens back, by our own formula: theta 10,000: 1.3, theta 1,000,000: 24.0
#   theta 1,000,000 in a fresh process: 24.0
#   local layer 10,000, then global layer 1,000,000: [1.3, 1.3]
#   the layer of 1,000,000 sees a longer text, then both: [24.0, 24.0]
#   with clear_caches() before each layer: [1.3, 24.0]
. "$(dirname "$0")/common.sh"
venv equinox==0.13.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

"$python" - <<'PY'
import equinox as eqx
import jax.numpy as jnp
import numpy as np

def score(layer, length=2048, distance=2000):
    rotated = layer(jnp.ones((length, 64)))
    return round(float(rotated[distance] @ rotated[0]), 1)

def formula(theta, distance=2000):
    return round(float(2 * np.cos(distance * theta ** (-np.arange(0, 64, 2) / 64)).sum()), 1)

local, everywhere = eqx.nn.RotaryPositionalEmbedding(64, theta=1e4), eqx.nn.RotaryPositionalEmbedding(64, theta=1e6)
wanted = [formula(1e4), formula(1e6)]
print(f"score of a key 2,000 tokens back, by our own formula: theta 10,000: {wanted[0]}, theta 1,000,000: {wanted[1]}")
alone = score(everywhere)
print(f"theta 1,000,000 in a fresh process: {alone}")
eqx.clear_caches()
layers = [score(local), score(everywhere)]
print(f"local layer 10,000, then global layer 1,000,000: {layers}")
score(everywhere, length=4096)
longer = [score(local), score(everywhere)]
print(f"the layer of 1,000,000 sees a longer text, then both: {longer}")
cleared = []
for layer in (local, everywhere):
    eqx.clear_caches()
    cleared.append(score(layer))
print(f"with clear_caches() before each layer: {cleared}")
assert cleared == wanted and alone == wanted[1] and wanted[1] - wanted[0] > 20
assert layers == [wanted[0]] * 2 and longer == [wanted[1]] * 2
PY
