#!/usr/bin/env bash
# DatasetDict.class_encode_column gives a class another number in a split that lacks one of the classes
# Versions: datasets 5.2.0 (a training split with three labels, a test split with two of them).
# Guess: a method of the whole dictionary numbers the classes once, over all splits, or refuses splits that differ.
# True: each split is numbered by its own sorted labels. In the test split, which has no "contradiction", "entailment"
#   is 0 and not 1. features["label"].names differ between the splits, and nothing is printed.
# Hurt: small or filtered test splits, rare classes: a model that knows every answer has an accuracy of 0.
# Output seen:
#   train: names ['contradiction', 'entailment', 'neutral'], numbers {'contradiction': 0, 'entailment': 1, 'neutral': 2}
#   test: names ['entailment', 'neutral'], numbers {'entailment': 0, 'neutral': 1}
#   test accuracy of the right answers, numbered as in training: 0.0
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 numpy==2.4.6 pyarrow==26.0.1 pandas==3.1.1

"$python" - <<'PY'
from datasets import Dataset, DatasetDict
labels = {"train": ["contradiction", "entailment", "neutral"] * 2, "test": ["entailment", "neutral", "neutral"]}
data = DatasetDict({split: Dataset.from_dict({"label": names}) for split, names in labels.items()})
encoded = data.class_encode_column("label")
numbers = {}
for split, names in labels.items():
    numbers[split] = dict(sorted(zip(names, encoded[split]["label"])))
    print(f"{split}: names {encoded[split].features['label'].names}, numbers {numbers[split]}")
right = [numbers["train"][name] == number for name, number in zip(labels["test"], encoded["test"]["label"])]
print(f"test accuracy of the right answers, numbered as in training: {sum(right) / len(right)}")
assert numbers["train"] == {"contradiction": 0, "entailment": 1, "neutral": 2}
assert numbers["test"] == {"entailment": 0, "neutral": 1} and not any(right)
PY
