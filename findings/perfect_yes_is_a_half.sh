#!/usr/bin/env bash
# nltk: chrF of a perfect answer is .50 for "yes" and .17 for "B"; RIBES of a perfect word is 0
# Versions: nltk 3.10.4, sacrebleu 2.6.0.
# Guess: a text compared with itself has a chrF of 1, in nltk as in sacrebleu.
# True: the score is the mean over sequences of 1 to 6 letters, and a text of three letters has none of 4 to 6: they
#   count as 0. Everything below six letters (without spaces) has less than 1. sacrebleu leaves out what is not there.
#   RIBES compares the order of two words at least, and gives 0 to one word. corpus_chrf is the mean over sentences, so
#   that 100 perfect answers of which half are "yes" and "no" score .71.
# Hurt: chrF of short answers, labels and Chinese or Japanese words, and tables that mix both libraries.
# Output seen:
#   B with itself: nltk chrF 0.17, sacrebleu chrF 1.00, nltk RIBES 0.00
#   no with itself: nltk chrF 0.33, sacrebleu chrF 1.00, nltk RIBES 0.00
#   yes with itself: nltk chrF 0.50, sacrebleu chrF 1.00, nltk RIBES 0.00
#   42.5 with itself: nltk chrF 0.67, sacrebleu chrF 1.00, nltk RIBES 0.00
#   Paris with itself: nltk chrF 0.83, sacrebleu chrF 1.00, nltk RIBES 0.00
#   Berlin with itself: nltk chrF 1.00, sacrebleu chrF 1.00, nltk RIBES 0.00
#   東京 with itself: nltk chrF 0.33, sacrebleu chrF 1.00, nltk RIBES 0.00
#   on the mat with itself: nltk chrF 1.00, sacrebleu chrF 1.00, nltk RIBES 1.00
#   100 perfect answers: nltk 0.71, sacrebleu 1.00
. "$(dirname "$0")/common.sh"
venv nltk==3.10.4 sacrebleu==2.6.0

"$python" - <<'PY'
import sacrebleu
from nltk.translate.chrf_score import corpus_chrf, sentence_chrf
from nltk.translate.ribes_score import sentence_ribes

for text in ("B", "no", "yes", "42.5", "Paris", "Berlin", "\u6771\u4eac", "on the mat"):
    words = text.split()
    row = sentence_chrf(words, words), sacrebleu.sentence_chrf(text, [text]).score / 100, sentence_ribes([words], words)
    print("{} with itself: nltk chrF {:.2f}, sacrebleu chrF {:.2f}, nltk RIBES {:.2f}".format(text, *row))
    letters = len("".join(words))
    assert abs(row[0] - min(letters, 6) / 6) < 1e-6 and row[1] == 1 and (row[2] == 0) == (len(words) == 1)
answers = (["yes"] * 25 + ["no"] * 25 + ["it is in the second paragraph"] * 50)
words = [answer.split() for answer in answers]
found = corpus_chrf(words, words), sacrebleu.corpus_chrf(answers, [answers]).score / 100
print("100 perfect answers: nltk {:.2f}, sacrebleu {:.2f}".format(*found))
assert abs(found[0] - (0.25 * 3 / 6 + 0.25 * 2 / 6 + 0.5)) < 1e-6 and found[1] == 1
PY
