#!/usr/bin/env bash
# On a CPU jax.device_put may share the memory of a numpy array, and then changes with it, even if told to copy
# Versions: jax 0.10.2 (arrays of 1,000 numbers at addresses that are and are not multiples of 64).
# Guess: device_put "returns a copy that resides on the device", as its documentation says, and JAX arrays never
#   change. may_alias=False ("x will be copied") makes sure of it.
# True: if the numpy array begins at a multiple of 64 bytes, the JAX array is its memory, with may_alias=False too.
#   Where numpy's arrays begin depends on chance and size, so that some batches are copied and others are not.
#   jnp.array copies. Known as jax issue 37830.
# Hurt: loaders that fill one buffer again and again: batches that wait in a queue have the next batch's tokens.
# Output seen:
#   device_put: tokens of batches 0 to 3 from an aligned buffer [3, 3, 3, 3], from another one [0, 1, 2, 3]
#   device_put(may_alias=False): tokens of batches 0 to 3 from an aligned buffer [3, 3, 3, 3], from another one [0, 1, 2, 3]
#   jnp.asarray: tokens of batches 0 to 3 from an aligned buffer [0, 1, 2, 3], from another one [0, 1, 2, 3]
#   jnp.array: tokens of batches 0 to 3 from an aligned buffer [0, 1, 2, 3], from another one [0, 1, 2, 3]
. "$(dirname "$0")/common.sh"
venv jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

"$python" - <<'PY'
import jax
import jax.numpy as jnp
import numpy as np
def buffer(offset):
    memory = np.zeros(2000, np.int32)
    start = (-memory.ctypes.data // 4) % 16 + offset // 4
    return memory[start:start + 1000]
def loaded(put, offset):
    tokens, batches = buffer(offset), []
    for step in range(4):
        tokens[:] = step
        batches.append(put(tokens))
        jax.block_until_ready(batches)
    return [int(batch.max()) for batch in batches]
ways = {"device_put": jax.device_put, "device_put(may_alias=False)": lambda x: jax.device_put(x, may_alias=False),
    "jnp.asarray": jnp.asarray, "jnp.array": jnp.array}
seen = {}
for way, put in ways.items():
    seen[way] = [loaded(put, offset) for offset in (0, 4)]
    print(f"{way}: tokens of batches 0 to 3 from an aligned buffer {seen[way][0]}, from another one {seen[way][1]}")
right, last = [0, 1, 2, 3], [3, 3, 3, 3]
assert seen["device_put"] == seen["device_put(may_alias=False)"] == [last, right] and seen["jnp.array"] == [right, right]
PY
