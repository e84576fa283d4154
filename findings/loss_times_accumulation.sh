#!/usr/bin/env bash
# Trainer multiplies the loss of classifiers, BERT, T5 and BART by the accumulation steps and the processes
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (CPU; models of one layer, random; 8 rows an update).
# Guess: 8 rows in one batch, in 8 batches of a row with gradient_accumulation_steps=8, or on 2 processes give the same
#   loss, gradient norm and update, as they do for a causal model.
# True: a model whose forward takes **kwargs is trusted to divide its loss by the number of labels in the whole update,
#   which Trainer hands over as num_items_in_batch. Trainer then does not divide by the steps, and multiplies by the
#   processes. In version 5 nearly every forward takes **kwargs, but few models besides causal ones use that number:
#   classifiers, regressors, BERT, T5 and BART return a mean as before. Loss and gradient are 8 times too large with 8
#   steps, and twice too large on 2 processes without any accumulation; there the evaluation's loss is doubled, too.
# Hurt: classifiers, reward models by regression, encoders and seq2seq models on small or several cards. The default
#   max_grad_norm=1 clips 8 times as early, SGD has 8 times the rate, and losses cannot be compared with other runs.
# Output seen:
#   loss, gradient norm and loss of evaluation in 1 x 8 rows; 8 steps of 1 row; 2 processes of 4 rows:
#   Llama, next token    4.16 0.74 4.16; 4.16 0.74 4.16; 4.16 0.74 4.16
#   Llama, classes       1.59 2.67 1.59; 12.74 21.37 1.59; 3.18 5.34 3.18
#   Llama, regression    1.12 5.44 1.12; 8.99 43.53 1.12; 2.25 10.88 2.25
#   Bert, masked tokens  4.17 1.29 4.17; 33.37 10.36 4.17; 8.34 2.59 8.34
#   T5, seq2seq          5.04 1.34 5.04; 40.36 10.71 5.04; 10.09 2.68 10.09
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

cat > "$work/train.py" <<'PY'
import json
import sys
import torch
from transformers import (BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification,
                          T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments)
log_file, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
             pad_token_id=0)
no_dropout = dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
t5 = T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0,
              decoder_start_token_id=0)
torch.manual_seed(0)
tokens, classes, scores = torch.randint(3, 64, (8, 16)), torch.randint(5, (8,)), torch.randn(8)
tasks = {"Llama, next token": (LlamaForCausalLM, LlamaConfig(**sizes), tokens),
         "Llama, classes": (LlamaForSequenceClassification, LlamaConfig(**sizes, num_labels=5), classes),
         "Llama, regression": (LlamaForSequenceClassification, LlamaConfig(**sizes, num_labels=1), scores),
         "Bert, masked tokens": (BertForMaskedLM, BertConfig(**sizes, **no_dropout), tokens),
         "T5, seq2seq": (T5ForConditionalGeneration, t5, tokens)}
results = {}
for name, (model_class, config, labels) in tasks.items():
    torch.manual_seed(0)
    model = model_class(config)
    arguments = TrainingArguments(
        f"{log_file}.run", per_device_train_batch_size=batch, gradient_accumulation_steps=steps, max_grad_norm=1e9,
        max_steps=1, learning_rate=0, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        use_cpu=True, log_level="error")
    rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels)]
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "grad_norm" in entry)
    results[name] = log["loss"], float(log["grad_norm"]), trainer.evaluate()["eval_loss"]
if trainer.is_world_process_zero():
    json.dump(results, open(log_file, "w"))
PY
{
    "$python" "$work/train.py" "$work/batch" 8 1
    "$python" "$work/train.py" "$work/steps" 1 8
    "$python" -m torch.distributed.run --standalone --nproc_per_node 2 "$work/train.py" "$work/processes" 4 1
} > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$python" - "$work" <<'PY'
import json
import sys
batch, steps, processes = (json.load(open(f"{sys.argv[1]}/{name}")) for name in ("batch", "steps", "processes"))
print("loss, gradient norm and loss of evaluation in 1 x 8 rows; 8 steps of 1 row; 2 processes of 4 rows:")
for name, values in batch.items():
    runs = values, steps[name], processes[name]
    print(f"{name:<20}", "; ".join(" ".join(f"{value:.2f}" for value in run) for run in runs))
    by_steps, by_processes = ([other / value for value, other in zip(values, run)] for run in runs[1:])
    causal = name == "Llama, next token"
    assert all(abs(ratio - wanted) < 0.1 for ratio, wanted in zip(by_steps, [1, 1, 1] if causal else [8, 8, 1]))
    assert all(abs(ratio - (1 if causal else 2)) < 0.1 for ratio in by_processes), by_processes
PY
