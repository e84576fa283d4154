#!/usr/bin/env bash
# Muon of optax and of keras orthogonalizes the biases of attention and leaves its weights to Adam
# Versions: optax 0.2.8, flax 0.12.8 (nnx), keras 3.15.1, jax 0.10.2 (CPU; 4 layers, 64 dimensions).
# Guess: muon(learning_rate) treats the weights of the layers by Muon, and biases, gains of norms by Adam, as "2D
#   parameters, i.e. matrices" says.
# True: an array with two dimensions is a matrix, whatever it is. flax and keras keep the weight of a query projection
#   as (inputs, heads, head size) and its bias as (heads, head size): the bias is orthogonalized, and the weight is left
#   to Adam, at Muon's learning rate. Layers stacked for nnx.scan have one dimension more: all their weights are left to
#   Adam, and the gains of their norms, now (layers, dimensions), are orthogonalized as one matrix, biases too. In optax
#   the embedding is Muon's too. optax can be told by muon_weight_dimension_numbers, keras cannot.
# Hurt: comparisons of Muon and Adam in jax: in a scanned model Muon trains no weight of any layer. At a learning rate
#   for Muon, the steps of the weights left to Adam are 14 to 27 times as large as those of the others.
# Output seen:
#   a list of layers:
#     Muon, root mean square of the first update: attention.query.bias 0.0104, up.kernel 0.0021, down.kernel 0.0011, embedding.embedding 0.0011
#     Adam, root mean square of the first update: attention.query.kernel 0.0295, attention.out.kernel 0.0295, up.bias 0.0295, mlp_norm.scale 0.0295
#   scanned layers:
#     Muon, root mean square of the first update: up.bias 0.0084, mlp_norm.scale 0.0093, embedding.embedding 0.0011
#     Adam, root mean square of the first update: attention.query.kernel 0.0295, attention.query.bias 0.0295, attention.out.kernel 0.0295, up.kernel 0.0295, down.kernel 0.0295
#   keras, Muon's of 10 variables: attention/query/bias attention/key/bias attention/value/bias mlp/kernel
. "$(dirname "$0")/common.sh"
venv optax==0.2.8 flax==0.12.8 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

KERAS_BACKEND=jax "$python" - <<'PY'
import jax
import jax.numpy as jnp
import keras
import optax
from flax import nnx
class Layer(nnx.Module):
    def __init__(self, rngs):
        self.attention_norm, self.mlp_norm = nnx.LayerNorm(64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=64, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)
class Model(nnx.Module):
    def __init__(self, scanned):
        rngs = nnx.Rngs(0)
        self.embedding, self.norm = nnx.Embed(256, 64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)
        self.layers = nnx.vmap(Layer)(rngs.fork(split=4)) if scanned else nnx.List([Layer(rngs) for _ in range(4)])
seen = {}
for scanned in (False, True):
    parameters = nnx.state(Model(scanned), nnx.Param)
    gradients = jax.tree.map(lambda parameter: jax.random.normal(jax.random.key(1), parameter.shape), parameters)
    optimizer = optax.contrib.muon(0.02)
    state = optimizer.init(parameters)
    updates, _ = optimizer.update(gradients, state, parameters)
    muon = {jax.tree_util.keystr(path).split(".mu")[-1]
            for path, _ in jax.tree_util.tree_leaves_with_path(state.inner_states["muon"])}
    steps = {"Muon": {}, "Adam": {}}
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        name = jax.tree_util.keystr(path)
        kind = ".".join(part.key for part in path if isinstance(getattr(part, "key", None), str) and part.key != "layers")
        steps["Muon" if name in muon else "Adam"][kind] = f"{float(jnp.sqrt((update ** 2).mean())):.4f}"
    print("scanned layers:" if scanned else "a list of layers:")
    kinds = ("attention.query.kernel", "attention.query.bias", "attention.out.kernel", "up.kernel", "down.kernel", "up.bias",
             "mlp_norm.scale", "embedding.embedding")
    for name, sizes in steps.items():
        print(f"  {name}, root mean square of the first update:", ", ".join(f"{k} {sizes[k]}" for k in kinds if k in sizes))
    seen[scanned] = {name: set(sizes) for name, sizes in steps.items()}
assert {"attention.query.bias", "embedding.embedding", "up.kernel", "down.kernel"} <= seen[False]["Muon"]
assert {"attention.query.kernel", "attention.key.kernel", "attention.out.kernel"} <= seen[False]["Adam"]
assert {"mlp_norm.scale", "attention_norm.scale", "up.bias"} <= seen[True]["Muon"]
assert not any("kernel" in kind for kind in seen[True]["Muon"])
x = keras.Input((32, 64))
model = keras.Model(x, keras.layers.Dense(64, name="mlp")(keras.layers.MultiHeadAttention(4, 16, name="attention")(x, x)))
optimizer = keras.optimizers.Muon()
optimizer.build(model.trainable_variables)
muon = [variable.path for variable, adam in zip(model.trainable_variables, optimizer.adam_velocities) if adam is None]
print("keras, Muon's of", len(model.trainable_variables), "variables:", *muon)
assert muon == ["attention/query/bias", "attention/key/bias", "attention/value/bias", "mlp/kernel"]
PY
