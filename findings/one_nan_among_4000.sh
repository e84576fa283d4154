#!/usr/bin/env bash
# hnswlib: one NaN vector among 4,000 takes the right first hit from half of the queries
# Versions: hnswlib 0.8.0, numpy 2.4.6 (4,000 random vectors, 32 dimensions, 200 queries, M=16, ef=200).
# Guess: a row of NaN, such as the mean of no tokens, is added without a word and never found. The other rows are not
#   concerned.
# True: the search keeps its best candidates in a heap, and compares each new distance with the heap's worst one. NaN is
#   neither greater nor smaller: once it is in the heap it can stay at either end. As the worst it refuses all candidates
#   after it, so that the search ends early; as the best it is the first hit. A larger ef meets more NaN and makes it
#   worse. mark_deleted() of those rows keeps them out of the heap, and mends the search.
# Hurt: indexes of embeddings in which an empty text or an overflow in float16 gave NaN: recall falls for all queries, and
#   the usual cure, a larger ef, lowers it. Deduplication does not find rows by themselves.
# Output seen:
#   rows of NaN   0: recall of ten 1.00, first hit right 1.00, rows that find themselves 1.00, recall after mark_deleted 1.00
#   rows of NaN   1: recall of ten 0.90, first hit right 0.51, rows that find themselves 0.99, recall after mark_deleted 1.00
#   rows of NaN   5: recall of ten 0.76, first hit right 0.36, rows that find themselves 0.86, recall after mark_deleted 1.00
#   rows of NaN  20: recall of ten 0.37, first hit right 0.14, rows that find themselves 0.31, recall after mark_deleted 1.00
#   rows of NaN  20, ef=1000: recall of ten 0.10
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 hnswlib==0.8.0

"$python" - <<'PY'
import hnswlib
import numpy as np
rng = np.random.default_rng(0)
rows, queries = rng.standard_normal((4000, 32)).astype("f4"), rng.standard_normal((200, 32)).astype("f4")
def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)
def recall(found, right):
    return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, right)])
def measure(broken):
    empty = np.linspace(400, 3999, broken).astype(int)
    embeddings, scores = rows.copy(), unit(queries) @ unit(rows).T
    with np.errstate(invalid="ignore"):
        embeddings[empty] = np.zeros(32) / 0
    scores[:, empty] = -2
    right = np.argsort(-scores, 1)[:, :10]
    index = hnswlib.Index("cosine", 32)
    index.init_index(4000, M=16, ef_construction=200, random_seed=1)
    index.add_items(embeddings, num_threads=1)
    index.set_ef(200)
    found = index.knn_query(queries, 10, num_threads=1)[0]
    itself = index.knn_query(rows[:300], 1, num_threads=1)[0][:, 0] == np.arange(300)
    index.set_ef(1000)
    wide = recall(index.knn_query(queries, 10, num_threads=1)[0], right)
    index.set_ef(200)
    for row in empty:
        index.mark_deleted(row)
    mended = recall(index.knn_query(queries, 10, num_threads=1)[0], right)
    return recall(found, right), np.mean(found[:, 0] == right[:, 0]), itself.mean(), mended, wide
for broken in (0, 1, 5, 20):
    ten, first, itself, mended, wide = measure(broken)
    print(f"rows of NaN {broken:3}: recall of ten {ten:.2f}, first hit right {first:.2f}, rows that find themselves "
          f"{itself:.2f}, recall after mark_deleted {mended:.2f}")
    assert first > 0.99 and ten > 0.99 if broken == 0 else first < 0.7
print(f"rows of NaN {broken:3}, ef=1000: recall of ten {wide:.2f}")
assert ten < 0.6 and wide < ten and mended > 0.98
PY
