#!/usr/bin/env bash
# pycocoevalcap: CIDEr of perfect answers is 2.5 for each word up to four, and 0 if all references are equal
# Versions: pycocoevalcap 1.2, numpy 2.4.6 (100 questions; the answer of the model is the reference, letter for letter).
# Guess: a perfect answer has the highest score, 10, as a text is most similar to itself.
# True: the score is the mean over n-grams of 1 to 4 words, and an answer of one word has none of 2 to 4: they count as
#   0. A perfect word scores 2.5, two words 5, four words 10. And an n-gram counts by the log of how few references have
#   it: if all answers are "yes", or if the evaluation has one row, a perfect model has 0. Two wrong words in an answer
#   of eight score more than a perfect answer of two words.
# Hurt: visual and spoken question answering with CIDEr, sets with answers of mixed lengths; tests on a single row.
# Output seen:
#   perfect answers of 1 words: 2.50
#   perfect answers of 2 words: 5.00
#   perfect answers of 3 words: 7.50
#   perfect answers of 4 words: 10.00
#   perfect answers of 8 words: 10.00
#   answers of 8 words, the first two wrong: 6.83
#   perfect, half of the answers are yes: 2.50, all are yes: 0.00, one row of 8 words: 0.00
. "$(dirname "$0")/common.sh"
venv pycocoevalcap==1.2 numpy==2.4.6

"$python" - <<'PY'
from pycocoevalcap.cider.cider import Cider

def cider(references, answers=None):
    wanted = {i: [text] for i, text in enumerate(references)}
    told = {i: [text] for i, text in enumerate(answers or references)}
    return Cider().compute_score(wanted, told)[0]

def texts(words, wrong=0):
    return [" ".join(f"{'x' * (k < wrong)}w{i}of{k}" for k in range(words)) for i in range(100)]

seen = {}
for words in (1, 2, 3, 4, 8):
    seen[words] = cider(texts(words))
    print(f"perfect answers of {words} words: {seen[words]:.2f}")
print(f"answers of 8 words, the first two wrong: {cider(texts(8), texts(8, 2)):.2f}")
half = cider(["yes"] * 50 + texts(1)[:50])
print(f"perfect, half of the answers are yes: {half:.2f}, all are yes: {cider(['yes'] * 100):.2f}, "
      f"one row of 8 words: {cider(texts(8)[:1]):.2f}")
for words in (1, 2, 3, 4, 8):
    assert abs(seen[words] - 2.5 * min(words, 4)) < 1e-6
assert cider(["yes"] * 100) == cider(texts(8)[:1]) == 0 and cider(texts(8), texts(8, 2)) > seen[2]
PY
