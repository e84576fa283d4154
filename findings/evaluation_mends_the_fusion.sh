#!/usr/bin/env bash
# In ranx a run that was not evaluated is fused in the order in which its documents were added
# Versions: ranx 0.3.21, numba 0.68.1, numpy 2.4.6 (a search and a reranker that puts the right document first).
# Guess: rank fusion ranks each run by its scores. Whether a run was evaluated before does not matter.
# True: rrf, isr, bordafuse, rbc and the norms rank and borda take the place of a document in the run's dictionary for
#   its rank. A Run made of a dictionary is sorted. A Run filled with add_score is not, until evaluate or save sorts it
#   in place. fuse does not look. A reranker scores documents in the order of the first search, so that the fusion has
#   the ranks of the first search twice. Fusion by scores is right.
# Hurt: hybrid search and reranking by reciprocal rank fusion; and a notebook gives another table if its cells are run
#   in another order.
# Output seen:
#   fused with rrf, reranker not evaluated: MRR 0.33
#   fused with rrf, reranker evaluated before: MRR 1.00 (its own 1.00)
#   fused with sum, reranker not evaluated: MRR 1.00
#   fused with sum, reranker evaluated before: MRR 1.00 (its own 1.00)
. "$(dirname "$0")/common.sh"
venv ranx==0.3.21 numba==0.68.1 numpy==2.4.6 pandas==3.1.1

"$python" - <<'PY'
from ranx import Qrels, Run, evaluate, fuse
queries = [f"q{i}" for i in range(5)]
judged = Qrels({query: {"right": 1} for query in queries})
searched = {"a": 9.0, "b": 8.0, "right": 7.0, "c": 6.0}
reranked = {"a": 0.1, "b": 0.2, "right": 0.9, "c": 0.3}
def fill(scores):
    run = Run()
    for query in queries:
        for document in searched:                              # the reranker goes through what the search has found
            run.add_score(query, document, scores[document])
    return run
for method, norm in (("rrf", None), ("sum", "min-max")):
    for evaluated in (False, True):
        search, reranker, own = fill(searched), fill(reranked), ""
        if evaluated:
            own = f" (its own {evaluate(judged, reranker, 'mrr'):.2f})"
        score = evaluate(judged, fuse([search, reranker, reranker], norm=norm, method=method), "mrr")
        before = "evaluated before" if evaluated else "not evaluated"
        print(f"fused with {method}, reranker {before}: MRR {score:.2f}{own}")
        assert abs(score - (1 / 3 if method == "rrf" and not evaluated else 1)) < 1e-9
PY
