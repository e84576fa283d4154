#!/usr/bin/env bash
# lexical-diversity: a text in which no word is repeated has an MTLD of 0, with one repetition it has the highest
# Versions: lexical-diversity 0.1.1, lexicalrichness 0.5.1 (200 answers of 10 to 40 words, drawn from 400 words).
# Guess: MTLD measures how varied the words are; the most varied text has the largest value.
# True: the length is divided by the number of times that the share of different words falls to .72. Without any
#   repetition this number is 0, and the quotient is set to 0, the value of the poorest text. One repetition in 40 words
#   gives 448. A mean over short answers is one of numbers in the hundreds and zeros; it falls if a model repeats less.
#   lexicalrichness gives the number of words instead.
# Hurt: diversity of short answers, instructions and synthetic data: a model that never repeats a word looks worst.
# Output seen:
#   40 words,  0 of them repeated: MTLD    0.0, lexicalrichness   40.0
#   40 words,  1 of them repeated: MTLD  448.0, lexicalrichness  448.0
#   40 words,  2 of them repeated: MTLD  224.0, lexicalrichness  224.0
#   40 words,  5 of them repeated: MTLD   89.6, lexicalrichness   89.6
#   40 words, 10 of them repeated: MTLD   44.8, lexicalrichness   44.8
#   40 words, 20 of them repeated: MTLD   40.0, lexicalrichness   40.0
#   200 answers, of 400 words: mean MTLD 94, lexicalrichness 103; zeros: 95
#   200 answers, of 200 words: mean MTLD 83, lexicalrichness 87; zeros: 62
#   200 answers, none repeated: mean MTLD 0, lexicalrichness 25; zeros: 200
. "$(dirname "$0")/common.sh"
venv lexical-diversity==0.1.1 lexicalrichness==0.5.1

"$python" - <<'PY'
import random
from lexical_diversity.lex_div import mtld
from lexicalrichness import LexicalRichness

names = [a + b + c for a in "bdfgklmnpr" for b in "aeiou" for c in "dfgklmnp"]

def both(words):
    return mtld(words), LexicalRichness(" ".join(words)).mtld()

seen = []
for repeated in (0, 1, 2, 5, 10, 20):
    words = names[:40 - repeated] + names[:repeated]
    seen.append(both(words))
    print("40 words, {:2} of them repeated: MTLD {:6.1f}, lexicalrichness {:6.1f}".format(repeated, *seen[-1]))
assert seen[0][0] == 0 and seen[1][0] > 400 and seen[1][0] > seen[2][0] > seen[3][0] > seen[5][0] > seen[0][0]

means = {}
for kind, pool in (("of 400 words", 400), ("of 200 words", 200), ("none repeated", None)):
    random.seed(0)
    answers = []
    for _ in range(200):
        length = random.randint(10, 40)
        answers.append(random.choices(names[:pool], k=length) if pool else random.sample(names, length))
    rows = [both(answer) for answer in answers]
    means[kind] = [sum(column) / 200 for column in zip(*rows)]
    zeros = sum(row[0] == 0 for row in rows)
    print("200 answers, {}: mean MTLD {:.0f}, lexicalrichness {:.0f}; zeros: {}".format(kind, *means[kind], zeros))
assert means["none repeated"][0] == 0 < means["of 200 words"][0]
PY
