#!/usr/bin/env bash
# In dspy's majority vote the answer A has no votes: of A, A, A, A, B it takes B; and -5, 5, 5 give -5
# Versions: dspy 3.4.1, numpy 2.4.6 (2,000 questions with four choices, five answers each, right in 60 %).
# Guess: majority() returns the answer that most completions have.
# True: answers are compared after the normalization of SQuAD, which removes articles, points, signs and symbols. A
#   becomes empty, and empty answers are left out of the vote. It wins only if no completion says anything else: of the
#   questions whose right answer is A the vote gets 7 %, of the others 86 %. Numbers are merged: -5 is 5, 1.5 is 15, 1/2
#   is 12, and of the merged ones the first is returned, even if it was said once. answer_exact_match, a metric that
#   optimizers take, has the same: "The" and an empty answer are right for A, and 5 for -5.
# Hurt: self-consistency for multiple choice and mathematics; programs optimized by answer_exact_match.
# Output seen:
#   A A A A B: B
#   B B B B A: B
#   -5 5 5: -5
#   1.5 15 15: 1.5
#   12 1/2 1/2: 12
#   right answer A: majority() 7 %, counted 78 %
#   right answer B: majority() 88 %, counted 83 %
#   right answer C: majority() 85 %, counted 81 %
#   right answer D: majority() 86 %, counted 82 %
#   answer_exact_match of 'The' for 'A': True
#   answer_exact_match of '' for 'A': True
#   answer_exact_match of '5' for '-5': True
#   answer_exact_match of '35' for '3.5': True
#   answer_exact_match of 'C' for 'C++': True
. "$(dirname "$0")/common.sh"
venv dspy==3.4.1 numpy==2.4.6

export DSPY_CACHEDIR="$work/dspy"
"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
from collections import Counter
import dspy
import numpy as np
from dspy.evaluate import answer_exact_match

def vote(answers):
    return dspy.majority(dspy.Prediction.from_completions([{"answer": answer} for answer in answers])).answer

for answers, wanted in (("A A A A B", "B"), ("B B B B A", "B"), ("-5 5 5", "-5"), ("1.5 15 15", "1.5"),
                        ("12 1/2 1/2", "12")):
    print(f"{answers}: {vote(answers.split())}")
    assert vote(answers.split()) == wanted
rng = np.random.default_rng(0)
hits = Counter()
for question in range(2000):
    right = "ABCD"[question % 4]
    answers = [right if rng.random() < 0.6 else rng.choice([c for c in "ABCD" if c != right]).item() for _ in range(5)]
    hits[right, "majority"] += vote(answers) == right
    hits[right, "counted"] += Counter(answers).most_common(1)[0][0] == right
for right in "ABCD":
    print(f"right answer {right}: majority() {hits[right, 'majority'] / 5:.0f} %,",
          f"counted {hits[right, 'counted'] / 5:.0f} %")
for right, answer in (("A", "The"), ("A", ""), ("-5", "5"), ("3.5", "35"), ("C++", "C")):
    same = answer_exact_match(dspy.Example(answer=right), dspy.Prediction(answer=answer))
    print(f"answer_exact_match of {answer!r} for {right!r}: {same}")
    assert same
assert hits["A", "majority"] < 100 and min(hits[right, "majority"] for right in "BCD") > 370
assert min(hits[right, "counted"] for right in "ABCD") > 350
PY
