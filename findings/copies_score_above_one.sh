#!/usr/bin/env bash
# llama-index: NDCG, average precision and hit rate rise above 1 if a document is retrieved twice
# Versions: llama-index-core 0.14.25 (one query; ids of documents, as several chunks of a document are retrieved).
# Guess: each relevant document counts once; NDCG and average precision are at most 1.
# True: each retrieved id that is expected counts, again and again, and the sum is divided by the number of expected
#   ids. One relevant document whose three chunks come first has an average precision of 3 and an NDCG of 2.13. With two
#   relevant documents a retriever that finds one of them, in three chunks, beats one that finds both.
# Hurt: retrieval that is evaluated by documents, or by pages; choices of the chunk size: smaller chunks score higher.
# Output seen:
#   one of one            a x y: AP 1.00, NDCG 1.00, NDCG exponential 1.00, hit rate 1.00, recall 1.00, MRR 1.00
#   one of one, 3 chunks  a a a: AP 3.00, NDCG 2.13, NDCG exponential 2.13, hit rate 3.00, recall 1.00, MRR 1.00
#   both of two           a b x: AP 1.00, NDCG 1.00, NDCG exponential 1.00, hit rate 1.00, recall 1.00, MRR 1.00
#   one of two, 3 chunks  a a a: AP 1.50, NDCG 1.31, NDCG exponential 1.31, hit rate 1.50, recall 0.50, MRR 1.00
. "$(dirname "$0")/common.sh"
venv llama-index-core==0.14.25

"$python" - <<'PY'
from llama_index.core.evaluation.retrieval.metrics import MRR, NDCG, AveragePrecision, HitRate, Recall

metrics = {"AP": AveragePrecision(), "NDCG": NDCG(), "NDCG exponential": NDCG(mode="exponential"),
           "hit rate": HitRate(use_granular_hit_rate=True), "recall": Recall(), "MRR": MRR()}
rows = {"one of one": (["a"], ["a", "x", "y"]), "one of one, 3 chunks": (["a"], ["a", "a", "a"]),
        "both of two": (["a", "b"], ["a", "b", "x"]), "one of two, 3 chunks": (["a", "b"], ["a", "a", "a"])}
seen = {}
for name, (expected, retrieved) in rows.items():
    seen[name] = row = {metric: m.compute(expected_ids=expected, retrieved_ids=retrieved).score
                        for metric, m in metrics.items()}
    print(f"{name:21} {' '.join(retrieved)}: " + ", ".join(f"{metric} {score:.2f}" for metric, score in row.items()))
assert all(abs(score - 1) < 1e-9 for name in ("one of one", "both of two") for score in seen[name].values())
assert seen["one of one, 3 chunks"]["AP"] == 3 and seen["one of one, 3 chunks"]["NDCG"] > 2
assert all(seen["one of two, 3 chunks"][metric] > 1.2 for metric in ("AP", "NDCG", "NDCG exponential", "hit rate"))
PY
