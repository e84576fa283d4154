#!/usr/bin/env bash
# Trainer.predict returns the rows in another order if training has batches by length
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (random small Llama with 2 classes, 8 texts).
# Guess: train_sampling_strategy="group_by_length" orders training, as its documentation says ("the sampler to use for
#   the training dataloader"). predictions[i] of predict(rows) is that of rows[i], as with every other strategy.
# True: evaluation and prediction use this sampler too. predictions has the right shape, and its rows are permuted
#   by length and by the seed. label_ids are permuted in the same way, so that metrics look right.
# Hurt: predictions written beside their texts: almost each text gets the prediction of another one.
# Output seen:
#   lengths of the texts: [5, 9, 3, 20, 8, 7, 12, 4]
#   random: row of each prediction [0, 1, 2, 3, 4, 5, 6, 7], label_ids [0, 1, 0, 1, 0, 1, 0, 1]
#   group_by_length: row of each prediction [3, 6, 0, 7, 1, 4, 5, 2], label_ids [1, 0, 0, 1, 1, 0, 1, 0]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments
torch.manual_seed(0)
model = LlamaForSequenceClassification(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32,
    num_hidden_layers=1, num_attention_heads=4, num_labels=2, pad_token_id=0)).eval()
lengths = [5, 9, 3, 20, 8, 7, 12, 4]
rows = [{"input_ids": list(range(3, 3 + n)), "labels": i % 2} for i, n in enumerate(lengths)]
def collate(batch):
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in batch], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([r["labels"] for r in batch])}
with torch.no_grad():
    alone = torch.cat([model(torch.tensor([row["input_ids"]])).logits for row in rows])
print("lengths of the texts:", lengths)
order = {}
for strategy in ("random", "group_by_length"):
    trainer = Trainer(model, TrainingArguments(sys.argv[1], report_to=[], use_cpu=True, disable_tqdm=True,
        per_device_eval_batch_size=4, train_sampling_strategy=strategy), data_collator=collate)
    predicted = trainer.predict(rows)
    off = (torch.tensor(predicted.predictions)[:, None] - alone).abs().amax(-1)
    order[strategy] = off.argmin(1).tolist()
    assert off.min(1).values.max() < 1e-4
    print(f"{strategy}: row of each prediction {order[strategy]}, label_ids {predicted.label_ids.tolist()}")
    assert predicted.label_ids.tolist() == [i % 2 for i in order[strategy]]
assert order["random"] == list(range(8)) != order["group_by_length"] and sorted(order["group_by_length"]) == list(range(8))
PY
