#!/usr/bin/env bash
# With flax's cache and is_causal=True each new token of MultiHeadAttention sees the first one alone
# Versions: flax 0.12.8 (nnx), jax 0.10.2 (CPU; 8 random tokens, 32 dimensions).
# Guess: is_causal=True, with which the layer was trained, is harmless or needed in decoding (decode=True): the newest
#   token sees all the tokens before it.
# True: jax.nn.dot_product_attention, to which the layer hands is_causal, aligns the triangle at the top left: query i
#   sees the keys up to i. The one query of a decoding step is number 0, so that it sees key 0 alone. What the layer
#   returns for each token is then the value of the first one. No error, no NaN. The cache's own mask alone is right.
#   local_window_size counts from the top left as well: the window of the last query lies at the start of the text.
# Hurt: generation from a model whose blocks call attention(x, is_causal=True) in training and in decoding alike;
#   decoding loops and chunks of a prompt with dot_product_attention.
# Output seen:
#   without cache, is_causal=True: distance to the right output 0.000, to the output of the first token 1.554
#   with cache, is_causal=False: distance to the right output 0.000, to the output of the first token 1.554
#   with cache, is_causal=True: distance to the right output 1.554, to the output of the first token 0.000
#   window of 4, the last two of 8 queries see keys [0, 1]
. "$(dirname "$0")/common.sh"
venv flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

"$python" - <<'PY'
import jax
import jax.numpy as jnp
from flax import nnx
x = jax.random.normal(jax.random.key(0), (1, 8, 32))
layer = nnx.MultiHeadAttention(num_heads=4, in_features=32, decode=False, rngs=nnx.Rngs(0))
whole = layer(x, mask=nnx.make_causal_mask(x[..., 0]))
first = layer(x[:, :1])
def decoded(is_causal):
    layer.init_cache(x.shape)
    return jnp.concatenate([layer(x[:, i:i + 1], decode=True, is_causal=is_causal) for i in range(8)], 1)
seen = {}
for name, output in (("without cache, is_causal=True", layer(x, is_causal=True)),
                     ("with cache, is_causal=False", decoded(False)), ("with cache, is_causal=True", decoded(True))):
    seen[name] = [float(jnp.linalg.norm((output - other)[:, 1:]) / jnp.linalg.norm(whole[:, 1:])) for other in (whole, first)]
    print(f"{name}: distance to the right output {seen[name][0]:.3f}, to the output of the first token {seen[name][1]:.3f}")
assert all(seen[name][0] < 1e-5 < 0.5 < seen[name][1] for name in list(seen)[:2])
assert seen["with cache, is_causal=True"][1] < 1e-5 and seen["with cache, is_causal=True"][0] > 0.5
q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 8, 1, 16))
def last_two(v):  # the last two queries of the text, with the keys of the whole text
    return jax.nn.dot_product_attention(q[:, -2:], k, v, local_window_size=(3, 0))
visible = [i for i in range(8) if jnp.abs(last_two(v.at[:, i].add(1)) - last_two(v)).max() > 1e-6]
print("window of 4, the last two of 8 queries see keys", visible)
assert visible == [0, 1]
PY
