#!/usr/bin/env bash
# math-verify takes all small answers as equal: Planck's constant is right for the electron's charge
# Versions: math-verify 0.9.0, sympy 1.14.0, trl 1.16.0.
# Guess: verify(gold, answer) compares numbers to some relative precision, such as six or fifteen digits.
# True: both tolerances are absolute. A product or a power such as 6.6 \times 10^{-34} is compared by the difference,
#   which counts as 0 below about 1e-15: 6.6e-34, 1.6e-19, 5 times it and minus it are all the same answer. A number in
#   decimals is rounded to six places first, so that 0.0000001 is 0.0000004, and is also right for all of the products
#   above.
# Hurt: accuracies in physics and chemistry, and rewards: trl's accuracy_reward, and tasks of lm-eval, take this
#   verdict. A sign, a factor and an exponent that are wrong are rewarded.
# Output seen:
#   gold 1.6 \times 10^{-19}, answer 6.6 \times 10^{-34}: verify True, reward 1.0
#   gold 1.6 \times 10^{-19}, answer -1.6 \times 10^{-19}: verify True, reward 1.0
#   gold 1.6 \times 10^{-19}, answer 8.0 \times 10^{-19}: verify True, reward 1.0
#   gold 9.1 \times 10^{-31}, answer 1.7 \times 10^{-27}: verify True, reward 1.0
#   gold 0.0000001, answer 0.0000004: verify True, reward 1.0
#   gold 0.0000001, answer 6.6 \times 10^{-34}: verify True, reward 1.0
#   gold 1.6 \times 10^{-9}, answer 8.0 \times 10^{-9}: verify False, reward 0.0
#   gold 1.6 \times 10^{19}, answer 8.0 \times 10^{19}: verify False, reward 0.0
#   gold 10^{-19}, answer 10^{-20}: verify True, reward 1.0
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 trl==1.16.0 math-verify==0.9.0 sympy==1.14.0

"$python" - <<'PY'
from math_verify import parse, verify
from trl.rewards import accuracy_reward
pairs = [("1.6 \\times 10^{-19}", "6.6 \\times 10^{-34}", True),
         ("1.6 \\times 10^{-19}", "-1.6 \\times 10^{-19}", True),
         ("1.6 \\times 10^{-19}", "8.0 \\times 10^{-19}", True), ("9.1 \\times 10^{-31}", "1.7 \\times 10^{-27}", True),
         ("0.0000001", "0.0000004", True), ("0.0000001", "6.6 \\times 10^{-34}", True),
         ("1.6 \\times 10^{-9}", "8.0 \\times 10^{-9}", False), ("1.6 \\times 10^{19}", "8.0 \\times 10^{19}", False),
         ("10^{-19}", "10^{-20}", True)]
for gold, answer, expected in pairs:
    right = verify(parse(f"${gold}$"), parse(f"${answer}$"))
    reward, = accuracy_reward([[{"role": "assistant", "content": f"It is \\boxed{{{answer}}}."}]], [f"${gold}$"])
    print(f"gold {gold}, answer {answer}: verify {right}, reward {reward}")
    assert right == expected and reward == float(expected)
PY
