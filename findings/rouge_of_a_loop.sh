#!/usr/bin/env bash
# The packages rouge and rouge-chinese do not see repetition: a summary repeated 20 times scores 1
# Versions: rouge 1.0.1, rouge-chinese 1.0.3, rouge-score 0.1.2.
# Guess: ROUGE counts n-grams, each as often as it is in the reference. A summary that is repeated 20 times has a
#   precision of 1/20 and an F1 of about .1, as in rouge-score.
# True: by default both packages make a set of the n-grams of each text before they count (exclusive=True). Recall and
#   precision are shares of different n-grams, so that a loop costs nothing. ROUGE-L of the package rouge takes sets of
#   words too. In rouge, exclusive=False counts, also in ROUGE-L.
# Hurt: summaries of small models, of greedy decoding and of long contexts, where loops are the usual failure. A looping
#   model beats one that adds three words, also on benchmarks that score by this ROUGE-L, LongBench among them.
# Output seen:
#   the reference                      rouge 1.00 1.00 1.00, exclusive=False 1.00 1.00 1.00, rouge-chinese 1.00 1.00 1.00, rouge-score 1.00 1.00 1.00
#   the reference and three words      rouge 0.89 0.90 0.89, exclusive=False 0.90 0.90 0.90, rouge-chinese 0.89 0.90 0.90, rouge-score 0.90 0.90 0.90
#   the reference 20 times             rouge 1.00 0.96 1.00, exclusive=False 0.10 0.09 0.10, rouge-chinese 1.00 0.96 0.10, rouge-score 0.10 0.09 0.10
#   its first half 20 times            rouge 0.67 0.60 0.67, exclusive=False 0.10 0.08 0.10, rouge-chinese 0.67 0.60 0.10, rouge-score 0.10 0.08 0.10
. "$(dirname "$0")/common.sh"
venv rouge==1.0.1 rouge-chinese==1.0.3 rouge-score==0.1.2

"$python" - <<'PY'
from rouge import Rouge
from rouge_chinese import Rouge as RougeChinese
from rouge_score.rouge_scorer import RougeScorer
reference = "the cat sat on the mat because it was tired of the long day"
half = "the cat sat on the mat because"
texts = {"the reference": reference, "the reference and three words": reference + " in our garden",
         "the reference 20 times": " ".join([reference] * 20), "its first half 20 times": " ".join([half] * 20)}
names = ("rouge-1", "rouge-2", "rouge-l")
google = RougeScorer(["rouge1", "rouge2", "rougeL"])
seen = {}
for name, text in texts.items():
    rows = {label: [scorer.get_scores(text, reference)[0][score]["f"] for score in names] for label, scorer in
            (("rouge", Rouge()), ("exclusive=False", Rouge(exclusive=False)), ("rouge-chinese", RougeChinese()))}
    rows["rouge-score"] = [score.fmeasure for score in google.score(reference, text).values()]
    seen[name] = rows
    print(f"{name:34}", ", ".join(f"{label} " + " ".join(f"{f:.2f}" for f in row) for label, row in rows.items()))
loop, words = seen["the reference 20 times"], seen["the reference and three words"]
assert min(loop["rouge"]) > 0.95 and min(loop["rouge-chinese"][:2]) > 0.95
assert max(loop["exclusive=False"]) < 0.11 and max(loop["rouge-score"]) < 0.11
assert all(a > b for a, b in zip(loop["rouge"], words["rouge"]))
assert all(a < b for a, b in zip(loop["rouge-score"], words["rouge-score"]))
assert all(abs(a - b) < 1e-3 for rows in seen.values() for a, b in zip(rows["exclusive=False"], rows["rouge-score"]))
PY
