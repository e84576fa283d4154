#!/usr/bin/env bash
# qdrant-client (local mode): fusion by scores puts the farthest documents first, if the distance is Euclid or Manhattan
# Versions: qdrant-client 1.20.0, numpy 2.4.6 (1,000 documents with two vectors each, 200 noisy queries).
# Guess: Fusion.DBSF adds up the normalized scores of two searches, so that the documents which are best in both come
#   first.
# True: the score of Euclid and Manhattan is the distance, small for near documents. The fusion takes the largest sum
#   all the same: the farthest of the documents found come first, and the right one is last of about 30. Of 200 queries
#   it finds 4, one of the two searches alone 127, and fusion by ranks (RRF) 182.
# Hurt: hybrid search that is tried out and evaluated in memory; it says that fusion does harm.
# Output seen:
#   how often of 200 the right document comes first, and its mean place
#   Cosine: one search 107 (place 3.9), RRF 170 (place 1.7), DBSF 188 (place 1.5)
#   Euclid: one search 127 (place 2.9), RRF 182 (place 1.3), DBSF 4 (place 33.5)
#   Manhattan: one search 124 (place 3.6), RRF 173 (place 1.5), DBSF 9 (place 32.1)
. "$(dirname "$0")/common.sh"
venv qdrant-client==1.20.0 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from qdrant_client import QdrantClient, models

rng = np.random.default_rng(0)
documents = rng.normal(size=(1000, 2, 8))
queries = documents[:200] + 0.5 * rng.normal(size=(200, 2, 8))
client = QdrantClient(":memory:")
print("how often of 200 the right document comes first, and its mean place")
for distance in (models.Distance.COSINE, models.Distance.EUCLID, models.Distance.MANHATTAN):
    name = distance.value
    vectors = models.VectorParams(size=8, distance=distance)
    client.create_collection(name, vectors_config={"a": vectors, "b": vectors})
    client.upsert(name, [models.PointStruct(id=i, vector={"a": a.tolist(), "b": b.tolist()})
                         for i, (a, b) in enumerate(documents)])

    def ranks(query):
        """The mean place of the right document and how often it is first; not found is 40."""
        places = []
        for i, (a, b) in enumerate(queries):
            points = client.query_points(name, limit=40, **query(a.tolist(), b.tolist())).points
            ids = [point.id for point in points]
            places.append(ids.index(i) if i in ids else 40)
        return places.count(0), np.mean(places) + 1

    def both(a, b):
        return dict(prefetch=[models.Prefetch(query=x, using=using, limit=20) for x, using in ((a, "a"), (b, "b"))])

    found = {"one search": ranks(lambda a, b: dict(query=a, using="a"))}
    for fusion in (models.Fusion.RRF, models.Fusion.DBSF):
        found[fusion.name] = ranks(lambda a, b: both(a, b) | dict(query=models.FusionQuery(fusion=fusion)))
    print(f"{name}: " + ", ".join(f"{key} {hits} (place {place:.1f})" for key, (hits, place) in found.items()))
    single, rrf, dbsf = (hits for hits, _ in found.values())
    assert min(rrf, dbsf) > single if name == "Cosine" else rrf > single > 100 and dbsf < 15
PY
