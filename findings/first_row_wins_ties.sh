#!/usr/bin/env bash
# crowd-kit: the majority vote gives all ties to one label, the one that stands in the first row of the table
# Versions: crowd-kit 1.4.2, pandas 3.1.1, numpy 2.4.6, scikit-learn 1.9.1 (2,000 comparisons by two judges who toss a
#   coin).
# Guess: two judges who disagree make a tie, which goes to either model by chance, or to the first vote of this
#   comparison.
# True: the labels are sorted by their first appearance in the whole table, and each tie goes to the first of them. (The
#   documentation says that equal votes have equal results.) Half of the comparisons are ties, so that a model that is
#   equal to the other wins 75 % of them or 25 %: another order of the same rows turns the result over.
# Hurt: win rates and labels from an even number of judges, or from three with "tie" as an answer; sorted tables above
#   all, in which one model stands first.
# Output seen:
#   2 judges, 0.52 ties: A wins 0.75 if the first row says A, 0.23 if B
#   3 judges, 0.00 ties: A wins 0.51 if the first row says A, 0.51 if B
#   4 judges, 0.39 ties: A wins 0.70 if the first row says A, 0.31 if B
. "$(dirname "$0")/common.sh"
venv crowd-kit==1.4.2 pandas==3.1.1 numpy==2.4.6 scikit-learn==1.9.1

"$python" - 2> /dev/null <<'PY'
import numpy as np
import pandas as pd
from crowdkit.aggregation import MajorityVote

rng = np.random.default_rng(0)
labels = ("A", "B")
for judges in (2, 3, 4):
    votes = pd.DataFrame({"task": np.repeat(np.arange(2000), judges), "worker": np.tile(np.arange(judges), 2000),
                          "label": rng.choice(labels, 2000 * judges)})
    rates = []
    for first in labels:
        start = votes.index[votes.label == first][0]            # the same rows, begun elsewhere
        table = pd.concat((votes[start:], votes[:start]))
        rates.append((MajorityVote().fit_predict(table) == "A").mean())
    ties = ((votes.label == "A").groupby(votes.task).mean() == 0.5).mean()
    print(f"{judges} judges, {ties:.2f} ties: A wins {rates[0]:.2f} if the first row says A, {rates[1]:.2f} if B")
    assert abs(rates[0] - rates[1] - ties) < 1e-9
    assert (ties == 0) == (judges == 3) and (judges == 3 or rates[0] > 0.65 > 0.35 > rates[1])
PY
