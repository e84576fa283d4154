#!/usr/bin/env bash
# bf16_full_eval: evaluate() before train() rounds the weights to bf16 for the whole training, after it for save_model()
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (CPU; Llama of 1 layer, 20 updates at a rate of 1e-5).
# Guess: bf16_full_eval=True evaluates a bf16 copy, or casts the weights and takes them back: training with bf16=True
#   keeps its weights in fp32, and evaluating leaves the model as it was.
# True: outside of train(), evaluate() and predict() cast the model itself, and nobody casts it back. A training after
#   an evaluation has weights, gradients and Adam's moments in bf16, where most updates are smaller than half a step
#   between two numbers: only 16 % of the output layer's weights move at all. An evaluation after the training rounds
#   the weights that save_model() then writes. Evaluations during the training cast nothing. There is no warning.
# Hurt: fine-tuning that measures the base model first and saves memory this way: the model hardly learns.
# Output seen:
#   train()              weights in torch.float32 while training, 100% of them moved, saved weights in torch.float32
#   evaluate(), train()  weights in torch.bfloat16 while training, 16% of them moved, saved weights in torch.bfloat16
#   train(), evaluate()  weights in torch.float32 while training, 100% of them moved, saved weights in torch.bfloat16
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY' 2> "$work/log" | grep weights || { cat "$work/log"; exit 1; }
import sys
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
torch.manual_seed(0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(64, (64, 16))]
results = {}
for way in ("train()", "evaluate(), train()", "train(), evaluate()"):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                         num_attention_heads=2))
    arguments = TrainingArguments(
        f"{sys.argv[1]}/run", bf16=True, bf16_full_eval=True, learning_rate=1e-5, lr_scheduler_type="constant",
        per_device_train_batch_size=4, max_steps=20, eval_strategy="steps", eval_steps=10, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, log_level="error")
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    if way.startswith("evaluate"):
        trainer.evaluate()
    start = model.lm_head.weight.detach().clone()
    trainer.train()
    trained, moved = model.lm_head.weight.dtype, (model.lm_head.weight != start).float().mean().item()
    if way.endswith("evaluate()"):
        trainer.evaluate()
    trainer.save_model(f"{sys.argv[1]}/saved")
    saved = load_file(f"{sys.argv[1]}/saved/model.safetensors")["lm_head.weight"].dtype
    results[way] = trained, moved, saved
    print(f"{way:<20} weights in {trained} while training, {moved:.0%} of them moved, saved weights in {saved}")
assert results["train()"][0] == results["train()"][2] == torch.float32 and results["train()"][1] > 0.99
assert results["evaluate(), train()"][0] == torch.bfloat16 and results["evaluate(), train()"][1] < 0.3
assert results["train(), evaluate()"][0] == torch.float32 and results["train(), evaluate()"][2] == torch.bfloat16
PY
