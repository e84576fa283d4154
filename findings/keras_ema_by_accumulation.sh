#!/usr/bin/env bash
# In Keras gradient accumulation shortens the average of the weights by the number of accumulated batches
# Versions: keras 3.15.1 (JAX backend), jax 0.10.2 (one weight that falls by a tenth in each update).
# Guess: 20 updates with use_ema give the same average, however each is cut into batches. The weights change in
#   updates alone, and the documentation says that the frequency of the average looks at accumulated iterations.
# True: the average takes the weights after each batch, changed or not. With n batches to an update the momentum m is
#   about m to the power of n: at .99 and 32 batches .72. Weights, weight decay and the counter of updates are right.
# Hurt: comparisons at equal batch size on smaller cards: the average that fit leaves in the model is hardly one.
# Output seen:
#   1 batches to an update, 20 updates: weight 0.1216, average 0.5359; expected 0.5359, at momentum 0.9500 0.5359
#   2 batches to an update, 20 updates: weight 0.1216, average 0.3716; expected 0.5359, at momentum 0.9025 0.3591
#   4 batches to an update, 20 updates: weight 0.1216, average 0.2364; expected 0.5359, at momentum 0.8145 0.2200
#   8 batches to an update, 20 updates: weight 0.1216, average 0.1702; expected 0.5359, at momentum 0.6634 0.1556
. "$(dirname "$0")/common.sh"
venv keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

KERAS_BACKEND=jax "$python" - <<'PY'
import keras
import numpy as np
momentum = 0.95
def train(accumulation, use_ema):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    optimizer = keras.optimizers.SGD(0.05, use_ema=use_ema, ema_momentum=momentum,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None)
    model.compile(optimizer=optimizer, loss="mse")
    ones = np.ones((20 * 8, 1), "float32")
    model.fit(ones, 0 * ones, batch_size=8 // accumulation, verbose=0)  # leaves the average in the model, if there is one
    return model.get_weights()[0].item(), int(optimizer.iterations)
def expected(momentum):
    average = 0.9
    for update in range(2, 21):
        average = momentum * average + (1 - momentum) * 0.9 ** update
    return average
for accumulation in (1, 2, 4, 8):
    last, _ = train(accumulation, False)
    average, updates = train(accumulation, True)
    power = expected(momentum ** accumulation)
    print(f"{accumulation} batches to an update, {updates} updates: weight {last:.4f}, average {average:.4f}; "
          f"expected {expected(momentum):.4f}, at momentum {momentum ** accumulation:.4f} {power:.4f}")
    assert updates == 20 and abs(last - 0.9 ** 20) < 1e-4 and abs(average - power) < 0.03
    assert accumulation > 1 or abs(average - expected(momentum)) < 1e-3
PY
