#!/usr/bin/env bash
# usearch: an index in int8 forgets the norms of its vectors: inner product and L2 become the cosine
# Versions: usearch 2.26.6, numpy 2.4.6 (5,000 vectors of 64 numbers whose norms vary by a factor of about two).
# Guess: dtype="i8" rounds the numbers, and the order of an inner product or an L2 distance is nearly kept, as in f16.
# True: each vector, stored or asked for, is divided by its own norm before it becomes int8, whatever the metric is. A
#   vector and its tenfold are equal, with a distance of 0. Most of the ten best documents are others, in an exact
#   search too. Distances are in other units, by a factor that depends on each vector. There is no warning.
# Hurt: maximum inner product search (unnormalized embeddings, keys of attention), L2 of hidden states, limits on
#   distances.
# Output seen:
#   ip   f32: 1.00 of the ten best found, 0.28 of the ten best by cosine
#   ip   f16: 1.00 of the ten best found, 0.28 of the ten best by cosine
#   ip   i8 : 0.28 of the ten best found, 0.94 of the ten best by cosine
#   l2sq f32: 1.00 of the ten best found, 0.35 of the ten best by cosine
#   l2sq f16: 1.00 of the ten best found, 0.36 of the ten best by cosine
#   l2sq i8 : 0.35 of the ten best found, 0.94 of the ten best by cosine
#   L2 in int8 from a vector to itself and to its tenfold: 0.0 0.0
. "$(dirname "$0")/common.sh"
venv usearch==2.26.6 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from usearch.index import Index

rng = np.random.default_rng(0)
documents = rng.normal(size=(5000, 64))
documents *= np.exp(0.35 * rng.normal(size=(5000, 1))) / np.linalg.norm(documents, axis=1, keepdims=True)
documents = documents.astype(np.float32)
queries = documents[:200] + 0.05 * rng.normal(size=(200, 64)).astype(np.float32)
products = queries @ documents.T
unit = documents / np.linalg.norm(documents, axis=1, keepdims=True)
norms = (documents ** 2).sum(1)
best = {"ip": products, "l2sq": 2 * products - norms, "cosine": queries @ unit.T}
best = {name: np.argsort(-scores, axis=1)[:, :10] for name, scores in best.items()}

def share(found, right):
    return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, right)])

seen = {}
for metric in ("ip", "l2sq"):
    for dtype in ("f32", "f16", "i8"):
        index = Index(ndim=64, metric=metric, dtype=dtype)
        index.add(np.arange(5000), documents)
        found = index.search(queries, 10, exact=True).keys
        seen[metric, dtype] = share(found, best[metric]), share(found, best["cosine"])
        print("{:4} {:3}: {:.2f} of the ten best found, {:.2f} of the ten best by cosine".format(
            metric, dtype, *seen[metric, dtype]))
    assert seen[metric, "f16"][0] > 0.99 and seen[metric, "i8"][0] < 0.6 and seen[metric, "i8"][1] > 0.9
index = Index(ndim=64, metric="l2sq", dtype="i8")
index.add(np.arange(2), np.stack((documents[0], 10 * documents[0])))
distances = index.search(documents[0], 2, exact=True).distances
print("L2 in int8 from a vector to itself and to its tenfold:", *distances)
assert not distances.any()
PY
