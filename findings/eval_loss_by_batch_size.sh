#!/usr/bin/env bash
# Trainer's evaluation loss depends on the batch size, its training loss does not
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (random small Llama).
# Guess: Trainer averages over tokens, as it does in training, so eval_loss is the loss per token.
# True: in evaluation each batch's mean counts as often as the batch has rows. A text of 2 tokens weighs as much
#   as one of 60 if they are in different batches. Only with all texts in one batch is it the mean over tokens.
# Hurt: exp(eval_loss) as perplexity, early stopping, and comparisons between machines with other batch sizes.
# Output seen:
#   loss per token 5.1133; by batch size: training 5.1133 at 1, 5.1133 at 2, 5.1133 at 8; evaluation 5.4153 at 1, 5.1057 at 2, 5.1133 at 8
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=4, initializer_range=0.2))
rows = [{"input_ids": torch.randint(3, 100, (n,))} for n in (2, 40, 3, 50, 4, 60, 5, 30)]
def collate(batch):
    pad = lambda value: torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in batch], True, value)
    return {"input_ids": pad(0), "labels": pad(-100), "attention_mask": (pad(-100) != -100).long()}
with torch.no_grad():
    texts = [row["input_ids"][None] for row in rows]
    losses = [(model(ids, labels=ids).loss.item(), ids.shape[1] - 1) for ids in texts]
per_token = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
evaluated, trained = {}, {}
for size in (1, 2, 8):
    settings = dict(report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=0.0, max_steps=1, save_strategy="no",
        per_device_eval_batch_size=size, per_device_train_batch_size=size, gradient_accumulation_steps=8 // size)
    trainer = Trainer(model, TrainingArguments(sys.argv[1], **settings), data_collator=collate, train_dataset=rows,
        eval_dataset=rows)
    trainer.log = lambda logs, *_: None
    evaluated[size], trained[size] = trainer.evaluate()["eval_loss"], trainer.train().training_loss
text = lambda losses: ", ".join(f"{loss:.4f} at {size}" for size, loss in losses.items())
print(f"loss per token {per_token:.4f}; by batch size: training {text(trained)}; evaluation {text(evaluated)}")
assert all(abs(loss - per_token) < 1e-3 for loss in [*trained.values(), evaluated[8]])
assert abs(evaluated[1] - per_token) > 0.05
PY
