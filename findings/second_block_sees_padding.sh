#!/usr/bin/env bash
# Keras's MultiHeadAttention takes the mask from its input: from the second post-norm block on, padding is attended to
# Versions: keras 3.15.1, jax 0.10.2 (CPU; random models of 1 to 3 blocks; the same with torch 2.13.0 as the backend).
# Guess: with Embedding(mask_zero=True) the mask goes with the tensor through all layers, and MultiHeadAttention reads
#   it: a text of three tokens has the same outputs with three tokens of padding after it, and the loss leaves them out.
# True: MultiHeadAttention reads the mask and deletes it from the tensor that it was given. In LayerNormalization(x +
#   attention(x, x)), the block of the first transformers and of BERT, x is used again: the sum has no mask. The next
#   attention sees the padding, and the loss counts it, already with one block. There is no warning. In a pre-norm block
#   attention gets a tensor of its own, LayerNormalization(x), and all is right. GroupQueryAttention deletes nothing.
# Hurt: encoders as in the papers and tutorials, with two blocks or more: outputs depend on the padding, and so on the
#   longest text of the batch; losses and accuracies of tokens count the padding.
# Output seen:
#   post-norm, MultiHeadAttention, 1 to 3 blocks: padding changes outputs by 0.00 1.48 1.94 (loss counts it)
#   pre-norm, MultiHeadAttention, 1 to 3 blocks: padding changes outputs by 0.00 0.00 0.00 (loss leaves it out)
#   post-norm, GroupQueryAttention, 1 to 3 blocks: padding changes outputs by 0.00 0.00 0.00 (loss leaves it out)
. "$(dirname "$0")/common.sh"
venv keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import keras
import numpy as np
from keras import layers
padded, alone = np.array([[1, 2, 3, 0, 0, 0]]), np.array([[1, 2, 3]])
def attention(x, kind):
    if kind == "GroupQueryAttention":
        return layers.GroupQueryAttention(16, 2, 2)(x, x)
    return layers.MultiHeadAttention(2, 16)(x, x)
def encoder(blocks, norm, kind):
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(20, 32, mask_zero=True)(tokens)
    for _ in range(blocks):
        if norm == "post":
            x = layers.LayerNormalization()(layers.Add()([x, attention(x, kind)]))
        else:
            x = layers.Add()([x, attention(layers.LayerNormalization()(x), kind)])
    return keras.Model(tokens, x)
differences, counted = {}, {}
def loss(model, label_of_padding):
    labels = np.array([[1, 2, 3] + [label_of_padding] * 3])
    return model.evaluate(padded, labels, verbose=0)
for norm, kind in (("post", "MultiHeadAttention"), ("pre", "MultiHeadAttention"), ("post", "GroupQueryAttention")):
    for blocks in (1, 2, 3):
        model = encoder(blocks, norm, kind)
        outputs = np.asarray(model(padded))[:, :3]
        differences[norm, kind, blocks] = float(np.abs(outputs - np.asarray(model(alone))).max())
    model = encoder(1, norm, kind)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    counted[norm, kind] = loss(model, 0) != loss(model, 7)
    print(f"{norm}-norm, {kind}, 1 to 3 blocks: padding changes outputs by",
          *(f"{differences[norm, kind, blocks]:.2f}" for blocks in (1, 2, 3)),
          f"(loss {'counts it' if counted[norm, kind] else 'leaves it out'})")
lost = "post", "MultiHeadAttention"
for (norm, kind, blocks), difference in differences.items():
    assert difference > 0.1 if (norm, kind) == lost and blocks > 1 else difference < 1e-4
assert all(counted[way] == (way == lost) for way in counted)
PY
