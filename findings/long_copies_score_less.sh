#!/usr/bin/env bash
# rouge-metric: ROUGE-W of a text with itself is .82 for six words and .57 for 100
# Versions: rouge-metric 1.0.1.
# Guess: a summary that is the reference has a ROUGE-W of 1, as with all other ROUGE scores.
# True: the recall is divided by the length without the weight: for a copy of n words it is n to the power of -.2, and
#   F1 falls with the length: of ten words it is .77, of 1,000 words .40.
# Hurt: summaries of long documents; tables with several ROUGE scores.
# Output seen:
#   a copy of 1 words: ROUGE-1 1.00, ROUGE-L 1.00, ROUGE-W 1.00, its recall 1.00
#   a copy of 6 words: ROUGE-1 1.00, ROUGE-L 1.00, ROUGE-W 0.82, its recall 0.70
#   a copy of 10 words: ROUGE-1 1.00, ROUGE-L 1.00, ROUGE-W 0.77, its recall 0.63
#   a copy of 100 words: ROUGE-1 1.00, ROUGE-L 1.00, ROUGE-W 0.57, its recall 0.40
#   a copy of 1000 words: ROUGE-1 1.00, ROUGE-L 1.00, ROUGE-W 0.40, its recall 0.25
. "$(dirname "$0")/common.sh"
venv rouge-metric==1.0.1

"$python" - <<'PY'
from rouge_metric import PyRouge

for words in (1, 6, 10, 100, 1000):
    text = " ".join(f"w{i}" for i in range(words))
    found = PyRouge(rouge_n=1, rouge_l=True, rouge_w=True).evaluate([text], [[text]])
    row = [found[name]["f"] for name in ("rouge-1", "rouge-l", "rouge-w-1.2")] + [found["rouge-w-1.2"]["r"]]
    print("a copy of {} words: ROUGE-1 {:.2f}, ROUGE-L {:.2f}, ROUGE-W {:.2f}, its recall {:.2f}".format(words, *row))
    assert row[0] == row[1] == 1 and abs(row[3] - words ** -0.2) < 1e-6
PY
