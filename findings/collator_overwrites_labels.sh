#!/usr/bin/env bash
# The collator for language modelling trains on the prompts that the labels mask
# Versions: transformers 5.24.0, tokenizers 0.23.3, torch 2.13.0.
# Guess: DataCollatorForLanguageModeling(mlm=False) makes labels where rows have none, and keeps those that they
#   have.
# True: it writes a copy of input_ids over them. A prompt that the rows mask with -100 is trained on.
#   DataCollatorForSeq2Seq and default_data_collator keep the labels.
# Hurt: instruction tuning with labels made in map: the loss is that of prompts and answers, and nothing says so.
# Output seen:
#   DataCollatorForLanguageModeling: labels [[5, 6, 7, 8], [9, 3, 4, 2]]
#   DataCollatorForSeq2Seq: labels [[-100, -100, 7, 8], [-100, 3, 4, 2]]
#   default_data_collator: labels [[-100, -100, 7, 8], [-100, 3, 4, 2]]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq, PreTrainedTokenizerFast
from transformers import default_data_collator
words = Tokenizer(models.WordLevel({"<pad>": 0, **{f"w{i}": i for i in range(1, 100)}}, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<pad>")
rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, {"input_ids": [9, 3, 4, 2], "labels": [-100, 3, 4, 2]}]
collators = {"DataCollatorForLanguageModeling": DataCollatorForLanguageModeling(tokenizer, mlm=False),
    "DataCollatorForSeq2Seq": DataCollatorForSeq2Seq(tokenizer), "default_data_collator": default_data_collator}
labels = {}
for name, collate in collators.items():
    labels[name] = collate([dict(row) for row in rows])["labels"].tolist()
    print(f"{name}: labels {labels[name]}")
given = [row["labels"] for row in rows]
assert labels["DataCollatorForLanguageModeling"] == [row["input_ids"] for row in rows]
assert labels["DataCollatorForSeq2Seq"] == labels["default_data_collator"] == given
PY
