#!/usr/bin/env bash
# lighteval: HELM's normalizer makes -5 equal to 5 and 3.5 equal to 35, and 2.0 equal to 20 instead of 2
# Versions: lighteval 0.13.0, torch 2.13.0 (CPU).
# Guess: quasi-exact match, ExactMatches with helm_normalizer, forgives case, articles and punctuation, and compares
#   numbers as numbers, as its description says ("1.0 vs 1").
# True: the text is split at every "-", which drops signs, and points are removed as punctuation before it is read as a
#   number. So wrong numbers are right, and 2.0 is not 2.
# Hurt: quasi-exact match of short answers with numbers (DROP, NarrativeQA, own tasks); temperatures, changes, scores.
# Output seen:
#   gold the Seine, answer Seine.: 1
#   gold 5, answer -5: 1
#   gold 35, answer 3.5: 1
#   gold 20, answer 2.0: 1
#   gold 2, answer 2.0: 0
#   gold 12, answer 1/2: 1
. "$(dirname "$0")/common.sh"
venv lighteval==0.13.0 torch==2.13.0 transformers==5.24.0

"$python" - 2> /dev/null <<'PY'
from lighteval.metrics.metrics_sample import ExactMatches
from lighteval.metrics.normalizations import helm_normalizer

quasi = ExactMatches(normalize_gold=helm_normalizer, normalize_pred=helm_normalizer)
expected = {("the Seine", "Seine."): 1, ("5", "-5"): 1, ("35", "3.5"): 1, ("20", "2.0"): 1,
            ("2", "2.0"): 0, ("12", "1/2"): 1}
for (gold, answer), right in expected.items():
    found = quasi.compute_one_item(gold, answer)
    print(f"gold {gold}, answer {answer}: {found}")
    assert found == right
PY
