#!/usr/bin/env bash
# lm-eval's majority vote counts answers that it cannot read as one candidate, so that maj@64 is below the first answer
# Versions: lm-eval 0.4.13 (filters of gsm8k_cot_self_consistency; 500 questions, 64 random answers each).
# Guess: the vote is held among the numbers that were found. An answer without a number has no vote, and two ways to
#   write a number, that the metric takes as equal, are one candidate. maj@64 is then never far below one answer.
# True: the regex filter comes before the vote and makes "[invalid]" of each text that it cannot read. All of these are
#   equal, while wrong numbers differ: once they are more than the right answers, [invalid] wins. Answers that are right
#   in 40 % of the cases and unreadable in half give .20 with a vote of 64. The metric ignores commas and dollars only
#   after the vote: 1,800 and 1800 are two candidates, which lose to a single wrong one.
# Hurt: maj@k of base models, of texts that are cut at the limit or at an empty line, of other formats than
#   "The answer is N": the table says that voting does not help, or that more samples harm.
# Output seen:
#   40 % right, 0 % unreadable: first answer 0.39, maj@8 0.92, maj@64 1.00; 64 numbers alone 1.00
#   40 % right, 20 % unreadable: first answer 0.43, maj@8 0.76, maj@64 0.99; 64 numbers alone 1.00
#   40 % right, 40 % unreadable: first answer 0.42, maj@8 0.53, maj@64 0.52; 64 numbers alone 1.00
#   40 % right, 50 % unreadable: first answer 0.40, maj@8 0.39, maj@64 0.20; 64 numbers alone 1.00
#   50 % right, half with comma, 33 % a wrong number: first answer 0.50, maj@8 0.54, maj@64 0.31; 64 numbers alone 0.93
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 datasets==5.2.0 lm-eval==0.4.13

"$python" - <<'PY'
import random
from collections import Counter
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.instance import Instance
from lm_eval.filters import build_filter_ensemble

file = Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot-self-consistency.yaml"
filters = {}
for entry in yaml.safe_load(file.read_text())["filter_list"]:
    steps = [(step.pop("function"), step) for step in entry["filter"]]
    filters[entry["name"]] = build_filter_ensemble(entry["name"], steps)

def accuracies(answer):
    random.seed(0)
    questions = []
    for i in range(500):
        right = random.randrange(1000, 9000)
        question = Instance("generate_until", dict(right=right), ("", {}), i)
        question.resps = [answer(right, random.random()) for _ in range(64)]
        questions.append(question)
    seen = {}
    for name, ensemble in filters.items():
        ensemble.apply(questions)
        seen[name] = sum(question.filtered_resps[name].replace(",", "") == str(question.doc["right"])
                         for question in questions) / 500
    seen["numbers"] = 0
    for question in questions:
        numbers = [text[14:-1].replace(",", "") for text in question.resps if text.startswith("The")]
        seen["numbers"] += (Counter(numbers).most_common(1)[0][0] == str(question.doc["right"])) / 500
    return seen

def cut(share):
    def answer(right, chance):
        if chance < share:
            return "First we count the apples in the basket, then"
        return f"The answer is {right if chance < share + 0.4 else random.randrange(1000, 9000)}."
    return answer

def commas(right, chance):                                     # half right, and a third always the same wrong number
    number = right if chance < 0.5 else right + 1 if chance < 0.83 else random.randrange(1000, 9000)
    return f"The answer is {number:,}." if chance < 0.25 else f"The answer is {number}."

seen = {f"40 % right, {share * 100:.0f} % unreadable": accuracies(cut(share)) for share in (0, 0.2, 0.4, 0.5)}
seen["50 % right, half with comma, 33 % a wrong number"] = accuracies(commas)
for name, row in seen.items():
    print(f"{name}: first answer {row['score-first']:.2f}, maj@8 {row['maj@8']:.2f}, maj@64 {row['maj@64']:.2f};",
          f"64 numbers alone {row['numbers']:.2f}")
most, split = seen["40 % right, 50 % unreadable"], list(seen.values())[-1]
assert seen["40 % right, 0 % unreadable"]["maj@64"] > 0.98
assert most["maj@64"] < most["maj@8"] and most["maj@64"] < most["score-first"] - 0.1 and most["numbers"] > 0.98
assert split["maj@64"] < split["score-first"] - 0.1 and split["numbers"] > 0.9
PY
