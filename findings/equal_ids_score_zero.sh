#!/usr/bin/env bash
# BEIR's evaluation scores a perfect retriever 0, if query 7 has its answer in document 7
# Versions: beir 2.2.0, pytrec_eval-terrier 0.5.11, torch 2.13.0 (CPU; 100 queries, 100 documents, no model).
# Guess: queries and documents have ids of their own. Names do not matter: numbered from 0 on, both of them, a retriever
#   that ranks the right document first has an NDCG of 1.
# True: evaluate() first deletes each document whose id is the id of the query, for datasets in which a query is a
#   document as well (ignore_identical_ids=True). It logs that at the level info, which nobody sees by default. It deletes
#   from the results that it is given: evaluate_custom() does not delete, and so finds an MRR of 1 before evaluate()
#   and of 0 after it. Results that are saved afterwards lack the right documents.
# Hurt: pairs of one's own, row by row a question and its passage, with the row's number as the id of both: fine-tuned
#   embeddings, rerankers, filters of hard negatives. With a few equal numbers by chance the scores are a little too low.
# Output seen:
#   ids q0, d0     MRR before 1.00, NDCG@10 1.00, Recall@10 1.00, MRR after 1.00, documents left of the first query 100
#   ids 0, 0       MRR before 1.00, NDCG@10 0.00, Recall@10 0.00, MRR after 0.00, documents left of the first query 99
#   ids 0, 0, ignore_identical_ids=False: NDCG@10 1.00
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 beir==2.2.0 pytrec_eval-terrier==0.5.11

"$python" - <<'PY'
from beir.retrieval.evaluation import EvaluateRetrieval
def perfect(query, document):
    qrels = {query.format(i): {document.format(i): 1} for i in range(100)}
    results = {query.format(i): {document.format(j): 1 / (1 + abs(i - j)) for j in range(100)} for i in range(100)}
    return qrels, results
def mrr(qrels, results):
    return EvaluateRetrieval.evaluate_custom(qrels, results, [10], "mrr")["MRR@10"]
seen = []
for name, query, document in (("q0, d0", "q{}", "d{}"), ("0, 0", "{}", "{}")):
    qrels, results = perfect(query, document)
    before = mrr(qrels, results)
    ndcg, _, recall, _ = EvaluateRetrieval.evaluate(qrels, results, [10])
    seen.append((before, ndcg["NDCG@10"], recall["Recall@10"], mrr(qrels, results), len(results[query.format(0)])))
    print(f"ids {name:10} MRR before {before:.2f}, NDCG@10 {seen[-1][1]:.2f}, Recall@10 {seen[-1][2]:.2f}, "
          f"MRR after {seen[-1][3]:.2f}, documents left of the first query {seen[-1][4]}")
whole = EvaluateRetrieval.evaluate(*perfect("{}", "{}"), [10], ignore_identical_ids=False)[0]["NDCG@10"]
print(f"ids 0, 0, ignore_identical_ids=False: NDCG@10 {whole:.2f}")
assert seen == [(1, 1, 1, 1, 100), (1, 0, 0, 0, 99)] and whole == 1
PY
