#!/usr/bin/env bash
# evalplus: its sanitizer removes parts that right answers need: decorated functions, helpers without a return, loops
# Versions: evalplus 0.3.1, tree-sitter 0.26.1, tree-sitter-python 0.25.0 (evalplus's own checker, three inputs each).
# Guess: the sanitizer, through which evalplus.codegen sends each answer, cuts off prose and tests. An answer of code
#   alone, which passes as the model wrote it, passes after it.
# True: it keeps imports, classes, assignments to one name, and functions with a return and without a decorator. Removed
#   are a function under a decorator such as @lru_cache, a helper that changes its argument or that yields, a loop or an
#   `if` that fills a table, and `A, B = 1, 2`. What remains raises a NameError, and counts as a wrong answer. Of two
#   functions of one name it keeps the first, Python the last.
# Hurt: pass@1 of models that write memoization, backtracking or helpers; comparisons with harnesses that run the answer
#   as it is; training data filtered by these tests.
# Output seen:
#   one plain function: as written pass, sanitized pass, lines left 2 of 2
#   @lru_cache on the function: as written pass, sanitized fail, lines left 1 of 4
#   @lru_cache on a helper: as written pass, sanitized fail, lines left 3 of 6
#   a helper that changes a list: as written pass, sanitized fail, lines left 4 of 7
#   a helper that yields: as written pass, sanitized fail, lines left 2 of 5
#   a table filled by a loop: as written pass, sanitized fail, lines left 3 of 5
#   two constants in one line: as written pass, sanitized fail, lines left 2 of 3
#   a second, corrected function: as written pass, sanitized fail, lines left 2 of 5
#   right answers: 8 of 8 as written, 1 sanitized
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 datasets==5.2.0 appdirs==1.4.4 wget==3.2 tempdir==0.7.1 tree-sitter==0.26.1 \
    tree-sitter-python==0.25.0 psutil==7.2.2 termcolor==3.3.0
# Without the clients of model providers, which the sanitizer does not need
"$python" -m pip install --quiet --no-compile --no-deps --target "$work/evalplus" evalplus==0.3.1

PYTHONPATH="$work/evalplus" "$python" - <<'PY'
from evalplus.eval import untrusted_check
from evalplus.sanitize import sanitize

answers = {"one plain function": """
def f(n):
    return sum(range(n + 1))
""", "@lru_cache on the function": """
from functools import lru_cache

@lru_cache(None)
def f(n):
    return n + f(n - 1) if n else 0
""", "@lru_cache on a helper": """
from functools import lru_cache

@lru_cache(None)
def total(n):
    return n + total(n - 1) if n else 0

def f(n):
    return total(n)
""", "a helper that changes a list": """
def collect(n, found):
    for i in range(n + 1):
        found.append(i)

def f(n):
    found = []
    collect(n, found)
    return sum(found)
""", "a helper that yields": """
def numbers(n):
    for i in range(n + 1):
        yield i

def f(n):
    return sum(numbers(n))
""", "a table filled by a loop": """
table = [0] * 1001
for i in range(1, 1001):
    table[i] = table[i - 1] + i

def f(n):
    return table[n]
""", "two constants in one line": """
A, B = 1, 2

def f(n):
    return n * (n + A) // B
""", "a second, corrected function": """
def f(n):
    return sum(range(n))

# The sum should include n:
def f(n):
    return sum(range(n + 1))
"""}
inputs = [[0], [7], [200]]
expected = [n * (n + 1) // 2 for n, in inputs]

def check(code):
    return untrusted_check("mbpp", code, inputs, "f", expected, 0, [0.1] * 3, fast_check=True)[0]

verdicts = {}
for name, code in answers.items():
    clean = sanitize(code, "f")
    verdicts[name] = check(code), check(clean)
    print(f"{name}: as written {verdicts[name][0]}, sanitized {verdicts[name][1]},",
          f"lines left {len(list(filter(str.strip, clean.splitlines())))}",
          f"of {len(list(filter(str.strip, code.splitlines())))}")
right, left = (sum(each[i] == "pass" for each in verdicts.values()) for i in (0, 1))
print(f"right answers: {right} of {len(answers)} as written, {left} sanitized")
assert right == len(answers) and left == 1 and verdicts["one plain function"] == ("pass", "pass")
PY
