#!/usr/bin/env bash
# In lm-eval a document with a list of references scores 1 from the first common word on, whatever the metric
# Versions: lm-eval 0.4.13, datasets 5.2.0, torch 2.13.0 (a model that gives one fixed answer).
# Guess: with several references a document's score is its best one, max(metric(reference, answer)), as in SQuAD.
# True: process_results gives 1.0 if any score is not 0. A token F1 or ROUGE of 0.1 counts as 1; a list of one reference
#   is enough, so the same data as text and as a list have other scores. A note in the source says that metrics which are
#   not 0 or 1 "may break". Besides, the first document decides for all whether targets are lists: after a list, a plain
#   text is split into its letters, and after a text, a list is compared as it prints, brackets and quotes included.
# Hurt: own tasks of question answering and summaries, of long texts above all: all models are close to 1.
# Output seen:
#   answer of the model: the cat sat on the mat
#   one text: ['a dog ran up the hill']: F1 0.167, exact match 0.0
#   a list of one: [['a dog ran up the hill']]: F1 1.000, exact match 0.0
#   a list of two: [['a dog ran up the hill', 'nobody was there']]: F1 1.000, exact match 0.0
#   a list of one, nothing in common: [['nobody was there']]: F1 0.000, exact match 0.0
#   right answers, list and text: [['the cat sat on the mat'], 'the cat sat on the mat']: F1 0.500, exact match 0.5
#   right answers, text and list: ['the cat sat on the mat', ['the cat sat on the mat']]: F1 0.833, exact match 0.5
#   right answers, both lists: [['the cat sat on the mat'], ['the cat sat on the mat']]: F1 1.000, exact match 1.0
#   warnings of several references: none
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 datasets==5.2.0 lm-eval==0.4.13

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
answer, other, far = "the cat sat on the mat", "a dog ran up the hill", "nobody was there"
class FixedAnswer(LM):
    rank, world_size = 0, 1
    def generate_until(self, requests, **options):
        return [answer] * len(requests)
    def loglikelihood(self, requests):
        raise NotImplementedError
    loglikelihood_rolling = loglikelihood
def token_f1(references, predictions):
    wanted, got = references[0].split(), predictions[0].split()
    return 2 * sum(min(wanted.count(word), got.count(word)) for word in set(got)) / (len(wanted) + len(got))
metrics = [dict(metric=metric, aggregation="mean", higher_is_better=True) for metric in (token_f1, "exact_match")]
file = Path(sys.argv[1]) / "data.json"
def scores(targets):
    file.write_text("\n".join(json.dumps(dict(question="Who sat where?", target=target)) for target in targets))
    task = dict(task="probe", dataset_path="json", dataset_kwargs=dict(data_files=dict(test=str(file))), test_split="test",
        output_type="generate_until", doc_to_text="question", doc_to_target="target", metric_list=metrics,
        generation_kwargs=dict(until=["\n"]))
    row = simple_evaluate(FixedAnswer(), tasks=[task], bootstrap_iters=0)["results"]["probe"]
    return round(float(row["token_f1,none"]), 3), float(row["exact_match,none"])
print(f"answer of the model: {answer}")
rows = {
    "one text": [other], "a list of one": [[other]], "a list of two": [[other, far]], "a list of one, nothing in common": [[far]],
    "right answers, list and text": [[answer], answer], "right answers, text and list": [answer, [answer]],
    "right answers, both lists": [[answer], [answer]]}
results = {}
for name, targets in rows.items():
    results[name] = scores(targets)
    print(f"{name}: {targets}: F1 {results[name][0]:.3f}, exact match {results[name][1]:.1f}")
assert abs(results["one text"][0] - token_f1([other], [answer])) < 1e-3 and 0 < results["one text"][0] < 0.2
assert results["a list of one"][0] == results["a list of two"][0] == 1 and results["a list of one, nothing in common"][0] == 0
assert results["right answers, both lists"] == (1, 1)
assert results["right answers, list and text"] == (0.5, 0.5) and results["right answers, text and list"][1] == 0.5
PY
grep -i "multiple" "$work/log" && exit 1 || echo "warnings of several references: none"
