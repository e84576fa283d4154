#!/usr/bin/env bash
# In Keras 3 the name of a layer excludes nothing from weight decay: layer norms decay that were excluded
# Versions: keras 3.15.1, jax 0.10.2 (CPU; one attention layer with norms, 100 updates by a loss without a gradient).
# Guess: exclude_from_weight_decay(var_names=["layer_norm", "bias"]), the list of BERT's recipe, leaves the gains and
#   shifts of all norms as they are. The documentation says that the string is to appear "in a variable's name".
# True: in Keras 2 a variable's name was attention_layer_norm/gamma. In Keras 3 its name is gamma alone, and the long
#   form is its path, which is not searched. The name of a layer matches nothing and nothing says so: gains of norms
#   decay like weights, and so does a head or an embedding that is excluded by the name of its layer. "bias" works,
#   which hides the rest. What works: "gamma" and "beta", or the variables themselves in var_list.
# Hurt: training with a recipe of Keras 2 or of another framework, with high weight decay above all; comparisons of
#   weight decays.
# Output seen:
#   var_names=['layer_norm', 'lm_head', 'bias']: gain of a norm 0.37, its shift 0.37, head 0.37, its bias 1.00
#   var_names=['gamma', 'beta', 'bias']: gain of a norm 1.00, its shift 1.00, head 0.37, its bias 1.00
. "$(dirname "$0")/common.sh"
venv keras==3.15.1 jax==0.10.2 numpy==2.4.6
export KERAS_BACKEND=jax JAX_PLATFORMS=cpu

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import keras
import numpy as np
from keras import layers
inputs = keras.Input((8,), dtype="int32")
x = layers.Embedding(50, 16, name="token_embedding")(inputs)
normed = layers.LayerNormalization(name="attention_layer_norm")(x)
x = x + layers.MultiHeadAttention(2, 8, name="attention")(normed, normed)
x = layers.LayerNormalization(name="output_layer_norm")(x)
model = keras.Model(inputs, layers.Dense(50, name="lm_head")(x))
weights = {variable.path: variable for variable in model.trainable_variables}
assert weights["output_layer_norm/gamma"].name == "gamma"

def train(names):
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=names)
    model.compile(optimizer, loss=lambda labels, logits: 0 * keras.ops.mean(logits))
    tokens = np.zeros((100, 8), "int32")
    model.fit(tokens, tokens, batch_size=1, verbose=0)
    norms = [float(weights[f"{place}_layer_norm/{name}"].numpy().mean())
             for name in ("gamma", "beta") for place in ("attention", "output")]
    assert norms[0] == norms[1] and norms[2] == norms[3]
    head = [float(weights[f"lm_head/{name}"].numpy().mean()) for name in ("kernel", "bias")]
    ends = norms[0], norms[2], *head
    print("var_names={}: gain of a norm {:.2f}, its shift {:.2f}, head {:.2f}, its bias {:.2f}".format(names, *ends))
    return ends

by_layer, by_variable = train(["layer_norm", "lm_head", "bias"]), train(["gamma", "beta", "bias"])
assert np.allclose(by_layer, (0.99 ** 100, 0.99 ** 100, 0.99 ** 100, 1), atol=1e-4)
assert np.allclose(by_variable, (1, 1, 0.99 ** 100, 1), atol=1e-4)
PY
