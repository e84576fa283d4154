#!/usr/bin/env bash
# statsmodels: missing ratings are a label of their own: annotators who always agree have a Fleiss' kappa of .03
# Versions: statsmodels 0.15.0, numpy 2.4.6 (300 answers, three labels, ten annotators, of whom some rate each answer).
# Guess: aggregate_raters counts the ratings of each label and leaves NaN out, or refuses it. fleiss_kappa, which wants
#   equally many ratings in all rows, is given them: 1 for annotators who always agree, 0 for random labels.
# True: NaN becomes a fourth label. Annotators who did not rate an answer agree about it, those who did disagree with
#   them. So the rows sum to ten, and pass the check for equal numbers. With three ratings of ten places full agreement
#   has a kappa of .03, and random labels -.07; Randolph's kappa of random labels is .32, and with two ratings .51.
#   The documentation of to_table says to delete rows with missing values; that of these two functions does not.
# Hurt: agreement of annotators or of judges, each of whom has seen a part of the answers.
# Output seen:
#   full agreement, 10 of 10 rate each answer: 3 labels, Fleiss 1.00, Randolph 1.00; of the ratings alone 1.00
#   full agreement, 5 of 10 rate each answer: 4 labels, Fleiss 0.17, Randolph 0.26; of the ratings alone 1.00
#   full agreement, 3 of 10 rate each answer: 4 labels, Fleiss 0.03, Randolph 0.38; of the ratings alone 1.00
#   full agreement, 2 of 10 rate each answer: 4 labels, Fleiss -0.03, Randolph 0.53; of the ratings alone 1.00
#   80 % of it, 10 of 10 rate each answer: 3 labels, Fleiss 0.64, Randolph 0.64; of the ratings alone 0.64
#   80 % of it, 5 of 10 rate each answer: 4 labels, Fleiss 0.09, Randolph 0.19; of the ratings alone 0.64
#   80 % of it, 3 of 10 rate each answer: 4 labels, Fleiss -0.01, Randolph 0.35; of the ratings alone 0.59
#   80 % of it, 2 of 10 rate each answer: 4 labels, Fleiss -0.04, Randolph 0.52; of the ratings alone 0.67
#   random labels, 10 of 10 rate each answer: 3 labels, Fleiss -0.01, Randolph -0.01; of the ratings alone -0.01
#   random labels, 5 of 10 rate each answer: 4 labels, Fleiss -0.06, Randolph 0.06; of the ratings alone -0.02
#   random labels, 3 of 10 rate each answer: 4 labels, Fleiss -0.07, Randolph 0.32; of the ratings alone -0.00
#   random labels, 2 of 10 rate each answer: 4 labels, Fleiss -0.07, Randolph 0.51; of the ratings alone 0.04
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 statsmodels==0.15.0

"$python" - <<'PY'
import numpy as np
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

rng = np.random.default_rng(0)
truth = rng.integers(0, 3, 300)

def ratings(agree, each):
    table = np.where(rng.random((300, 10)) < agree, truth[:, None], rng.integers(0, 3, (300, 10))).astype(float)
    for row in table:
        row[rng.permutation(10)[each:]] = np.nan               # the other annotators do not rate this answer
    return table

seen = {}
for name, agree in (("full agreement", 1.0), ("80 % of it", 0.8), ("random labels", 0.0)):
    for each in (10, 5, 3, 2):
        table = ratings(agree, each)
        counts, labels = aggregate_raters(table)
        own = np.stack([(table == label).sum(1) for label in range(3)], 1)
        seen[name, each] = fleiss_kappa(counts), fleiss_kappa(own), fleiss_kappa(counts, method="randolph")
        print(f"{name}, {each} of 10 rate each answer: {len(labels)} labels, Fleiss {seen[name, each][0]:.2f},",
              f"Randolph {seen[name, each][2]:.2f}; of the ratings alone {seen[name, each][1]:.2f}")
assert seen["full agreement", 10][0] == 1 and seen["full agreement", 3][1] == 1
assert seen["full agreement", 3][0] < 0.1 and seen["80 % of it", 3][0] < 0.05 and seen["80 % of it", 3][1] > 0.5
assert seen["random labels", 2][2] > 0.4 and abs(seen["random labels", 10][0]) < 0.05
PY
