#!/usr/bin/env bash
# deepeval: its HumanEval defines the tests and never calls them: each answer without an import passes, right or wrong
# Versions: deepeval 4.3.1, pandas 3.1.1, datasets 4.8.5.
# Guess: pass@1 is the mean share of samples that pass the tests of openai_humaneval.
# True: the data hold a function check(candidate), which the paper's code calls after its definition. deepeval only
#   defines it, so a stub and a wrong answer pass. A right answer with "from typing import List", as many prompts have
#   it, fails, because the code is run without imports. A task counts as solved if pass@k is above 0, whatever k is,
#   that is, if one of the n samples passes (200 by default).
# Hurt: accuracies on code by deepeval beside papers; they rank models by whether they repeat the imports.
# Output seen:
#   right answer: accuracy 1.0
#   wrong answer: accuracy 1.0
#   empty answer: accuracy 1.0
#   right answer with its import: accuracy 0.0
#   one answer of ten is without the import, k=1: accuracy 1.0
. "$(dirname "$0")/common.sh"
venv deepeval==4.3.1 pandas==3.1.1 datasets==4.8.5

DEEPEVAL_TELEMETRY_OPT_OUT=YES "$python" - 2> /dev/null <<'PY' | grep -v HumanEval
from datasets import Dataset
from deepeval.benchmarks import HumanEval
from deepeval.benchmarks.tasks import HumanEvalTask
from deepeval.models import DeepEvalBaseLLM

class Coder(DeepEvalBaseLLM):
    """A model that repeats a list of answers."""
    def __init__(self, answers):
        self.answers = answers

    def load_model(self):
        return self

    def generate(self, prompt):
        return self.answers[0]

    async def a_generate(self, prompt):
        return self.answers[0]

    def generate_samples(self, prompt, n, temperature):
        return [self.answers[i % len(self.answers)] for i in range(n)]

    def get_model_name(self):
        return "coder"

# a task in the form of the published data
task = {"entry_point": "add", "prompt": "def add(x: int, y: int):\n    \"\"\"Add two numbers x and y\"\"\"\n",
        "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(2, 3) == 5\n"}
data = {"test": Dataset.from_list([task])}

right = "def add(x, y):\n    return x + y\n"
importing = "from typing import List\n\n" + right
cases = {"right answer": [right], "wrong answer": ["def add(x, y):\n    return x * y - 1\n"], "empty answer": [""],
         "right answer with its import": [importing],
         "one answer of ten is without the import, k=1": [right] + 9 * [importing]}
found = {}
for name, answers in cases.items():
    benchmark = HumanEval(tasks=[HumanEvalTask.ADD], n=10, dataset=data)
    found[name] = benchmark.evaluate(Coder(answers), k=1).overall_accuracy
    print(f"{name}: accuracy {found[name]}")
assert list(found.values()) == [1, 1, 1, 0, 1]
PY
