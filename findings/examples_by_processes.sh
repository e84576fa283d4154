#!/usr/bin/env bash
# lm-eval gives a question other few-shot examples on two processes than on one, and if it is asked alone
# Versions: lm-eval 0.4.13, datasets 5.2.0, torch 2.13.0.
# Guess: with a fixed fewshot_random_seed (1234 by default) a question has the same prompt each time, whatever the number of
#   GPUs, and so one can ask a single question again by --samples.
# True: one generator draws the examples, question after question. Each process starts it anew and goes through its own
#   questions: with N processes question i gets the examples that question i // N has on one. With --samples the first
#   one asked gets the examples of question 0. --limit alone changes nothing.
# Hurt: comparisons of models run on one and on several GPUs: they differ by as much as two few-shot seeds do. Looking
#   into a wrong answer: asked alone, the question has another prompt.
# Output seen:
#   one process: Question 1001: 1; Question 1022: 22; Question 5:
#   one process again: 40 of 40 prompts are those of one process; Question 1001: 1; Question 1022: 22; Question 5:
#   one process, limit of 10: 10 of 10 prompts are those of one process; Question 1001: 1; Question 1022: 22; Question 5:
#   two processes: 1 of 40 prompts are those of one process; Question 1037: 37; Question 1002: 2; Question 5:
#   eight processes: 1 of 40 prompts are those of one process; Question 1028: 28; Question 1007: 7; Question 5:
#   samples 5 and 6: 0 of 2 prompts are those of one process; Question 1028: 28; Question 1007: 7; Question 5:
#   another seed: 0 of 40 prompts are those of one process; Question 1006: 6; Question 1031: 31; Question 5:
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 datasets==5.2.0 lm-eval==0.4.13

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import sys
from pathlib import Path

from lm_eval.api.task import ConfigurableTask
folder = Path(sys.argv[1])
for split, start in (("train", 1000), ("test", 0)):
    rows = (json.dumps(dict(question=f"Question {start + i}", answer=f"{i}")) for i in range(40))
    (folder / f"{split}.json").write_text("\n".join(rows))
files = {split: str(folder / f"{split}.json") for split in ("train", "test")}
def prompts(seed=1234, **options):
    task = ConfigurableTask(config=dict(
        task="probe", dataset_path="json", dataset_kwargs=dict(data_files=files), training_split="train", test_split="test",
        output_type="generate_until", doc_to_text="{{question}}:", doc_to_target="answer", num_fewshot=2, fewshot_delimiter="; ",
        metric_list=[dict(metric="exact_match")], generation_kwargs=dict(until=["\n"])))
    task.set_fewshot_seed(seed)  # as simple_evaluate does
    task.build_all_requests(**options)
    return {each.doc["question"]: each.args[0] for each in task.instances}
one = prompts()
variants = {
    "one process again": prompts(), "one process, limit of 10": prompts(limit=10),
    "two processes": prompts(rank=0, world_size=2) | prompts(rank=1, world_size=2),
    "eight processes": {k: v for rank in range(8) for k, v in prompts(rank=rank, world_size=8).items()},
    "samples 5 and 6": prompts(samples=[5, 6]), "another seed": prompts(seed=1)}
print(f"one process: {one['Question 5']}")
equal = {}
for name, row in variants.items():
    equal[name] = sum(one[question] == prompt for question, prompt in row.items())
    print(f"{name}: {equal[name]} of {len(row)} prompts are those of one process; {row['Question 5']}")
assert equal["one process again"] == 40 and equal["one process, limit of 10"] == 10
assert equal["two processes"] <= 2 and equal["eight processes"] <= 2 and equal["samples 5 and 6"] == 0
PY
