#!/usr/bin/env bash
# inspect-ai's exact() never takes A as the right answer, but takes 5 for -5, 12 for 1/2 and C++ for C
# Versions: inspect-ai 0.3.285.
# Guess: exact() takes equal texts as equal, and texts that differ in more than case and space as different. So the
#   letter of a choice can be checked by it.
# True: SQuAD's normalization removes a, an, the and all punctuation, also where that is all of the answer, and a target
#   without words left is skipped: of the four letters of a multiple choice A is always wrong. A sign, a fraction bar,
#   an operator or a unit in symbols does not count. f1() does the same; match() takes equal texts as equal.
# Hurt: accuracies of multiple choice lose what A should have (a quarter), so that a model which says B, C or D looks
#   better; signs, fractions, comparisons and code are right by mistake.
# Output seen:
#   the model answers as the target: A wrong, B right, C right, D right
#   accuracy of exact() on 40 questions, all answered rightly: 0.75, of match() 1.00
#   always B where the targets are A and B by turns: exact() 0.50, always A: exact() 0.00
#   taken as right: 5 for -5, 1/2 for 12, a < b for a > b, C++ for C, vitamin A for vitamin, 5% for 5, x1 for -x+1
#   never right: the, +, <, -
. "$(dirname "$0")/common.sh"
venv inspect-ai==0.3.285

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import asyncio

from inspect_ai.model import ModelName, ModelOutput
from inspect_ai.scorer import CORRECT, Target, exact, f1, match
from inspect_ai.solver import TaskState

def is_right(scorer, answer, target):
    state = TaskState(ModelName("none/none"), 1, 1, "question", [], output=ModelOutput.from_content("none", answer))
    return asyncio.run(scorer(state, Target(target))).value in (CORRECT, 1.0)

letters = "ABCD"
right = {letter: is_right(exact(), letter, letter) for letter in letters}
print("the model answers as the target:", ", ".join(f"{letter} {'right' if right[letter] else 'wrong'}" for letter in letters))
assert right == {"A": False, "B": True, "C": True, "D": True} and not is_right(f1(), "A", "A")
of_exact, of_match = (sum(is_right(scorer, letter, letter) for letter in letters * 10) / 40 for scorer in (exact(), match()))
print(f"accuracy of exact() on 40 questions, all answered rightly: {of_exact:.2f}, of match() {of_match:.2f}")
assert (of_exact, of_match) == (0.75, 1)
always = {answer: sum(is_right(exact(), answer, target) for target in "AB" * 10) / 20 for answer in "AB"}
print(f"always B where the targets are A and B by turns: exact() {always['B']:.2f}, always A: exact() {always['A']:.2f}")
assert always == {"A": 0, "B": 0.5}
pairs = [("5", "-5"), ("1/2", "12"), ("a < b", "a > b"), ("C++", "C"), ("vitamin A", "vitamin"), ("5%", "5"), ("x1", "-x+1")]
print("taken as right:", ", ".join(f"{answer} for {target}" for answer, target in pairs))
assert all(is_right(scorer, *pair) for pair in pairs for scorer in (exact(), f1()))
never = ("the", "+", "<", "-")
print("never right:", ", ".join(never))
assert not any(is_right(exact(), text, text) for text in never)
PY
