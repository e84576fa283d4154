#!/usr/bin/env bash
# sacrebleu scores the first line alone, if each line has its list of references, as nltk wants it
# Versions: sacrebleu 2.6.0, nltk 3.10.4.
# Guess: nltk, torchmetrics and evaluate want a list of references for each line, [[a], [b], ...]; sacrebleu wants a
#   list of lines for each reference, [[a, b, ...]]. Whoever mixes them up gets an error: the lengths differ.
# True: zip() cuts both to the shortest. [[a], [b], ...] are as many references of one line: the first line is compared
#   with the references of all lines, and the other lines are left out. If the first is good, BLEU and chrF are 100.
#   A flat list [a, b, ...] passes as well: its references are letters. A file of outputs that ends early is scored as
#   if it were complete.
# Hurt: evaluations that change the library, or that score an interrupted run: the number looks like a score.
# Output seen:
#   BLEU: [[a, b, ...]] 33.9, [[a], [b], ...] 100.0, [a, b, ...] 1.9, first 2 of 4 lines 57.1
#   chrF: [[a, b, ...]] 48.6, [[a], [b], ...] 100.0, [a, b, ...] 21.1, first 2 of 4 lines 65.2
#   BLEU [[a], [b], ...], all lines but the first replaced by an empty one: 100.0
#   nltk's corpus_bleu: [[a], [b], ...] 33.9
. "$(dirname "$0")/common.sh"
venv sacrebleu==2.6.0 nltk==3.10.4

"$python" - <<'PY'
from nltk.translate.bleu_score import corpus_bleu
from sacrebleu.metrics import BLEU, CHRF
outputs = ["the cat sat on the mat today", "a dog runs in the park", "it rains in spain now", "she reads an old book at home"]
texts = ["the cat sat on the mat today", "one dog ran through parks", "rain falls on spain now", "she wrote a new letter there"]
each = [[text] for text in texts]
seen = {}
for metric in (BLEU(), CHRF()):
    name = {"BLEU": "BLEU", "CHRF": "chrF"}[type(metric).__name__]
    cases = {"[[a, b, ...]]": (outputs, [texts]), "[[a], [b], ...]": (outputs, each), "[a, b, ...]": (outputs, texts),
             "first 2 of 4 lines": (outputs[:2], [texts])}
    seen[name] = {case: metric.corpus_score(*lists).score for case, lists in cases.items()}
    print(f"{name}:", ", ".join(f"{case} {score:.1f}" for case, score in seen[name].items()))
    right, first, letters, short = seen[name].values()
    assert right < 50 and first > 99.9 and letters < right and short > right + 10
emptied = BLEU().corpus_score([outputs[0], "", "", ""], each).score
print(f"BLEU [[a], [b], ...], all lines but the first replaced by an empty one: {emptied:.1f}")
assert emptied > 99.9
reference = 100 * corpus_bleu([[text.split()] for text in texts], [output.split() for output in outputs])
print(f"nltk's corpus_bleu: [[a], [b], ...] {reference:.1f}")
assert abs(reference - seen["BLEU"]["[[a, b, ...]]"]) < 0.1
PY
