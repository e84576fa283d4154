#!/usr/bin/env bash
# rank_bm25: a word of all documents weighs more than a word of a fifth of them
# Versions: rank-bm25 0.2.2, bm25s 0.3.16, numpy 2.4.6 (2,000 documents of 60 rare words and some of eight common ones).
# Guess: BM25 weighs a word the less the more documents it is in, and a word of all documents by about 0, or less.
# True: BM25Okapi replaces each weight below 0 by a quarter of the mean weight of all words (epsilon=0.25). Most words of a
#   corpus are rare and weigh about 7. So a word of half of the documents weighs 0, and one of 51 %, or of all of them,
#   weighs 1.7, as a word of a seventh does. The larger the corpus is, the more they weigh. bm25s falls without a step.
# Hurt: keyword search, baselines and hard negatives with questions in whole sentences, if stop words stay in, as in
#   LangChain's BM25Retriever, which splits at spaces: "is", "the" and "of" decide more than a subject that is common in
#   the field.
# Output seen:
#   weight of a word of 1%, 10%, 20%, 40%, 50%, 51%, 90%, 95%, 100% of the documents
#   rank_bm25: 4.57 2.20 1.39 0.41 0.00 1.72 1.72 1.72 1.72
#   bm25s:     4.58 2.30 1.61 0.92 0.69 0.67 0.11 0.05 0.00
#   query "what is the size of the model", the first 100 that have "model", a word of 40%: rank_bm25 76, bm25s 100
. "$(dirname "$0")/common.sh"
venv rank-bm25==0.2.2 bm25s==0.3.16 numpy==2.4.6

"$python" - <<'PY'
import random
import bm25s
import numpy as np
from bm25s.scoring import _score_idf_lucene
from rank_bm25 import BM25Okapi
random.seed(0)
shares = {"one": 0.01, "ten": 0.1, "loss": 0.2, "model": 0.4, "half": 0.5, "more": 0.51, "of": 0.9, "the": 0.95, "is": 1.0}
corpus = [[f"rare{random.randrange(100_000)}" for _ in range(60)] for _ in range(2000)]
for word, share in shares.items():
    for document in random.sample(corpus, int(2000 * share)):
        document += [word] * (random.randint(1, 6) if share > 0.6 else 1)
okapi, other = BM25Okapi(corpus), bm25s.BM25()
other.index(corpus, show_progress=False)
def weight(word):
    count = sum(word in document for document in corpus)
    return _score_idf_lucene(count, len(corpus))
print("weight of a word of", ", ".join(f"{share:.0%}" for share in shares.values()), "of the documents")
print("rank_bm25:", *(f"{okapi.idf[word]:.2f}" for word in shares))
print("bm25s:    ", *(f"{weight(word):.2f}" for word in shares))
query, hits = "what is the size of the model".split(), []
for scores in (okapi.get_scores(query), other.get_scores(query)):
    hits.append(sum("model" in corpus[i] for i in np.argsort(-scores)[:100]))
print(f'query "{" ".join(query)}", the first 100 that have "model", a word of 40%: rank_bm25 {hits[0]}, bm25s {hits[1]}')
assert okapi.idf["half"] < 0.01 and okapi.idf["is"] == okapi.idf["the"] == okapi.idf["more"] > okapi.idf["loss"]
assert hits[0] < 85 and hits[1] == 100
PY
