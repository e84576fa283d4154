#!/usr/bin/env bash
# optax's cross-entropy takes label -100, which others ignore, as token V-100, and trains it
# Versions: optax 0.2.8, jax 0.10.2, jaxlib 0.10.2 (CPU; a vocabulary of 1,000, labels of chats from data collators).
# Guess: softmax_cross_entropy_with_integer_labels leaves out -100, as torch does, or makes it an error or NaN.
# True: the label is an index of jnp.take_along_axis, where a negative one counts from the end. Each masked place is
#   trained to give token V-100, and its loss looks as any other. Nothing warns. Only a vocabulary below 100 gives NaN, as
#   a label that is too large does. The docstring says that labels are assumed to be 0 to V-1. where=labels >= 0 cures it,
#   if the sum is divided by the number of labels that are left.
# Hurt: fine-tuning in JAX with labels from transformers' or trl's collators, where prompts and padding are -100, usually
#   most of the tokens: the loss falls well, and the model says one rare token.
# Output seen:
#   losses of untrained logits for labels [5, -100, -100, 7]: [6.91, 6.91, 6.91, 6.91]
#   the same with a vocabulary of 50: [3.91, nan, nan, 3.91]
#   after training on half masked labels: loss 1.05, likeliest token 900 with p 0.50, right ones 0.50
#   with where=labels >= 0: loss 0.70, likeliest token 5 with p 0.50, right ones 0.99
. "$(dirname "$0")/common.sh"
venv optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

"$python" - <<'PY'
import jax
import jax.numpy as jnp
import optax
labels = jnp.array([5, -100, -100, 7])

def losses(vocabulary):
    found = optax.softmax_cross_entropy_with_integer_labels(jnp.zeros((4, vocabulary)), labels)
    return [round(float(loss), 2) for loss in found]

large, small = losses(1000), losses(50)
print(f"losses of untrained logits for labels {labels.tolist()}: {large}")
print(f"the same with a vocabulary of 50: {small}")

def train(masked):
    def loss(bias):
        kept = labels >= 0 if masked else jnp.ones(4, bool)
        each = optax.softmax_cross_entropy_with_integer_labels(jnp.tile(bias, (4, 1)), labels, where=kept)
        return each.sum() / kept.sum()
    optimizer = optax.adam(0.1)

    def update(carry, _):
        bias, state = carry
        steps, state = optimizer.update(jax.grad(loss)(bias), state)
        return (optax.apply_updates(bias, steps), state), None
    bias = jnp.zeros(1000)
    (bias, _), _ = jax.lax.scan(update, (bias, optimizer.init(bias)), length=300)
    chances = jax.nn.softmax(bias)
    return float(loss(bias)), int(chances.argmax()), float(chances.max()), float(chances[jnp.array([5, 7])].sum())

seen = {}
for name, masked in (("after training on half masked labels", False), ("with where=labels >= 0", True)):
    seen[masked] = train(masked)
    print("{}: loss {:.2f}, likeliest token {} with p {:.2f}, right ones {:.2f}".format(name, *seen[masked]))
assert large == [6.91] * 4 and small[0] == small[3] == 3.91 and str(small[1]) == str(small[2]) == "nan"
assert seen[False][1] == 900 and seen[False][3] < 0.55 and seen[True][1] in (5, 7) and seen[True][3] > 0.95
PY
