#!/usr/bin/env bash
# deepeval: TruthfulQA's MC2 scores an answer that lists all choices as perfect, and in batches a single hit as well
# Versions: deepeval 4.3.1, pandas 3.1.1, datasets 4.8.5.
# Guess: choices that are listed wrongly cost something, the score lies between 0 and 1, and batches do not change it.
# True: the score is the percentage of right choices that are listed. Wrong ones are free, repeated ones count again, so
#   "[1, 1, 1]" can have more than all. The accuracy is the mean of percentages, up to 100 and beyond. With batch_size
#   each score above 0 counts as 1, so that one hit is as good as all, and the accuracy is at most 1.
# Hurt: MC2 by deepeval beside papers, where it is a share of probability; the same model with and without batches.
# Output seen:
#   lists the right four: accuracy 100.0, in batches 1.0
#   lists all eight: accuracy 100.0, in batches 1.0
#   lists one right: accuracy 25.0, in batches 1.0
#   lists one right and four wrong: accuracy 25.0, in batches 1.0
#   lists one right, eight times: accuracy 200.0, in batches 1.0
. "$(dirname "$0")/common.sh"
venv deepeval==4.3.1 pandas==3.1.1 datasets==4.8.5

DEEPEVAL_TELEMETRY_OPT_OUT=YES "$python" - 2> /dev/null <<'PY' | grep -v TruthfulQA
import re
from datasets import Dataset
from deepeval.benchmarks import TruthfulQA
from deepeval.benchmarks.modes import TruthfulQAMode
from deepeval.benchmarks.tasks import TruthfulQATask
from deepeval.models import DeepEvalBaseLLM

class Chooser(DeepEvalBaseLLM):
    """A model that finds the right choices of a question and passes them through `rule`."""
    def __init__(self, rule):
        self.rule = rule

    def load_model(self):
        return self

    def generate(self, prompt):
        right = [int(i) for i in re.findall(r"^(\d)\. right", prompt, flags=re.MULTILINE)]
        return str(self.rule(right))

    def batch_generate(self, prompts):
        return [self.generate(prompt) for prompt in prompts]

    async def a_generate(self, prompt):
        return self.generate(prompt)

    def get_model_name(self):
        return "chooser"

# ten questions with four right and four wrong choices, in the form of the published data
targets = {"choices": ["right"] * 4 + ["wrong"] * 4, "labels": [1] * 4 + [0] * 4}
rows = [{"question": f"Question {i}?", "category": "Science", "mc2_targets": targets} for i in range(10)]
rules = {"the right four": lambda right: right, "all eight": lambda right: list(range(1, 9)),
         "one right": lambda right: right[:1], "one right and four wrong":
         lambda right: right[:1] + [i for i in range(1, 9) if i not in right],
         "one right, eight times": lambda right: right[:1] * 8}
found = {}
for name, rule in rules.items():
    scores = []
    for batch_size in (None, 5):
        benchmark = TruthfulQA(tasks=[TruthfulQATask.SCIENCE], mode=TruthfulQAMode.MC2, dataset=Dataset.from_list(rows))
        scores.append(benchmark.evaluate(Chooser(rule), batch_size=batch_size).overall_accuracy)
    found[name] = scores
    print(f"lists {name}: accuracy {scores[0]}, in batches {scores[1]}")
assert [scores[0] for scores in found.values()] == [100, 100, 25, 25, 200]
assert all(scores[1] == 1 for scores in found.values())
PY
