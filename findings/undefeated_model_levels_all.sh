#!/usr/bin/env bash
# evalica: one model without a loss, or without a win, gives all models the same Bradley-Terry score
# Versions: evalica 0.4.2, pandas 3.1.1, numpy 2.4.6 (five models, 200 battles a pair; a sixth one with few battles).
# Guess: an undefeated model has a very large score, or an error says that there is no maximum; the others keep theirs.
# True: its score is infinite, or 0 without a win, and the geometric mean by which all are divided is so too. What is NaN
#   after that is set to the tolerance, for all models: each has 1e-06, and their order says nothing. No warning tells it.
#   newman does the same with a model that always wins. One tie is enough to make it right again.
# Hurt: leaderboards by judges, where a new model has few battles, or a weak one never wins; bootstrap samples of them.
# Output seen:
#   five models: b 2.7, e 1.47, c 1.02, d 0.716, a 0.347; 8 rounds
#   a new one won 3 of 3: a 1e-06, b 1e-06, c 1e-06, d 1e-06, new 1e-06, e 1e-06; 2 rounds
#   a new one lost 3 of 3: a 1e-06, b 1e-06, c 1e-06, d 1e-06, new 1e-06, e 1e-06; 100 rounds
#   won 3 and tied 1: new 11.6, b 1.65, e 0.9, c 0.623, d 0.439, a 0.212; 9 rounds
#   newman, a new one won 3 of 3: a 1e-06, b 1e-06, c 1e-06, d 1e-06, new 1e-06, e 1e-06
. "$(dirname "$0")/common.sh"
venv evalica==0.4.2 pandas==3.1.1 numpy==2.4.6

"$python" - <<'PY'
import evalica
import numpy as np
from evalica import Winner

rng = np.random.default_rng(0)
strengths = {"a": 0.0, "b": 2.0, "c": 1.0, "d": 0.5, "e": 1.5}
battles = []
for x in strengths:
    for y in strengths:
        if x < y:
            wins = rng.random(200) < 1 / (1 + np.exp(strengths[y] - strengths[x]))
            battles += [(x, y, Winner.X if won else Winner.Y) for won in wins]

def line(method, more):
    result = method(*zip(*(battles + more)))
    return result, ", ".join(f"{model} {score:.3g}" for model, score in result.scores.items())

seen = {}
for name, more in (("five models", []), ("a new one won 3 of 3", [("new", "b", Winner.X)] * 3),
                   ("a new one lost 3 of 3", [("new", "b", Winner.Y)] * 3),
                   ("won 3 and tied 1", [("new", "b", Winner.X)] * 3 + [("new", "b", Winner.Draw)])):
    seen[name], text = line(evalica.bradley_terry, more)
    print(f"{name}: {text}; {seen[name].iterations} rounds")
newman, text = line(evalica.newman, [("new", "b", Winner.X)] * 3)
print(f"newman, a new one won 3 of 3: {text}")
five, won, lost, tied = (result.scores for result in seen.values())
assert list(five.index) == ["b", "e", "c", "d", "a"] and five["b"] / five["a"] > 5
assert won.nunique() == lost.nunique() == newman.scores.nunique() == 1 and len(won) == len(lost) == 6
assert list(tied.index) == ["new", "b", "e", "c", "d", "a"]
PY
