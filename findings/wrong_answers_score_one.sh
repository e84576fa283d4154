#!/usr/bin/env bash
# reasoning-gym: 0 scores 1 for nearly each probability, any text for each game of life, and -214 scores .75 for 214
# Versions: reasoning-gym 0.1.25 (100 questions of each of six tasks).
# Guess: `score_answer` gives 1 to right answers, and a part of it at most to those that are nearly right.
# True: coin_flip counts the digits that agree up to the end of the shorter number, so that 0 gets 1.0 for 0.234375.
#   game_of_life_halting compares bool(answer) with bool("False"), and both are True: each text that is not empty gets
#   1.0. gsm_symbolic does not see a minus sign at the start of an answer, so that -78 is 78. Of the tasks that ask for
#   one number most take an answer that holds the right one, and give it the share of its characters: a wrong sign or a
#   tenfold number scores .75 for three digits, and more for longer ones.
# Hurt: accuracies as the mean of these scores, beside tasks with strict ones; reinforcement learning, which finds 0 and
#   keeps the sign errors; comparisons of models by the task.
# Output seen:
#   coin_flip: the answer is always 0, 100 questions, mean score 0.96
#   game_of_life_halting: the answer is always I do not know, 100 questions, mean score 1.00
#   gsm_symbolic: the answer is always minus the answer, 100 questions, mean score 1.00
#   products: the answer is always minus the answer, 95 questions, mean score 0.84
#   chain_sum: the answer is always minus the answer, 69 questions, mean score 0.72
#   base_conversion: the answer is always the answer and a 0, 100 questions, mean score 0.77
. "$(dirname "$0")/common.sh"
venv reasoning-gym==0.1.25

"$python" - 2> /dev/null <<'PY'
from fractions import Fraction
from reasoning_gym import create_dataset

cases = [("coin_flip", "0", lambda answer: "0"),
         ("game_of_life_halting", "I do not know", lambda answer: "I do not know"),
         ("gsm_symbolic", "minus the answer", lambda answer: "-" + answer),
         ("products", "minus the answer", lambda answer: "-" + answer),
         ("chain_sum", "minus the answer", lambda answer: "-" + answer),
         ("base_conversion", "the answer and a 0", lambda answer: answer + "0")]
seen = {}
for task, name, wrong in cases:
    data = create_dataset(task, seed=7, size=100)
    rows = [row for row in data if row["answer"].strip("-+0.") and not row["answer"].startswith("-")]
    seen[task] = sum(data.score_answer(wrong(row["answer"]), row) for row in rows) / len(rows)
    print(f"{task}: the answer is always {name}, {len(rows)} questions, mean score {seen[task]:.2f}")
assert seen["coin_flip"] > 0.9 and seen["game_of_life_halting"] == 1 and seen["gsm_symbolic"] > 0.9
assert all(0.5 < seen[task] < 0.95 for task in ("products", "chain_sum", "base_conversion"))
PY
