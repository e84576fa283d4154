#!/usr/bin/env bash
# datasketch: MinHashLSH with a threshold of .8 misses more than half of the pairs of similarity .8
# Versions: datasketch 2.0.0, numpy 2.4.6 (500 pairs of sets with 900 members for each similarity, 128 permutations).
# Guess: threshold=.8 finds nearly all pairs whose Jaccard similarity is .8 or more, and a few below.
# True: the threshold is the middle of the curve of probability, and rather its lower part: missed and wrong pairs weigh
#   the same when the bands are chosen. At .8 these are 9 bands of 13 rows: a pair of .80 is found in 45 % of the cases,
#   of .85 in 69 %, and it takes .95 to find all. weights=(.1, .9) finds more; nothing tells how many are missed.
# Hurt: deduplication of training data and searches for test questions in it: rates of near copies are too low, and
#   pipelines with the same threshold and other bands differ by a factor of two.
# Output seen:
#   Jaccard similarity 0.70: 0.09 found by 9 bands of 13 rows, 0.46 with weights=(.1, .9) by 14 of 9
#   Jaccard similarity 0.75: 0.21 found by 9 bands of 13 rows, 0.68 with weights=(.1, .9) by 14 of 9
#   Jaccard similarity 0.80: 0.45 found by 9 bands of 13 rows, 0.88 with weights=(.1, .9) by 14 of 9
#   Jaccard similarity 0.85: 0.69 found by 9 bands of 13 rows, 0.98 with weights=(.1, .9) by 14 of 9
#   Jaccard similarity 0.90: 0.94 found by 9 bands of 13 rows, 1.00 with weights=(.1, .9) by 14 of 9
#   Jaccard similarity 0.95: 1.00 found by 9 bands of 13 rows, 1.00 with weights=(.1, .9) by 14 of 9
. "$(dirname "$0")/common.sh"
venv datasketch==2.0.0 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from datasketch import MinHash, MinHashLSH

rng = np.random.default_rng(0)
seen = {}

def found(similarity, **options):
    """The share of pairs of 900 members each that the index finds."""
    common = round(900 * 2 * similarity / (1 + similarity))
    index = MinHashLSH(threshold=0.8, num_perm=128, **options)
    hits = 0
    for i in range(500):
        words = rng.integers(1 << 62, size=1800 - common)
        pair = [MinHash(num_perm=128, seed=1) for _ in range(2)]
        for sketch, part in zip(pair, (words[:900], words[-900:])):
            sketch.update_batch([word.tobytes() for word in part])
        index.insert(i, pair[0])
        hits += i in index.query(pair[1])
    return hits / 500, index.b, index.r

for similarity in (0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
    plain, b, r = found(similarity)
    seen[similarity] = plain
    print(f"Jaccard similarity {similarity:.2f}: {plain:.2f} found by {b} bands of {r} rows", end="")
    more, b, r = found(similarity, weights=(0.1, 0.9))
    print(f", {more:.2f} with weights=(.1, .9) by {b} of {r}")
assert seen[0.8] < 0.5 and seen[0.85] < 0.8 and seen[0.95] > 0.97 and seen[0.7] < 0.15
PY
