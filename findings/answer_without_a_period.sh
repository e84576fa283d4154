#!/usr/bin/env bash
# lm-eval's gsm8k_cot takes the last digit of an answer without a period: 18 is read as 1, and 180 as 18
# Versions: lm-eval 0.4.13, datasets 5.2.0, numpy 2.4.6 (605 answers that are given; no model).
# Guess: "strict-match" asks for the words "The answer is" and reads the number after them. An answer that it cannot
#   read becomes [invalid], and counts as wrong.
# True: the pattern is "The answer is (\-?[0-9\.\,]+)." with a dot at its end that stands for any character but a line
#   break. A number at the end of the text, or of a line, has none after it, so that the search steps back and gives the
#   dot the last digit: 18 becomes 1. One digit alone is [invalid]. A wrong answer ten times too large, 180 to 189,
#   becomes 18 and is right. gsm8k_cot_zeroshot and the two of gsm8k_platinum have the same pattern.
# Hurt: models that do not write the period: they are told to be brief, trained on answers without it, or stopped at it.
#   Comparisons of models measure who writes periods. flexible-extract does not have this.
# Output seen:
#   'The answer is 18.' is read as 18
#   'The answer is 18' is read as 1
#   'The answer is 18\n' is read as 1
#   'The answer is 185' is read as 18
#   'The answer is 8' is read as [invalid]
#   right: with a period strict-match 1.00, flexible-extract 1.00; without 0.00 and 1.00
#   right in 4 of 5: with a period strict-match 0.78, flexible-extract 0.78; without 0.00 and 0.78
#   ten times too much: with a period strict-match 0.00, flexible-extract 0.00; without 1.00 and 0.00
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 datasets==5.2.0 lm-eval==0.4.13

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import random
import sys
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.model import LM

config = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot.yaml").read_text())
file = Path(sys.argv[1]) / "data.json"
config.update(dataset_path="json", dataset_kwargs=dict(data_files=dict(test=str(file))), num_fewshot=0)
del config["dataset_name"], config["tag"]

class FixedAnswers(LM):
    rank, world_size = 0, 1
    def generate_until(self, requests, **options):
        return [request.doc["text"] for request in requests]
    def loglikelihood(self, requests):
        raise NotImplementedError
    loglikelihood_rolling = loglikelihood

texts = ["The answer is 18.", "The answer is 18", "The answer is 18\n", "The answer is 185", "The answer is 8"]
rows = [dict(question="How many?", answer="#### 18", text=text, group=text) for text in texts]
random.seed(0)
numbers = [random.randrange(1, 2000) for _ in range(100)]
models = {"right": lambda number: number, "right in 4 of 5": lambda number: number + (random.random() < 0.2),
          "ten times too much": lambda number: 10 * number}
for name, model in models.items():
    for number in numbers:
        text = f"The answer is {model(number)}"
        for end in (".", ""):
            rows.append(dict(question="How many?", answer=f"#### {number}", text=text + end, group=name + end))
file.write_text("\n".join(map(json.dumps, rows)))
results = lm_eval.simple_evaluate(FixedAnswers(), tasks=[config], bootstrap_iters=0, log_samples=True)
read, scores = {}, {}
for row in results["samples"]["gsm8k_cot"]:
    key = row["doc"]["group"], row["filter"].split("-")[0]
    read[key] = row["filtered_resps"][0]
    scores.setdefault(key, []).append(float(row["exact_match"]))
accuracy = {key: sum(values) / len(values) for key, values in scores.items()}
print(*(f"{text!r} is read as {read[text, 'strict']}" for text in texts), sep="\n")
for name in models:
    print(name + ": with a period strict-match {:.2f}, flexible-extract {:.2f}; without {:.2f} and {:.2f}".format(
        *(accuracy[name + end, filter] for end in (".", "") for filter in ("strict", "flexible"))))
assert [read[text, "strict"] for text in texts] == ["18", "1", "1", "18", "[invalid]"]
assert accuracy["right.", "strict"] == accuracy["right", "flexible"] == 1 and accuracy["right", "strict"] == 0
assert accuracy["ten times too much.", "strict"] == 0 and accuracy["ten times too much", "strict"] == 1
PY
