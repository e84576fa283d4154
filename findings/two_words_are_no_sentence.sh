#!/usr/bin/env bash
# textstat: sentences of one or two words are not counted, their words are: "Dogs run. Cats sit." is a text of grade 89
# Versions: textstat 0.7.13 (texts of 30 to 120 short sentences; formulas that need no dictionary).
# Guess: sentence_count counts sentences, and shorter sentences make a text easier. A sum such as 3.2 is no border.
# True: a piece between two of . ! ? counts if it has three words or more. Of 90 sentences of two words none does, and
#   the text is taken as one sentence of 180 words: a grade of 89, where three words each give less than 0. A dialogue
#   becomes harder with each short turn. Line breaks do not end a sentence, so a list is one. A decimal point does end
#   one: with 3.2 for three, and 0.5 for half, a text has twice as many sentences, and a grade of -1 instead of 3.
# Hurt: filters and rewards by readability: stories for children, dialogues and lists fall out as hardest; numbers make
#   a technical text easier.
# Output seen:
#   three words each: 90 sentences of 3.0 words, ARI grade -1.6, LIX 3.0
#   two words each: 1 sentences of 180.0 words, ARI grade 89.0, LIX 180.0
#   a dialogue: 30 sentences of 12.0 words, ARI grade 4.6, LIX 12.0
#   its long turns alone: 30 sentences of 6.0 words, ARI grade -2.7, LIX 6.0
#   a list: 1 sentences of 330.0 words, ARI grade 159.8, LIX 330.0
#   numbers in words: 30 sentences of 11.0 words, ARI grade 3.3, LIX 29.2
#   numbers in digits: 60 sentences of 6.0 words, ARI grade -0.8, LIX 22.7
. "$(dirname "$0")/common.sh"
venv textstat==0.7.13

"$python" - <<'PY'
import textstat

texts = {"three words each": "The dog runs. The cat sits. The sun shines. " * 30,
         "two words each": "Dogs run. Cats sit. Birds sing. " * 30,
         "a dialogue": '"Tell me why you did it." "Not now." "Please do." "All right." ' * 30,
         "its long turns alone": '"Tell me why you did it." ' * 30,
         "a list": "buy some fresh milk\nfeed the old cat\ncall my mum\n" * 30,
         "numbers in words": "The model has three billion weights and a rate of half. " * 30,
         "numbers in digits": "The model has 3.2 billion weights and a rate of 0.5 now. " * 30}
seen = {}
for name, text in texts.items():
    count, per = textstat.sentence_count(text), textstat.words_per_sentence(text)
    grade, lix = textstat.automated_readability_index(text), textstat.lix(text)
    seen[name] = count, grade
    print(f"{name}: {count} sentences of {per:.1f} words, ARI grade {grade:.1f}, LIX {lix:.1f}")
assert seen["three words each"][0] == 90 and seen["three words each"][1] < 0
assert seen["two words each"][0] == 1 and seen["two words each"][1] > 80 and seen["a list"][0] == 1
assert seen["a dialogue"][0] == seen["its long turns alone"][0] == 30
assert seen["a dialogue"][1] > seen["its long turns alone"][1] + 2
assert seen["numbers in digits"][0] >= 2 * seen["numbers in words"][0]
PY
