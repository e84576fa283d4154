#!/usr/bin/env bash
# With schedule-free AdamW Trainer saves other weights than it evaluates, and evaluate() swaps them
# Versions: transformers 5.24.0, schedulefree 1.4.1, accelerate 1.15.0, torch 2.13.0 (CPU; Llama of 2 layers, random).
# Guess: optim="schedule_free_adamw" hides the two sets of weights of the method: what is saved, evaluated and left in
#   the model at the end is the average, which is the result.
# True: Trainer puts the optimizer into train mode in each update, and into eval mode in evaluate() and predict() alone.
#   A checkpoint has the average only if an evaluation came right before it. Otherwise the files, save_model() and the
#   model after train() have the point where the gradient is taken, which is worse, the more so the higher the rate.
#   Evaluating afterwards swaps the weights: the reported loss belongs to no saved file, and the model is another one
#   than before.
# Hurt: runs without evaluation, or with save_steps and eval_steps that differ: the method looks worse than it is.
# Output seen:
#   eval_strategy=no, loss: last checkpoint 1.140, model after train() 1.140, evaluate() 1.102, model after evaluate() 1.102
#   eval_strategy=epoch, loss: last checkpoint 1.102, model after train() 1.102, evaluate() 1.102, model after evaluate() 1.102
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 schedulefree==1.4.1

"$python" - "$work" <<'PY' 2> "$work/log" | grep loss: || { cat "$work/log"; exit 1; }
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
torch.manual_seed(0)
follows = torch.randint(64, (64, 3))                           # each token is followed by one of three
def texts(count):
    tokens = [torch.zeros(count, dtype=torch.long)]
    for _ in range(31):
        tokens.append(follows[tokens[-1], torch.randint(3, (count,))])
    return torch.stack(tokens, 1)
train, test = texts(512), texts(64)
def loss(model):
    with torch.no_grad():
        return model.eval()(input_ids=test, labels=test).loss.item()
losses = {}
for evaluation in ("no", "epoch"):
    folder = f"{sys.argv[1]}/{evaluation}"
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(folder, optim="schedule_free_adamw", learning_rate=0.05, max_grad_norm=0,
                                  num_train_epochs=3, lr_scheduler_type="constant", save_strategy="epoch",
                                  eval_strategy=evaluation, report_to=[], disable_tqdm=True, use_cpu=True,
                                  logging_strategy="no")
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in train],
                      eval_dataset=[{"input_ids": row, "labels": row} for row in test])
    trainer.train()
    saved = loss(LlamaForCausalLM.from_pretrained(f"{folder}/checkpoint-192"))
    before = loss(model)
    reported = trainer.evaluate()["eval_loss"]
    losses[evaluation] = saved, before, reported, loss(model)
    print(f"eval_strategy={evaluation}, loss: last checkpoint {saved:.3f}, model after train() {before:.3f}, "
          f"evaluate() {reported:.3f}, model after evaluate() {losses[evaluation][3]:.3f}")
saved, before, reported, after = losses["no"]
assert abs(saved - before) < 1e-4 and abs(reported - after) < 1e-3 and saved > reported + 0.02
assert max(losses["epoch"]) - min(losses["epoch"]) < 1e-3
PY
