#!/usr/bin/env bash
# ranx matches the queries of a dictionary by their place: a perfect run in another order scores 0
# Versions: ranx 0.3.21, numba 0.68.1, numpy 2.4.6 (12 queries, each with its document in the first place).
# Guess: evaluate takes Qrels and Run or plain dictionaries, {query: {document: score}}, and matches queries by name.
# True: evaluate compares the sets of the names, and then zips the queries by position. A dictionary keeps the order in
#   which it was filled. Qrels and Run sort their names as text, so that q10 comes before q2: together with a dictionary
#   in the order q0, q1, ..., q11, a perfect run scores .17. Two dictionaries agree if both have the same order alone.
# Hurt: tables of retrieval: files of judgments are sorted by name, and runs are filled as the searches end.
# Output seen:
#   judgments: Qrels, run: Run, same order: MRR 1.00
#   judgments: Qrels, run: dict, same order: MRR 0.17
#   judgments: dict, run: Run, same order: MRR 0.17
#   judgments: dict, run: dict, same order: MRR 1.00
#   judgments: Qrels, run: Run, run filled from the last query: MRR 1.00
#   judgments: Qrels, run: dict, run filled from the last query: MRR 0.00
#   judgments: dict, run: Run, run filled from the last query: MRR 0.17
#   judgments: dict, run: dict, run filled from the last query: MRR 0.00
. "$(dirname "$0")/common.sh"
venv ranx==0.3.21 numba==0.68.1 numpy==2.4.6 pandas==3.1.1

"$python" - <<'PY'
from ranx import Qrels, Run, evaluate
judged = {f"q{i}": {f"document {i}": 1} for i in range(12)}
def run(numbers):
    return {f"q{i}": {f"document {i}": 2.0, "another": 1.0} for i in numbers}
scores = {}
for order, numbers in (("same order", range(12)), ("run filled from the last query", range(11, -1, -1))):
    for judgments in (Qrels, dict):
        for results in (Run, dict):
            score = evaluate(judgments(judged), results(run(numbers)), "mrr")
            scores[judgments, results, order] = score
            print(f"judgments: {judgments.__name__}, run: {results.__name__}, {order}: MRR {score:.2f}")
for (judgments, results, order), score in scores.items():
    by_name = (judgments, results) == (Qrels, Run)
    assert score == 1 if by_name or judgments is results and order == "same order" else score < 0.2
PY
