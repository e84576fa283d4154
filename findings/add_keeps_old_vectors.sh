#!/usr/bin/env bash
# chromadb: `add` with ids that are there keeps the old vectors, and `get_or_create_collection` the old metric
# Versions: chromadb 1.5.9, numpy 2.4.6 (500 passages, 100 questions, 32 dimensions; a folder that is kept).
# Guess: adding the passages of a second checkpoint replaces those of the first, or is an error, as is another metric.
# True: a row whose id is there is left out, with its vector, its text and its metadata, without an error or a warning,
#   and count() is right. The questions of the second checkpoint are then compared with the passages of the first one:
#   hits at 1 fall from 1.00 to .71, and to .00 for another model. A collection of the same name keeps its metric,
#   whatever `configuration` asks for. upsert() is right.
# Hurt: comparisons of checkpoints or chunk sizes in a folder that is kept; corrected texts; runs that were interrupted
#   and changed.
# Output seen:
#   add first checkpoint: 500 rows, hits at 1 1.00, text of the first hit: first checkpoint, l2
#   add later checkpoint: 500 rows, hits at 1 0.71, text of the first hit: first checkpoint, l2
#   add other model: 500 rows, hits at 1 0.00, text of the first hit: first checkpoint, l2
#   upsert other model: 500 rows, hits at 1 1.00, text of the first hit: other model, l2
. "$(dirname "$0")/common.sh"
venv chromadb==1.5.9 numpy==2.4.6

"$python" - "$work/index" <<'PY'
import sys
import chromadb
import numpy as np

rng = np.random.default_rng(0)
first = rng.normal(size=(500, 32))
later = first + 1.5 * rng.normal(size=(500, 32))               # a later checkpoint of the same model
other = rng.normal(size=(500, 32))                             # another model
ids = [f"passage {i}" for i in range(500)]
client = chromadb.PersistentClient(sys.argv[1], settings=chromadb.Settings(anonymized_telemetry=False))

def index(method, vectors, text, metric="l2"):
    collection = client.get_or_create_collection("passages", configuration={"hnsw": {"space": metric}})
    getattr(collection, method)(ids=ids, embeddings=vectors, documents=[text] * 500)
    found = collection.query(query_embeddings=vectors[:100] + 0.1 * rng.normal(size=(100, 32)), n_results=1)
    hits = np.mean([row[0] == name for row, name in zip(found["ids"], ids)])
    kept, metric = found["documents"][0][0], collection.configuration["hnsw"]["space"]
    print(f"{method} {text}: {collection.count()} rows, hits at 1 {hits:.2f}, text of the first hit: {kept}, {metric}")
    return hits, kept, metric

assert index("add", first, "first checkpoint")[0] == 1
hits, kept, metric = index("add", later, "later checkpoint", "cosine")
assert 0.1 < hits < 0.9 and kept == "first checkpoint" and metric == "l2"
assert index("add", other, "other model")[:2] == (0, "first checkpoint")
assert index("upsert", other, "other model")[:2] == (1, "other model")
PY
