#!/usr/bin/env bash
# numpy's generator of (seed, 0) is the generator of seed, and (5, 1) that of a single number
# Versions: numpy 2.4.6.
# Guess: default_rng([seed, step]) is a stream of its own for each pair, also at step 0.
# True: the words of a seed are filled up with zeros, and a number of more than 32 bits is cut into words. So [5,
#   0] and [5, 0, 0] are 5, and [5, 1] is 5 + 2**32.
# Hurt: streams for (seed, rank), (seed, step) or (seed, document) beside a stream for seed: rank 0 and step 0
#   draw the numbers that the initialisation or the shuffling has drawn.
# Output seen:
#   first number by seed: 5: 0.805003, [5, 0]: 0.805003, [5, 0, 0]: 0.805003, [0, 5]: 0.382136, [5, 1]: 0.774204, 4294967301: 0.774204
#   places at which the permutations of 5 and [5, 0] agree: 1000 of 1000
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6

"$python" - <<'PY'
import numpy as np
first = lambda seed: round(float(np.random.default_rng(seed).random()), 6)
values = {str(seed): first(seed) for seed in (5, [5, 0], [5, 0, 0], [0, 5], [5, 1], 5 + 2**32)}
print("first number by seed:", ", ".join(f"{seed}: {value}" for seed, value in values.items()))
order = [np.random.default_rng(seed).permutation(1000) for seed in (5, [5, 0])]
print(f"places at which the permutations of 5 and [5, 0] agree: {(order[0] == order[1]).sum()} of 1000")
v = list(values.values())
assert v[0] == v[1] == v[2] != v[3] and v[4] == v[5] != v[0] and (order[0] == order[1]).all()
PY
