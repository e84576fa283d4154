#!/usr/bin/env bash
# unitxt: the multiple-choice match for images takes a text's first letter as the answer: "According to ..." is A
# Versions: unitxt 1.26.10, datasets 5.2.0, evaluate 0.4.6.
# Guess: exact_match_mm is an exact match that also reads "C", "(C)", "option C" and "the answer is C". A sentence about
#   the picture is wrong, "The answer is (C)" is right, and an answer equal to the reference is always right.
# True: it compares the reference with the first character of the answer, whatever follows. "According to the picture,
#   the answer is C" is A, "Based on ..." B, "Clearly ..." C, "Due to ..." D, and a refusal, "As an AI ...", is A.
#   "The answer is (C)", "Answer: C" and "**C**" are wrong; "Answer: C" is right for A. A reference of more than one
#   character never matches: yes for yes is wrong, and 12 for 12.
# Hurt: accuracies of models that write sentences: they depend on their first words.
# Output seen:
#   'C' for C: right
#   'The answer is C' for C: right
#   'The answer is (C)' for C: wrong
#   'Answer: C' for C: wrong
#   '**C**' for C: wrong
#   'yes' for yes: wrong
#   '12' for 12: wrong
#   'According to the picture, the answer is C' for A: right
#   'Answer: C' for A: right
#   'As an AI I cannot see it' for A: right
#   'Based on the legend it is A' for B: right
#   'Clearly a dog' for C: right
#   'Due to the shadow it is B' for D: right
#   accuracy of 100 refusals: 0.25, of 100 right answers in brackets: 0.00
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 datasets==5.2.0 evaluate==0.4.6 unitxt==1.26.10

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
from unitxt import metrics
from unitxt.test_utils.metrics import apply_metric

def score(answers, gold):
    rows = apply_metric(metric=metrics.ExactMatchMM(n_resamples=None), predictions=answers,
                        references=[[letter] for letter in gold])
    return [row["score"]["instance"]["score"] for row in rows], rows[0]["score"]["global"]["score"]

cases = [("C", "C"), ("The answer is C", "C"), ("The answer is (C)", "C"), ("Answer: C", "C"), ("**C**", "C"),
         ("yes", "yes"), ("12", "12"), ("According to the picture, the answer is C", "A"), ("Answer: C", "A"),
         ("As an AI I cannot see it", "A"), ("Based on the legend it is A", "B"), ("Clearly a dog", "C"),
         ("Due to the shadow it is B", "D")]
answers, gold = zip(*cases)
seen, _ = score(list(answers), gold)
for (answer, gold), value in zip(cases, seen):
    print(f"{answer!r} for {gold}: {'right' if value else 'wrong'}")
gold = ["A", "B", "C", "D"] * 25
refusals = score(["As an AI I cannot see it."] * 100, gold)[1]
perfect = score([f"The answer is ({letter})" for letter in gold], gold)[1]
print(f"accuracy of 100 refusals: {refusals:.2f}, of 100 right answers in brackets: {perfect:.2f}")
assert seen == [1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1] and (refusals, perfect) == (0.25, 0)
PY
