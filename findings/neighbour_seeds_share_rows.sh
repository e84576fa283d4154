#!/usr/bin/env bash
# reasoning-gym: the questions of seed 1 are those of seed 0, moved by one row, and an endless stream has few of them
# Versions: reasoning-gym 0.1.25 (four of its tasks and a composite of two, 500 questions each).
# Guess: another seed gives other questions, and ReseedingDataset, which is infinite, goes on with new ones.
# True: row i is drawn from Random(seed + i). Of 500 questions with seed 1, 499 are among those with seed 0; two seeds
#   that are closer than the size share all rows but as many as their distance. A composite hands the seed on, so that
#   the same holds for it. ReseedingDataset adds 1 to the seed after each chunk of 500: each chunk is the last one
#   without its first row, and among 10,000 questions there are 515 different ones.
# Hurt: training and validation with seeds 0 and 1, or 42 and 43; repetitions over five seeds, whose spread is too low;
#   reinforcement learning on the endless stream, which is in truth many epochs of a few questions.
# Output seen:
#   chain_sum      : of 500 questions, seed 0 has 499 of seed 1, 402 of seed 100, 4 of seed 500
#   needle_haystack: of 500 questions, seed 0 has 499 of seed 1, 400 of seed 100, 0 of seed 500
#   number_sorting : of 500 questions, seed 0 has 499 of seed 1, 400 of seed 100, 0 of seed 500
#   spiral_matrix  : of 500 questions, seed 0 has 499 of seed 1, 400 of seed 100, 2 of seed 500
#   composite      : of 500 questions, seed 0 has 499 of seed 1, 402 of seed 100, 2 of seed 500
#   ReseedingDataset: 10000 questions, 515 different ones
. "$(dirname "$0")/common.sh"
venv reasoning-gym==0.1.25

"$python" - 2> /dev/null <<'PY'
from itertools import islice
from reasoning_gym import create_dataset
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.dataset import ReseedingDataset

tasks = "chain_sum", "needle_haystack", "number_sorting", "spiral_matrix"
both = [DatasetSpec(name=name, weight=1, config={}) for name in tasks[::2]]

def questions(name, seed):
    more = {"datasets": both} if name == "composite" else {}
    return [row["question"] for row in create_dataset(name, seed=seed, size=500, **more)]

for name in (*tasks, "composite"):
    first = set(questions(name, 0))
    shared = [sum(question in first for question in questions(name, seed)) for seed in (1, 100, 500)]
    print("{:15}: of 500 questions, seed 0 has {} of seed 1, {} of seed 100, {} of seed 500".format(name, *shared))
    assert 499 <= shared[0] and 400 <= shared[1] <= 410 and shared[2] < 10
stream = [row["question"] for row in islice(ReseedingDataset(create_dataset("chain_sum", seed=0, size=500)), 10_000)]
print(f"ReseedingDataset: {len(stream)} questions, {len(set(stream))} different ones")
assert 500 < len(set(stream)) < 520
PY
