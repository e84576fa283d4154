#!/usr/bin/env bash
# With accumulation keras runs the learning rate's schedule by batches: one of 20 updates ends after 5
# Versions: keras 3.15.1 (jax 0.10.2, CPU), numpy 2.4.6 (plain SGD with a gradient of 1, 80 batches).
# Guess: with gradient_accumulation_steps=4 a schedule goes by `optimizer.iterations`, which counts updates.
# True: `iterations` counts updates, 20 for 80 batches, and the bias correction of Adam goes by it; the schedule goes
#   by a counter of batches. A warm-up of 4 updates is over after the first, and a decay that ends at update 20 ends at
#   update 5: the other 15 have a rate of 0, and nothing moves. Each update has the rate of its last batch.
# Hurt: runs on smaller cards, with the schedule of the run that they repeat; comparisons by accumulation; restarts that
#   take the schedule's place from `iterations`.
# Output seen:
#   accumulation 1: 20 updates, way 10.0, rate of updates 1 0.00, 2 0.25, 4 0.75, 5 1.00, 10 0.78, 16 0.22
#   accumulation 4: 20 updates, way 2.5, rate of updates 1 0.75, 2 0.92, 4 0.22, 5 0.01, 10 0.00, 16 0.00
. "$(dirname "$0")/common.sh"
venv keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

KERAS_BACKEND=jax "$python" - <<'PY'
import keras
import numpy as np

moved = {}
for steps in (None, 4):
    schedule = keras.optimizers.schedules.CosineDecay(0.0, decay_steps=16, warmup_target=1.0, warmup_steps=4)
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=steps)
    weight = keras.Variable(np.zeros(1, np.float32))
    places = [0.0]
    for batch in range(20 * (steps or 1)):
        optimizer.apply([keras.ops.ones(1)], [weight])
        if (batch + 1) % (steps or 1) == 0:
            places.append(abs(float(weight[0])))
    rates = np.diff(places)
    assert int(optimizer.iterations) == len(rates) == 20
    moved[steps] = places[-1]
    print(f"accumulation {steps or 1}: {int(optimizer.iterations)} updates, way {places[-1]:.1f}, rate of updates "
          + ", ".join(f"{number} {rates[number - 1]:.2f}" for number in (1, 2, 4, 5, 10, 16)))
assert abs(moved[None] - 10) < 1 and abs(moved[4] - 2.5) < 0.5
PY
