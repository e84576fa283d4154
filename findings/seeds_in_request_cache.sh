#!/usr/bin/env bash
# With lm-eval's cache_requests all few-shot seeds have the first one's prompts, and a new template changes nothing
# Versions: lm-eval 0.4.13, datasets 5.2.0, torch 2.13.0 (a model that writes down its prompts).
# Guess: --cache_requests keeps the prompts of a task under a key of all that they are made of, so that a new seed, a new
#   template or other questions are built anew.
# True: the key is the task's name, the number of examples, the rank, the number of processes and the chat options.
#   fewshot_random_seed, the templates, the description and --samples are not in it. The file lives in the package's own
#   folder (LM_HARNESS_CACHE_PATH moves it), and so from one day and one project to the next.
# Hurt: the spread over few-shot seeds, which comes out as 0; work on a prompt, which seems to have no effect.
# Output seen:
#   cache_requests=False: four few-shot seeds have 4 sets of prompts; the last prompt by seed: Question 1034: 34; Question 19:, Question 1014: 14; Question 19:, Question 1032: 32; Question 19:, Question 1030: 30; Question 19:
#     with another template: Give a number. Question 1034: 34; Give a number. Question 19:
#   cache_requests=True: four few-shot seeds have 1 sets of prompts; the last prompt by seed: Question 1034: 34; Question 19:, Question 1034: 34; Question 19:, Question 1034: 34; Question 19:, Question 1034: 34; Question 19:
#     with another template: Question 1034: 34; Question 19:
#   warnings of the cache: none
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 datasets==5.2.0 lm-eval==0.4.13
export LM_HARNESS_CACHE_PATH="$work/requests"

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
folder = Path(sys.argv[1])
for split, start in (("train", 1000), ("test", 0)):
    rows = (json.dumps(dict(question=f"Question {start + i}", answer=f"{i}")) for i in range(40))
    (folder / f"{split}.json").write_text("\n".join(rows))
files = {split: str(folder / f"{split}.json") for split in ("train", "test")}
class Recorder(LM):
    rank, world_size = 0, 1
    def generate_until(self, requests, **options):
        self.prompts = [each.args[0] for each in requests]
        return ["0"] * len(requests)
    def loglikelihood(self, requests):
        raise NotImplementedError
    loglikelihood_rolling = loglikelihood
def prompts(seed, template, cache):
    model = Recorder()
    task = dict(
        task="probe", dataset_path="json", dataset_kwargs=dict(data_files=files), training_split="train", test_split="test",
        output_type="generate_until", doc_to_text=template, doc_to_target="answer", num_fewshot=1, fewshot_delimiter="; ",
        metric_list=[dict(metric="exact_match", aggregation="mean", higher_is_better=True)], generation_kwargs=dict(until=["\n"]))
    simple_evaluate(model, tasks=[task], fewshot_random_seed=seed, cache_requests=cache, bootstrap_iters=0, limit=20)
    return tuple(model.prompts)
results = {}
for cache in (False, True):
    runs = [prompts(seed, "{{question}}:", cache) for seed in range(4)]
    edited = prompts(0, "Give a number. {{question}}:", cache)
    results[cache] = len(set(runs)), edited == runs[0]
    print(f"cache_requests={cache}: four few-shot seeds have {len(set(runs))} sets of prompts; the last prompt by seed:",
          ", ".join(run[-1] for run in runs))
    print(f"  with another template: {edited[-1]}")
assert results == {False: (4, False), True: (1, True)}
PY
grep -iE "seed|stale|cache" "$work/log" | grep -i warn && exit 1 || echo "warnings of the cache: none"
