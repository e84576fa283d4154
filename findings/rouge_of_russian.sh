#!/usr/bin/env bash
# ROUGE of a text with itself is 0, if the text is Russian or Chinese
# Versions: rouge-score 0.1.2.
# Guess: equal texts have a ROUGE of 1 in each language.
# True: the tokenizer keeps a to z and 0 to 9 alone. A Russian or Chinese text has no tokens and scores 0 against
#   itself. In German each umlaut cuts its word: two different words share the rest. A tokenizer of one's own
#   cures it.
# Hurt: tables of summarization by language: a small number looks like a bad model.
# Output seen:
#   rouge1, as it comes: {'English': 1.0, 'Russian': 0.0, 'Chinese': 0.0, 'German, other words': 0.5}
#   rouge1, split at spaces: {'English': 1.0, 'Russian': 1.0, 'Chinese': 1.0, 'German, other words': 0.0}
. "$(dirname "$0")/common.sh"
venv rouge-score==0.1.2

"$python" - <<'PY'
from rouge_score import rouge_scorer
class Split:
    def tokenize(self, text):
        return text.split()
pairs = {"English": ("the cat sleeps", "the cat sleeps"), "Russian": ("кот спит", "кот спит"),
    "Chinese": ("猫在睡觉", "猫在睡觉"), "German, other words": ("größte", "größe")}
scores = {}
for name, tokenizer in (("as it comes", None), ("split at spaces", Split())):
    rouge = rouge_scorer.RougeScorer(["rouge1"], tokenizer=tokenizer)
    scores[name] = {language: round(rouge.score(*pair)["rouge1"].fmeasure, 2) for language, pair in pairs.items()}
    print(f"rouge1, {name}: {scores[name]}")
assert scores["as it comes"]["English"] == 1 and scores["as it comes"]["Russian"] == scores["as it comes"]["Chinese"] == 0
assert scores["as it comes"]["German, other words"] > 0 and list(scores["split at spaces"].values()) == [1, 1, 1, 0]
PY
